"""The values that explanations are made of."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gacprof.cliffmap.schema import MapFile
from gacprof.core.points import Environment

KINDS = (
    "backend",  # another SDPA backend serves
    "padding",  # operands are copied to a larger size and the result is sliced
    "template",  # a larger FlashAttention template, or one that is not filled
    "alignment",  # rows too short of alignment for the fastest kernels
    "residue",  # measured to go with the dim's residue; the mechanism was not recorded
    "kernel_switch",  # the library's heuristic takes another kernel
    "tile_quantisation",  # one more tile for the last few elements
    "wave_quantisation",  # one more round of blocks for the last few
    "load_width",  # narrower loads
    "l2_sectors",  # more sectors for the same bytes
    "launch_bound",  # the host, not the device, sets the time
    "unexplained",
)


@dataclass(frozen=True)
class Cause:
    """``share`` is the fraction of the dim's latency that the cause accounts for (negative
    where it saves time), None where it cannot be computed. ``basis`` is ``measured`` (kernel
    names, counters, latencies) or ``rules``. ``evidence`` cites what the cause rests on."""

    kind: str
    share: float | None
    sentence: str
    evidence: tuple[str, ...]
    basis: str = "measured"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Where:
    """Device and stack that a curve holds for, as far as its map names them."""

    arch: str | None = None
    torch: str | None = None
    cudnn: int | None = None
    sm_count: int | None = None

    @classmethod
    def of_map(cls, file: MapFile) -> Where:
        device = file.device
        return cls.of(
            Environment(device.kind, device.name, device.arch, device.facts, file.provenance.stack)
        )

    @classmethod
    def of(cls, environment: Environment) -> Where:
        cudnn = environment.stack.get("cudnn")
        count = environment.facts.get("sm_count")
        return cls(
            arch=environment.arch if environment.kind == "cuda" else None,
            torch=environment.stack.get("torch"),
            cudnn=int(cudnn) if cudnn and cudnn.isdigit() else None,
            sm_count=count if isinstance(count, int) else None,
        )


@dataclass(frozen=True)
class Explanation:
    """Why ``d`` takes longer (or not) than ``reference``, on the curve named.

    ``excess`` is latency(d) / latency(reference) − 1. ``served_by`` says what serves ``d``.
    """

    curve: str
    operator: str
    axis: str
    d: int
    latency_us: float
    reference: int
    reference_us: float
    served_by: tuple[str, ...]
    causes: tuple[Cause, ...]

    @property
    def excess(self) -> float:
        return self.latency_us / self.reference_us - 1

    @property
    def row(self) -> str:
        """The whole story in a line: what serves, what it costs, on what evidence."""
        parts = [*self.served_by]
        for cause in self.causes:
            share = "" if cause.share is None else f"{cause.share:.0%} of the time: "
            parts.append(share + cause.sentence)
        if self.d == self.reference:
            parts.append("no larger dim is faster")
        elif abs(self.excess) < 0.005:
            parts.append(f"as fast as {self.reference}")
        else:
            parts.append(f"{self.excess:+.0%} over {self.reference}")
        cited = dict.fromkeys(text for cause in self.causes for text in cause.evidence)
        if cited:
            parts.append("evidence: " + ", ".join(cited))
        return f"{self.axis} {self.d} → " + "; ".join(parts)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"excess": self.excess, "row": self.row}

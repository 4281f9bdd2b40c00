"""What a diagnosis says: findings on dims and weights, and their totals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from gacprof.core.files import Record
from gacprof.core.formatting import Framed

if TYPE_CHECKING:
    from gacprof.diagnosing.merging import Merge
    from gacprof.elsewhere.model import StepTimes


HEAD_VERDICTS = ("safe", "misaligned", "undecided")


@dataclass(frozen=True)
class DimFinding:
    """One adjustable dim: what it costs as it is, and the best it could be padded to.

    ``verdict`` is ``safe`` or ``misaligned`` where the penalty's interval lies below or above
    ``tolerance`` (None by rules), ``undecided`` where it holds it (``penalty_high`` is None where
    nothing larger was measured), ``unknown`` where the map has no latency. Latencies are µs over
    the workload, in all GEMMs that the dim feeds. ``relative`` is what was published of such a
    tier's time beside the best one, where ``relative_from`` says. A ``fixed`` size is one that no
    plan changes.
    """

    name: str
    kind: str
    size: int
    layer: int | None
    role: str
    feeds: tuple[str, ...]
    divisible_by_8: bool
    verdict: str
    penalty: float | None
    latency_us: float | None
    best_size: int | None
    best_latency_us: float | None
    tier: str | None
    advice: str
    tolerance: float | None
    scaled: bool = False
    penalty_low: float | None = None
    penalty_high: float | None = None
    relative: float | None = None
    relative_from: str = ""

    @property
    def lost_us(self) -> float | None:
        """Time that padding this dim would surely recover: 0 unless it is misaligned; None where no
        time is known."""
        if self.latency_us is None:
            return None
        if self.best_latency_us is None or self.verdict != "misaligned":
            return 0.0
        return max(0.0, self.latency_us - self.best_latency_us)


@dataclass(frozen=True)
class WeightFinding:
    """One linear layer: its matrix products, their predicted time, and its adjustable dims."""

    name: str
    role: str
    layer: int | None
    kind: str
    dtype: str
    gemms: tuple[str, ...]
    latency_us: float | None
    dims: tuple[str, ...]
    divisible_by_8: bool
    verdict: str
    missing: str = ""


@dataclass(frozen=True, repr=False)
class Diagnosis(Framed, Record):
    """The whole answer. Times are µs over ``tokens`` (token count → weight)."""

    derived = ("tolerances",)

    checkpoint: str
    layout: str
    map: str
    device: str
    dtype: str
    tokens: dict[int, float]
    tolerance: float | None
    parameters: int
    weights: tuple[WeightFinding, ...]
    dims: tuple[DimFinding, ...]
    notes: tuple[str, ...]
    basis: str = ""
    """What its source says of itself where no map was measured: ``by rules, not measured``."""
    tp: int = 1
    times: StepTimes | None = None
    """Whole steps on a GPU that others measured (``--gpu``); None where nothing is known of any."""
    merges: tuple[Merge, ...] = ()
    """Factor pairs that the map shows to be slower than their dense products, by token count."""
    busy: str = ""
    """How far other programs disturbed the map's sweep, where that leaves dims undecided."""
    too_large: str = ""
    """What is wrong where a config's weights leave no room in a GPU's memory, and what fits."""

    def __repr__(self) -> str:
        if self._of_config and self.times is not None:
            counts = self.times.counts()
            return (
                f"<Diagnosis of {self.checkpoint}, a config, by {self.map}: {counts['misaligned']} "
                f"of {counts['judged']} products have sizes that are not of the best tier, "
                f"{counts['open']} parts of the step at an open cost, {counts['unknown']} without "
                "a time>"
            )
        return (
            f"<Diagnosis of {self.checkpoint} by the map {self.map}: {self.misaligned} of "
            f"{len(self.weights)} weights misaligned, {self.unknown} unknown>"
        )

    def frame_rows(self) -> Iterator[dict[str, Any]]:
        """The dims; of a config, which has none, the parts of the step by token count."""
        return iter(self.times.frame_rows()) if self._of_config and self.times else self._dim_rows()

    def _dim_rows(self) -> Iterator[dict[str, Any]]:
        return (asdict(dim) | {"lost_us": dim.lost_us} for dim in self.dims)

    def frame_title(self) -> str:
        return repr(self)[1:-1]

    @property
    def _of_config(self) -> bool:
        return self.layout == "config"

    @property
    def tolerances(self) -> tuple[float, float] | None:
        """The narrowest and the widest tolerance that a dim was judged by; None by rules."""
        known = [t for t in (*(dim.tolerance for dim in self.dims), self.tolerance) if t]
        return (min(known), max(known)) if known else None

    @property
    def misaligned(self) -> int:
        """Weights with a dim whose measured penalty is above the tolerance; of a config products
        with sizes that are not of the best tier."""
        if self._of_config and self.times is not None:
            return self.times.counts()["misaligned"]
        return self._counts["misaligned"]

    @property
    def findings(self) -> tuple[DimFinding, ...]:
        """The sizes that surely lose time, whether or not a plan can change them."""
        return tuple(dim for dim in self.dims if dim.verdict == "misaligned")

    @property
    def knows_weights(self) -> bool:
        """Whether any weight was judged."""
        return any(weight.verdict in ("safe", "misaligned") for weight in self.weights)

    @property
    def knows_any(self) -> bool:
        """Whether any weight was judged, or any dim that can be changed; of a config any product,
        or whether a whole step has a time."""
        if self._of_config and self.times is not None:
            whole = any(total.good for total in self.times.totals)
            return whole or self.times.counts()["judged"] > 0
        return self.knows_weights or any(dim.kind != "fixed" for dim in self.judged)

    @property
    def unknown(self) -> int:
        """Weights that nothing is known of; of a config parts of the step without a time."""
        if self._of_config and self.times is not None:
            return self.times.counts()["unknown"]
        return self._counts["unknown"]

    @property
    def _counts(self) -> Counter[str]:
        """Weights by verdict. An undecided one has no dim that is misaligned or unknown; a
        ``fixed`` one has none that could be changed, and is not judged."""
        return Counter(weight.verdict for weight in self.weights)

    @property
    def predicted_us(self) -> float | None:
        """All matrix products of one pass, or None if the map lacks any of them."""
        return _sum(weight.latency_us for weight in self.weights)

    @property
    def plannable_us(self) -> float | None:
        """The part of it in the weights that a plan can change."""
        return _sum(weight.latency_us for weight in self.weights if weight.dims)

    @property
    def judged(self) -> tuple[DimFinding, ...]:
        """The dims that the map knows enough of to judge."""
        return tuple(dim for dim in self.dims if dim.verdict != "unknown")

    @property
    def lost_us(self) -> float | None:
        """Time lost to penalties, over the dims that the map knows; None if it knows none, or no
        times."""
        return sum(dim.lost_us or 0.0 for dim in self.judged) if self._timed else None

    @property
    def _timed(self) -> bool:
        return any(d.latency_us is not None and d.role != "attention" for d in self.judged)

    @property
    def recoverable_us(self) -> float | None:
        """The part of it that exact padding recovers."""
        if not self._timed:
            return None
        return sum(dim.lost_us or 0.0 for dim in self.judged if dim.advice.startswith("pad"))

    def totals(self) -> dict[str, Any]:
        """Weights by verdict, those with a dim that is no multiple of 8 (the papers' count), and
        times; ``undecided_penalty_high`` is the most that an undecided dim may lose. Of a
        config, which has no weights, what its step's parts are (:meth:`StepTimes.counts`)."""
        if self._of_config and self.times is not None:
            heads = {v: [d.size for d in self.dims if d.verdict == v] for v in HEAD_VERDICTS}
            return self.times.counts() | {f"head_dims_{v}": sizes for v, sizes in heads.items()}
        counts, count = self._counts, len(self.weights) or 1
        odd = sum(not weight.divisible_by_8 for weight in self.weights)
        return {
            "weights": len(self.weights),
            "parameters": self.parameters,
            "judged": len(self.weights) - self.unknown,
            "misaligned": self.misaligned,
            "misaligned_share": self.misaligned / count,
            "safe": counts["safe"],
            "undecided": counts["undecided"],
            "undecided_penalty_high": highest_penalty(
                [d for d in self.dims if d.verdict == "undecided" and d.kind != "fixed"]
            ),
            "unknown": self.unknown,
            "heads_misaligned": sum(dim.role == "attention" for dim in self.findings),
            "head_dims_undecided": sorted(
                {d.size for d in self.dims if d.role == "attention" and d.verdict == "undecided"}
            ),
            "fixed": counts["fixed"],
            "fixed_by_engines": sum(
                self.tp > 1 and w.role == "head" and w.verdict == "fixed" for w in self.weights
            ),
            "not_divisible_by_8": odd,
            "not_divisible_by_8_share": odd / count,
            "predicted_us": self.predicted_us,
            "plannable_us": self.plannable_us,
            "lost_us": self.lost_us,
            "recoverable_us": self.recoverable_us,
        }

    def summary(self) -> dict[str, Any]:
        """What its sentences say: :meth:`as_dict` without weights and dims."""
        few = replace(self, weights=(), dims=()).as_dict()
        return few | {"totals": self.totals()}

    def as_dict(self) -> dict[str, Any]:
        data = super().as_dict() | {
            "tokens": {str(m): weight for m, weight in self.tokens.items()},
            "dims": list(self._dim_rows()),
        }
        del data["parameters"]  # is among the totals
        if self.tp == 1:
            del data["tp"]
        parts = {name: data.pop(name) for name in ("weights", "dims", "notes", "basis", "times")}
        for name in ("basis", "times"):
            if not parts[name]:
                del parts[name]
        return {"schema": "gacprof.diagnosis/1", **data, "totals": self.totals(), **parts}


def highest_penalty(dims: Sequence[DimFinding]) -> float | None:
    """The most that any of them may lose; None where that is open."""
    known = [d.penalty_high for d in dims if d.penalty_high is not None]
    return max(known) if known and len(known) == len(dims) else None


def _sum(times: Iterable[float | None]) -> float | None:
    listed = list(times)
    known = [time for time in listed if time is not None]
    return sum(known) if len(known) == len(listed) else None

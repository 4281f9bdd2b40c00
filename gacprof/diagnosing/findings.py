"""What a diagnosis says: findings on dims and weights, and their totals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gacprof.core.formatting import Framed


@dataclass(frozen=True)
class DimFinding:
    """One adjustable dim: what it costs as it is, and the best it could be padded to.

    ``verdict`` is ``safe`` or ``misaligned`` where the penalty's interval lies below or above
    ``tolerance``, ``undecided`` where it holds it (``penalty_high`` is None where nothing larger
    was measured), ``unknown`` where the map has no latency. Latencies are µs over the workload,
    in all GEMMs that the dim feeds.
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
    tolerance: float
    scaled: bool = False
    penalty_low: float | None = None
    penalty_high: float | None = None

    @property
    def lost_us(self) -> float:
        """Time that padding this dim would surely recover: none unless it is misaligned."""
        if self.latency_us is None or self.best_latency_us is None or self.verdict != "misaligned":
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
class Diagnosis(Framed):
    """The whole answer. Times are µs over ``tokens`` (token count → weight)."""

    checkpoint: str
    layout: str
    map: str
    device: str
    dtype: str
    tokens: dict[int, float]
    tolerance: float
    parameters: int
    weights: tuple[WeightFinding, ...]
    dims: tuple[DimFinding, ...]
    notes: tuple[str, ...]
    basis: str = ""
    """``by rules, not measured`` where that is so: there are verdicts then and no times."""

    def __repr__(self) -> str:
        return (
            f"<Diagnosis of {self.checkpoint} by the map {self.map}: {self.misaligned} of "
            f"{len(self.weights)} weights misaligned, {self.unknown} unknown>"
        )

    def frame_rows(self) -> Iterator[dict[str, Any]]:
        return (asdict(dim) | {"lost_us": dim.lost_us} for dim in self.dims)

    def frame_title(self) -> str:
        return repr(self)[1:-1]

    @property
    def tolerances(self) -> tuple[float, float]:
        """The narrowest and the widest tolerance that a dim was judged by."""
        known = [dim.tolerance for dim in self.dims] or [self.tolerance]
        return min(known), max(known)

    def _count(self, verdict: str) -> int:
        return sum(w.verdict == verdict for w in self.weights)

    @property
    def misaligned(self) -> int:
        """Weights with a dim whose measured penalty is above the tolerance."""
        return self._count("misaligned")

    @property
    def undecided(self) -> int:
        """Weights with a dim whose penalty may or may not be above the tolerance, none being
        misaligned or unknown."""
        return self._count("undecided")

    @property
    def undecided_high(self) -> float | None:
        """The most that an undecided dim may lose; None where there is none, or no bound."""
        return highest_penalty([d for d in self.dims if d.verdict == "undecided"])

    @property
    def unknown(self) -> int:
        return self._count("unknown")

    @property
    def fixed(self) -> int:
        """Weights without a dim that could be changed: they are not judged."""
        return self._count("fixed")

    @property
    def not_divisible_by_8(self) -> int:
        """Weights with a dim that is no multiple of 8: the papers' count."""
        return sum(not w.divisible_by_8 for w in self.weights)

    @property
    def predicted_us(self) -> float | None:
        """All matrix products of one pass, or None if the map lacks any of them."""
        known = [w.latency_us for w in self.weights]
        return None if any(t is None for t in known) else sum(t for t in known if t is not None)

    @property
    def judged(self) -> tuple[DimFinding, ...]:
        """The dims that the map knows enough of to judge."""
        return tuple(dim for dim in self.dims if dim.verdict != "unknown")

    @property
    def lost_us(self) -> float | None:
        """Time lost to penalties, over the dims that the map knows; None if it knows none, or no
        times."""
        return sum(dim.lost_us for dim in self.judged) if self._timed else None

    @property
    def _timed(self) -> bool:
        return bool(self.judged) and not self.basis

    @property
    def recoverable_us(self) -> float | None:
        """The part of it that exact padding recovers."""
        if not self._timed:
            return None
        return sum(dim.lost_us for dim in self.judged if dim.advice.startswith("pad"))

    def totals(self) -> dict[str, Any]:
        count = len(self.weights) or 1
        return {
            "weights": len(self.weights),
            "parameters": self.parameters,
            "judged": len(self.weights) - self.unknown,
            "misaligned": self.misaligned,
            "misaligned_share": self.misaligned / count,
            "safe": self._count("safe"),
            "undecided": self.undecided,
            "undecided_penalty_high": self.undecided_high,
            "unknown": self.unknown,
            "fixed": self.fixed,
            "not_divisible_by_8": self.not_divisible_by_8,
            "not_divisible_by_8_share": self.not_divisible_by_8 / count,
            "predicted_us": self.predicted_us,
            "lost_us": self.lost_us,
            "recoverable_us": self.recoverable_us,
        }

    def as_dict(self) -> dict[str, Any]:
        return {
            "schema": "gacprof.diagnosis/1",
            "checkpoint": self.checkpoint,
            "layout": self.layout,
            "map": self.map,
            "device": self.device,
            "dtype": self.dtype,
            "tokens": {str(m): weight for m, weight in self.tokens.items()},
            "tolerance": self.tolerance,
            "tolerances": list(self.tolerances),
            "totals": self.totals(),
            "weights": [asdict(w) for w in self.weights],
            "dims": [asdict(d) | {"lost_us": d.lost_us} for d in self.dims],
            "notes": list(self.notes),
            **({"basis": self.basis} if self.basis else {}),
        }


def by_rules(found: Diagnosis, basis: str) -> Diagnosis:
    """The same verdicts and advice without a time or a penalty: tiers are neither."""
    return replace(
        found,
        basis=basis,
        dims=tuple(
            replace(
                dim,
                penalty=None,
                penalty_low=None,
                penalty_high=None,
                latency_us=None,
                best_latency_us=None,
            )
            for dim in found.dims
        ),
        weights=tuple(replace(weight, latency_us=None) for weight in found.weights),
        notes=(f"{basis}: a misaligned size is of a worse tier than a larger one", *found.notes),
    )


def highest_penalty(dims: Sequence[DimFinding]) -> float | None:
    """The most that any of them may lose; None where that is open."""
    known = [d.penalty_high for d in dims if d.penalty_high is not None]
    return max(known) if known and len(known) == len(dims) else None

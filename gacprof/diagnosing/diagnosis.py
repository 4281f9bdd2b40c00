"""Inventory × map → what each weight's dims cost, and what to do about them.

Penalties come from measurements, never from a rule about multiples of 8; the papers' rule
(d % 8) is counted beside them so that both can be read. What the map does not hold is
``unknown``, with the sweep that would fill it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gacprof.checkpoint.inventory import Dim, Inventory, Module
from gacprof.cliffmap import CliffMap
from gacprof.diagnosing.companions import beside
from gacprof.diagnosing.landscape import Landscape, around, landscape
from gacprof.diagnosing.predict import NOTHING, Estimate, Predictor
from gacprof.diagnosing.workload import Tokens

WINDOW = 0.25
"""How far around a dim's size better sizes are looked for, as a fraction."""


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
class Diagnosis:
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

    def __repr__(self) -> str:
        return (
            f"<Diagnosis of {self.checkpoint} by the map {self.map}: {self.misaligned} of "
            f"{len(self.weights)} weights misaligned, {self.unknown} unknown>"
        )

    @property
    def tolerances(self) -> tuple[float, float]:
        """The narrowest and the widest tolerance that a dim was judged by."""
        known = [dim.tolerance for dim in self.dims] or [self.tolerance]
        return min(known), max(known)

    @property
    def misaligned(self) -> int:
        """Weights with a dim whose measured penalty is above the tolerance."""
        return sum(w.verdict == "misaligned" for w in self.weights)

    @property
    def undecided(self) -> int:
        """Weights with a dim whose penalty may or may not be above the tolerance, none being
        misaligned or unknown."""
        return sum(w.verdict == "undecided" for w in self.weights)

    @property
    def undecided_high(self) -> float | None:
        """The most that an undecided dim may lose; None where there is none, or no bound."""
        bounds = [d.penalty_high for d in self.dims if d.verdict == "undecided"]
        known = [bound for bound in bounds if bound is not None]
        return max(known) if known and len(known) == len(bounds) else None

    @property
    def unknown(self) -> int:
        return sum(w.verdict == "unknown" for w in self.weights)

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
        """Time lost to penalties, over the dims that the map knows; None if it knows none."""
        return sum(dim.lost_us for dim in self.judged) if self.judged else None

    @property
    def recoverable_us(self) -> float | None:
        """The part of it that exact padding recovers."""
        if not self.judged:
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
            "safe": sum(w.verdict == "safe" for w in self.weights),
            "undecided": self.undecided,
            "undecided_penalty_high": self.undecided_high,
            "unknown": self.unknown,
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
        }


def diagnose_inventory(
    inventory: Inventory,
    cliff_map: CliffMap,
    *,
    tokens: Tokens | None = None,
    dtype: str | None = None,
    window: float = WINDOW,
) -> Diagnosis:
    """Judge every weight of ``inventory`` by ``cliff_map`` at the token counts served.

    Raises :class:`PlanError` for a workload that is none, or a dtype the map does not hold.
    """
    predictor = Predictor(cliff_map, inventory, tokens, dtype)
    dims = {dim.name: _judge_dim(predictor, dim, window) for dim in inventory.dims}
    dims = {dim.name: _beside_aligned(predictor, dim, window, dims) for dim in inventory.dims}
    weights = tuple(
        _judge_weight(predictor, module, dims) for module in inventory.modules if module.gemms
    )
    notes = [*inventory.notes]
    if predictor.dtype_note:
        notes.append(predictor.dtype_note)
    if cliff_map.too_noisy:
        notes.append(f"the map is too noisy to judge by: {cliff_map.too_noisy}")
    notes += _remarks(dims.values(), weights, predictor.tokens_note)
    return Diagnosis(
        inventory.path,
        inventory.layout,
        cliff_map.name,
        cliff_map.environment.name,
        predictor.dtype,
        predictor.tokens,
        predictor.tolerance,
        inventory.parameters,
        weights,
        tuple(dims.values()),
        tuple(notes),
    )


def _beside_aligned(
    predictor: Predictor, dim: Dim, window: float, found: Mapping[str, DimFinding]
) -> DimFinding:
    """The dim's own finding; where nothing is wrong with it as it is, that beside the padded sizes
    of the dims that it meets: they may hide what it costs."""
    own = found[dim.name]
    sizes = {
        name: other.best_size
        for name, other in found.items()
        if other.advice.startswith("pad") and other.best_size is not None
    }
    if own.verdict in ("misaligned", "unknown"):
        return own
    near = beside(predictor, [dim], [dim], sizes)
    if near is predictor:
        return own
    again = _judge_dim(near, dim, window)
    if again.verdict != "misaligned":
        return own
    when = ", once the dims beside it are aligned" if again.advice.startswith("pad") else ""
    return replace(again, advice=again.advice + when)


def _judge_dim(predictor: Predictor, dim: Dim, window: float) -> DimFinding:
    land = landscape(predictor, dim, *around([dim], window))
    here, best = land.place(dim.size), land.best_padding(dim.size)
    feeds = tuple(f"linear.{feed.axis} of {feed.weight}" for feed in dim.feeds)
    common = (dim.name, dim.kind, dim.size, dim.layer, dim.role, feeds, dim.size % 8 == 0)
    if here is None or best is None or not _comparable(land, here):
        missing = land.missing or "the map holds no larger size to compare it with"
        latency = None if here is None else land.latency_us[here]
        return DimFinding(
            *common, "unknown", None, latency, None, None, None, missing, land.tolerance
        )
    verdict, latency = land.verdict[here], land.latency_us[here]
    best_size, best_latency = (dim.size, latency) if verdict == "safe" else best
    return DimFinding(
        *common,
        verdict,
        land.penalty[here],
        latency,
        best_size,
        best_latency,
        predictor.mechanism(dim),
        _advice(dim, verdict, best_size, land.penalty_high[here]),
        land.tolerance,
        land.scaled,
        land.penalty_low[here],
        land.penalty_high[here],
    )


def _comparable(land: Landscape, here: int) -> bool:
    """Whether anything was measured that the size can be judged against."""
    return land.penalty_high[here] is not None or here + 1 < len(land.sizes)


def _advice(dim: Dim, verdict: str, best_size: int, high: float | None) -> str:
    if verdict == "safe":
        return "keep"
    if verdict == "undecided":
        if high is None:
            return "keep: too little above it was measured to tell"
        return f"keep: it may cost up to {high:.1%}, a quieter or longer sweep would tell"
    if dim.padding == "refused":
        return f"cannot be padded: {dim.why}"
    if best_size == dim.size:
        at_most = "" if dim.most is None else f" (the dense weight's rank is {dim.dense_size})"
        return f"keep: larger sizes are faster, but none within reach{at_most}"
    return f"pad to {best_size}"


def _judge_weight(
    predictor: Predictor, module: Module, dims: Mapping[str, DimFinding]
) -> WeightFinding:
    total: Estimate = NOTHING
    for gemm in module.gemms:
        total += predictor.gemm(gemm.N, gemm.K, gemm.bias)
    own = [dims[name] for name in module.dims]
    sizes = [s for gemm in module.gemms for s in (gemm.N, gemm.K)] + [d.size for d in own]
    verdicts = {d.verdict for d in own}
    verdict = next((v for v in ("misaligned", "unknown", "undecided") if v in verdicts), "safe")
    if not own:  # nothing adjustable: the time is known or it is not
        verdict = "unknown" if total.latency_us is None else "fixed"
    return WeightFinding(
        module.name,
        module.role,
        module.layer,
        module.kind,
        module.dtype,
        tuple(f"{gemm.N}×{gemm.K}" for gemm in module.gemms),
        total.latency_us,
        module.dims,
        all(size % 8 == 0 for size in sizes),
        verdict,
        total.missing,
    )


def _remarks(
    dims: Collection[DimFinding], weights: Sequence[WeightFinding], tokens_note: str
) -> list[str]:
    """What a user should know besides the numbers."""
    judged = [d for d in dims if d.verdict != "unknown"]
    remarks = []
    if judged and all(d.verdict == "safe" for d in judged):
        remarks.append(_all_safe(judged, len(judged) == len(dims)))
    undecided = [d for d in judged if d.verdict == "undecided"]
    if undecided:
        bounds = [d.penalty_high for d in undecided if d.penalty_high is not None]
        most = (
            f", none is off by more than {max(bounds):.1%}" if len(bounds) == len(undecided) else ""
        )
        count = "1 dim is" if len(undecided) == 1 else f"{len(undecided)} dims are"
        remarks.append(
            f"{count} undecided: the map's errors leave open whether more than "
            f"{undecided[0].tolerance:.0%} is lost{most}"
        )
    surprising = [d for d in judged if d.divisible_by_8 and d.verdict == "misaligned"]
    if surprising:
        remarks.append(
            f"{len(surprising)} dims are multiples of 8 and still penalised: being a multiple "
            "of 8 does not make a dim safe"
        )
    if any(w.verdict == "unknown" for w in weights):
        remarks.append(
            tokens_note
            or "some weights are unknown to this map: "
            "sweep the checkpoint's own shapes with 'gacprof sweep --for CHECKPOINT'"
        )
    return remarks


def _all_safe(judged: Sequence[DimFinding], all_known: bool) -> str:
    """That dims are not to blame is said only where the map excludes it for every one."""
    told = (
        f"every dim{'' if all_known else ' that the map knows'} is safe, none loses more than "
        f"{max(d.tolerance for d in judged):.0%}"
    )
    if not all_known:
        return told
    return (
        f"{told}: if this model is slow, its dims are not why (two small products in place of one, "
        "launch-bound or memory-bound decode)"
    )

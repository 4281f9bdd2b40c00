"""From dims to knapsack classes: what each dim may become, what it costs, what it would take.

Dims that must share one size (a common width for a plain config, say) form one class, whose
cost, latency and loss are the sums over its members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gacprof.checkpoint.inventory import Dim
from gacprof.cliffmap.judge import Verdict
from gacprof.core.errors import PlanError
from gacprof.diagnosing.companions import Sizes, beside
from gacprof.diagnosing.landscape import LEAST_REACH, Landscape, around, landscape
from gacprof.diagnosing.predict import Predictor
from gacprof.planning.constraints import (
    Bounds,
    Constraints,
    bounds_of,
    check_numbers,
    check_patterns,
    grouped,
)
from gacprof.planning.coupling import together
from gacprof.planning.memory import bytes_per_unit, dense_bytes


@dataclass(frozen=True)
class Option:
    """One size for a class of dims. Costs are parameters, latency µs, over all members.

    ``nbytes`` are the cost as stored, at the dtypes of the weights. ``kept`` is the share of
    the members' energy (squared singular values) that the size keeps, summed over members and
    None where it is not known; ``verdict`` is the map's word on the worst member, whose penalty is
    at most ``penalty_high``; ``offered`` is whether a plan may choose the size by it
    (:meth:`Landscape.offers`). ``fused`` means that the factor pair is multiplied out to one
    dense weight instead; ``size`` is then the rank that such a weight can have.
    """

    size: int
    cost: int
    nbytes: int
    latency_us: float | None
    verdict: Verdict | None
    kept: float | None = None
    fused: bool = False
    offered: bool = False
    penalty_high: float | None = None

    @property
    def safe(self) -> bool:
        return self.verdict == "safe"


@dataclass(frozen=True)
class DimClass:
    """Dims that take one common size, and the options they have, ascending by size.

    A class that is pinned has that one option. ``untouched`` stands for all members as they
    are, its size being the largest of theirs.
    """

    members: tuple[Dim, ...]
    options: tuple[Option, ...]
    untouched: Option
    bounds: Bounds
    missing: str = ""

    @property
    def name(self) -> str:
        first = self.members[0].name
        return first if len(self.members) == 1 else f"{first} and {len(self.members) - 1} more"

    @property
    def before(self) -> int:
        """Parameters of the members as they are."""
        return self.untouched.cost

    @property
    def is_untouched(self) -> bool:
        """Whether the size of ``untouched`` is that of every member."""
        return all(dim.size == self.untouched.size for dim in self.members)


def build_classes(
    predictor: Predictor,
    dims: Iterable[Dim],
    *,
    window: float,
    constraints: Constraints,
    kept: Mapping[str, Sequence[float]],
    sizes: Sizes | None = None,
) -> list[DimClass]:
    """The classes of all adjustable dims. ``kept`` gives, by dim name, the share of energy
    kept at each size from 0 to the dim's own. Each dim is judged beside the others at ``sizes``.

    Raises :class:`PlanError` for constraints that contradict each other or name no dim, and
    where no dim may change.
    """
    check_numbers(window=window)
    if not 0 <= window < float("inf"):
        raise PlanError(f"the window is {window}: it must be a share of a dim, such as 0.25")
    dims = list(dims)
    free = [dim for dim in dims if dim.adjustable]
    if dims and not free:
        raise PlanError(f"no dim of this checkpoint can be changed: {dims[0].why}")
    check_patterns(free, constraints)
    return [
        _class(predictor, sizes or Sizes(), members, window, constraints, kept)
        for members in grouped(free, constraints)
    ]


def pinned_sizes(dims: Iterable[Dim], constraints: Constraints) -> dict[str, int]:
    """The sizes of all dims that are pinned, by name."""
    free = [dim for dim in dims if dim.adjustable]
    check_patterns(free, constraints)
    found: dict[str, int] = {}
    for members in grouped(free, constraints):
        pin = bounds_of(members, constraints).pin
        if pin is not None:
            found |= dict.fromkeys([dim.name for dim in members], pin)
    return found


def _class(
    predictor: Predictor,
    sizes: Sizes,
    members: list[Dim],
    window: float,
    constraints: Constraints,
    kept: Mapping[str, Sequence[float]],
) -> DimClass:
    bounds = bounds_of(members, constraints)
    near = beside(predictor, members, members, sizes)
    untouched = _untouched(near, members)
    if bounds.pin is not None:
        option = _pinned(near, members, bounds.pin, kept)
        return DimClass(tuple(members), (option,), untouched, bounds)
    reach = _reach(members, window, bounds)
    nears = [beside(predictor, members, [dim], sizes) for dim in members]
    lands = [landscape(own, dim, *reach) for own, dim in zip(nears, members, strict=True)]
    if len(members) > 1:  # a size that was measured of one member may be looked up for another
        tried = set[int]().union(*(land.sizes for land in lands))
        lands = [
            landscape(own, dim, *reach, also=tried) for own, dim in zip(nears, members, strict=True)
        ]
    common = set.intersection(*(set(land.sizes) for land in lands)) if lands else set()
    allowed = [s for s in sorted(common) if bounds.allow(s) and not _refusal(members, s)]
    options = [_option(near, members, lands, size, kept) for size in allowed]
    if len(members) == 1 and constraints.fuse:
        options += [o for o in _fused(near, members[0], untouched) if bounds.allow(o.size)]
    missing = next((land.missing for land in lands if land.missing), "")
    return DimClass(tuple(members), tuple(options), untouched, bounds, missing)


def _reach(members: list[Dim], window: float, bounds: Bounds) -> tuple[int, int]:
    """The window, moved to what is allowed where the two do not meet."""
    low, high = around(members, window)
    if bounds.least > high:
        low = bounds.least
        high = low + max(LEAST_REACH, round(low * window))
    if bounds.most is not None and bounds.most < low:
        high = bounds.most
        low = max(1, high - max(LEAST_REACH, round(high * window)))
    return low, high


def _untouched(predictor: Predictor, members: list[Dim]) -> Option:
    return Option(
        max(dim.size for dim in members),
        sum(dim.size * dim.params_per_unit for dim in members),
        sum(dim.size * bytes_per_unit(predictor.inventory, dim) for dim in members),
        together(predictor, members, None),
        None,
        float(len(members)),
    )


def _option(
    predictor: Predictor,
    members: list[Dim],
    lands: list[Landscape],
    size: int,
    kept: Mapping[str, Sequence[float]],
) -> Option:
    verdict, high = _worst(lands, size)
    return Option(
        size,
        sum(size * dim.params_per_unit for dim in members),
        sum(size * bytes_per_unit(predictor.inventory, dim) for dim in members),
        together(predictor, members, size),
        verdict,
        _sum(share_kept(dim, size, kept) for dim in members),
        penalty_high=high,
        offered=all(land.offers(size, dim.size) for land, dim in zip(lands, members, strict=True)),
    )


def _worst(lands: Sequence[Landscape], size: int) -> tuple[Verdict | None, float | None]:
    """The verdict on the size over all members, and the bound of its penalty."""
    places = [land.place(size) for land in lands]
    known = [(land, at) for land, at in zip(lands, places, strict=True) if at is not None]
    if len(known) < len(lands):
        return None, None
    verdicts = {land.verdict[at] for land, at in known}
    bounds = [land.penalty_high[at] for land, at in known]
    settled = [bound for bound in bounds if bound is not None]
    order: tuple[Verdict, ...] = ("misaligned", "undecided", "safe")
    worst = next(verdict for verdict in order if verdict in verdicts)
    return worst, max(settled) if len(settled) == len(bounds) else None


def _pinned(
    predictor: Predictor, members: list[Dim], size: int, kept: Mapping[str, Sequence[float]]
) -> Option:
    """The one option of a pinned class. Raises :class:`PlanError` where it cannot be made."""
    refused = _refusal(members, size, pinned=True)
    if refused:
        raise PlanError(f"{members[0].name} cannot be pinned to {size}: {refused}")
    lands = [landscape(predictor, dim, size, size) for dim in members]
    return _option(predictor, members, lands, size, kept)


def _refusal(members: list[Dim], size: int, pinned: bool = False) -> str:
    """Why the dims cannot have the size; empty where they can.

    A rank whose directions are in no order can be cut, by an SVD, but what that loses is not
    known here: only a pin asks for it.
    """
    for dim in members:
        cut = size < dim.size and not dim.ordered
        if cut and (dim.kind == "hidden" or (dim.kind == "rank" and not pinned)):
            return f"its {dim.size} entries are in no order of importance, so none can be cut"
        if size > dim.size and dim.padding == "refused":
            return dim.why
        if dim.most is not None and size > dim.most:
            return f"the dense weight's rank is {dim.dense_size}"
    return ""


def _fused(predictor: Predictor, dim: Dim, untouched: Option) -> list[Option]:
    """The dense weight in place of the pair, where the rank is a module's only one. It suits an
    objective that asks for safe sizes only where it is no slower than the pair as it is."""
    inventory = predictor.inventory
    if dim.kind != "rank" or dim.padding == "refused":
        return []
    for module in inventory.modules:
        ranks = [name for name in module.dims if inventory.dim(name).kind == "rank"]
        if ranks == [dim.name]:
            bias = any(gemm.bias for gemm in module.gemms)
            dense = predictor.gemm(module.out_features, module.in_features, bias).latency_us
            if dense is None:
                return []
            cost = module.out_features * module.in_features
            rank = dim.dense_size or min(module.out_features, module.in_features)
            size = max(rank, dim.size)
            slower = untouched.latency_us is not None and dense > untouched.latency_us
            return [
                Option(
                    size,
                    cost,
                    dense_bytes(inventory, module),
                    dense,
                    "safe",
                    1.0,
                    fused=True,
                    offered=not slower,
                    penalty_high=0.0,
                )
            ]
    return []


def share_kept(dim: Dim, size: int | None, kept: Mapping[str, Sequence[float]]) -> float | None:
    """The share of energy that a size keeps (None: multiplied out). Padding keeps everything; a
    cut keeps what its spectrum says, None where there is none."""
    if size is None or size >= dim.size:
        return 1.0
    shares = kept.get(dim.name)
    return shares[size] if shares is not None else None


def _sum(values: Iterable[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total

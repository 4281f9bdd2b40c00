"""From dims to knapsack classes: what each dim may become, what it costs, what it would take.

Dims that must share one size (a common width for a plain config, say) form one class, whose
cost, latency and loss are the sums over its members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gacprof.checkpoint.inventory import Dim
from gacprof.diagnosing.predict import Landscape, Predictor, around, landscape
from gacprof.errors import PlanError


@dataclass(frozen=True)
class Option:
    """One size for a class of dims. Costs are parameters, latency µs, over all members.

    ``kept`` is the share of the members' energy (squared singular values) that the size
    keeps, summed over members and None where it is not known; ``safe`` is the map's word.
    ``fused`` means that the factor pair is multiplied out to one dense weight instead;
    ``size`` is then the rank that such a weight can have.
    """

    size: int
    cost: int
    latency_us: float | None
    safe: bool
    kept: float | None = None
    fused: bool = False


@dataclass(frozen=True)
class DimClass:
    """Dims that take one common size, and the options they have, ascending by size."""

    members: tuple[Dim, ...]
    options: tuple[Option, ...]
    untouched: Option
    missing: str = ""

    @property
    def name(self) -> str:
        first = self.members[0].name
        return first if len(self.members) == 1 else f"{first} and {len(self.members) - 1} more"

    @property
    def before(self) -> int:
        """Parameters of the members as they are."""
        return self.untouched.cost


@dataclass(frozen=True)
class Constraints:
    """What the user holds fixed. Patterns are shell-style, over dim names.

    ``uniform`` shares one size over all dims of a role (``role``) or of a kind (``kind``);
    ``pinned`` maps patterns to sizes; ``least`` and ``most`` bound sizes by pattern.
    """

    uniform: str = "none"
    pinned: Mapping[str, int] | None = None
    least: Mapping[str, int] | None = None
    most: Mapping[str, int] | None = None


def build_classes(
    predictor: Predictor,
    dims: Iterable[Dim],
    *,
    window: float,
    constraints: Constraints,
    kept: Mapping[str, Sequence[float]],
) -> list[DimClass]:
    """The classes of all adjustable dims. ``kept`` gives, by dim name, the share of energy
    kept at each size from 0 to the dim's own.

    Raises :class:`PlanError` for constraints that contradict each other or name no dim.
    """
    dims = [dim for dim in dims if dim.padding == "exact" or dim.ordered]
    _check_patterns(dims, constraints)
    groups: dict[object, list[Dim]] = {}
    for dim in dims:
        groups.setdefault(_group(dim, constraints.uniform), []).append(dim)
    return [_class(predictor, g, window, constraints, kept) for g in groups.values()]


def _group(dim: Dim, uniform: str) -> object:
    if uniform == "none":
        return dim.name
    if uniform == "role":
        return dim.kind, dim.role
    if uniform == "kind":
        return dim.kind
    raise PlanError(f"uniform is {uniform!r}: it must be 'none', 'role' or 'kind'")


def _class(
    predictor: Predictor,
    members: list[Dim],
    window: float,
    constraints: Constraints,
    kept: Mapping[str, Sequence[float]],
) -> DimClass:
    reach = around(members, window)
    lands = [landscape(predictor, dim, *reach) for dim in members]
    largest = max(dim.size for dim in members)
    common = set.intersection(*(set(land.sizes) for land in lands)) if lands else set()
    allowed = sorted(s for s in common if _allowed(members, s, constraints))
    options = [_option(members, lands, size, kept) for size in allowed]
    if len(members) == 1 and _match(members[0].name, constraints.pinned) is None:
        options += _fused(predictor, members[0])
    untouched = Option(
        largest,
        sum(dim.size * dim.params_per_unit for dim in members),
        _sum(predictor.dim(dim, dim.size).latency_us for dim in members),
        all(_is_safe(land, dim.size) for land, dim in zip(lands, members, strict=True)),
        float(len(members)),
    )
    missing = next((land.missing for land in lands if land.missing), "")
    return DimClass(tuple(members), tuple(options), untouched, missing)


def _option(
    members: list[Dim],
    lands: list[Landscape],
    size: int,
    kept: Mapping[str, Sequence[float]],
) -> Option:
    return Option(
        size,
        sum(size * dim.params_per_unit for dim in members),
        _sum((land.at(size) or (None,))[0] for land in lands),
        all(_is_safe(land, size) for land in lands),
        _sum(_kept(dim, size, kept) for dim in members),
    )


def _fused(predictor: Predictor, dim: Dim) -> list[Option]:
    """The dense weight in place of the pair, where the rank is a module's only one."""
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
            return [Option(max(rank, dim.size), cost, dense, True, 1.0, fused=True)]
    return []


def _kept(dim: Dim, size: int, kept: Mapping[str, Sequence[float]]) -> float | None:
    """Padding keeps everything; a cut keeps what its spectrum says, if there is one."""
    if size >= dim.size:
        return 1.0
    shares = kept.get(dim.name)
    return shares[size] if shares is not None else None


def _is_safe(land: Landscape, size: int) -> bool:
    return size in land.safe


def _allowed(members: list[Dim], size: int, constraints: Constraints) -> bool:
    for dim in members:
        pinned = _match(dim.name, constraints.pinned)
        if pinned is not None and size != pinned:
            return False
        least, most = _match(dim.name, constraints.least), _match(dim.name, constraints.most)
        if (least is not None and size < least) or (most is not None and size > most):
            return False
        if size < dim.size and not dim.ordered and dim.kind == "rank":
            return False
        if size > dim.size and dim.padding == "refused":
            return False
    return True


def _match(name: str, patterns: Mapping[str, int] | None) -> int | None:
    for pattern, size in (patterns or {}).items():
        if fnmatchcase(name, pattern):
            return size
    return None


def _check_patterns(dims: Sequence[Dim], constraints: Constraints) -> None:
    for what in ("pinned", "least", "most"):
        for pattern in getattr(constraints, what) or {}:
            if not any(fnmatchcase(dim.name, pattern) for dim in dims):
                raise PlanError(f"the constraint '{what}' names '{pattern}', which is no dim here")


def _sum(values: Iterable[float | None]) -> float | None:
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total

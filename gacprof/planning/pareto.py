"""What can be had: parameters, predicted latency and energy of many plans side by side.

Ours over a range of budgets, the paper's dynamic programming at today's budget, naive
rounding, and the checkpoint as it is; all judged by the same map and the same spectra.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gacprof.checkpoint.inventory import Dim, Inventory
from gacprof.cliffmap import CliffMap
from gacprof.diagnosing.predict import Predictor, around, landscape
from gacprof.errors import PlanError
from gacprof.planning.classes import Constraints, DimClass, Option, build_classes
from gacprof.planning.objectives import Gac, objective
from gacprof.planning.solving import Limits, solve_classes
from gacprof.planning.spectra import energy_kept
from gacprof.solver import solve_gac

BUDGETS = 15
Sizes = Mapping[str, int | None]


@dataclass(frozen=True)
class Variant:
    """One way to size the dims. ``energy_kept`` is the mean share over all ranks, 1 for padding;
    ``aligned`` the share of dims on a safe size, None where the map cannot tell."""

    method: str
    parameters: int
    latency_us: float | None
    energy_kept: float | None
    aligned: float | None
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Pareto:
    checkpoint: str
    map: str
    device: str
    dtype: str
    tokens: dict[int, float]
    variants: tuple[Variant, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"schema": "gacprof.pareto/1"}


def pareto(
    inventory: Inventory,
    cliff_map: CliffMap,
    *,
    aim: str = "energy",
    tokens: Mapping[int, float] | None = None,
    dtype: str | None = None,
    window: float = 0.25,
    budgets: int = BUDGETS,
    progress: Callable[[int, int, object], None] | None = None,
) -> Pareto:
    """All variants of one checkpoint on one map. Raises :class:`PlanError`."""
    if not inventory.dims:
        raise PlanError(f"{inventory.path} has no adjustable dims: there is nothing to choose")
    predictor = Predictor(cliff_map, inventory, tokens, dtype)
    kept = energy_kept(inventory, inventory.dims)
    dims = list(inventory.dims)
    classes = build_classes(predictor, dims, window=window, constraints=Constraints(), kept=kept)
    judge = _Judge(predictor, kept, window)
    variants = [judge.variant("as it is", {}), *_naive(judge, dims)]
    variants += _paper(judge, classes, inventory)
    for number, sizes in enumerate(_ours(classes, aim, budgets)):
        if progress:
            progress(number, budgets, "budget")
        variants.append(judge.variant(f"gacprof, {aim}", sizes))
    return Pareto(
        inventory.path,
        cliff_map.name,
        cliff_map.environment.name,
        predictor.dtype,
        predictor.tokens,
        tuple(variants),
    )


class _Judge:
    """Parameters, latency, energy and alignment of any choice of sizes."""

    def __init__(
        self, predictor: Predictor, kept: Mapping[str, Sequence[float]], window: float
    ) -> None:
        self._predictor = predictor
        self._kept = kept
        dims = predictor.inventory.dims
        self._safe = {d.name: landscape(predictor, d, *around([d], window)).safe for d in dims}

    def variant(self, method: str, sizes: Sizes, note: str = "") -> Variant:
        inventory = self._predictor.inventory
        parameters, kept, safe = inventory.parameters, [], 0
        for dim in inventory.dims:
            after = sizes.get(dim.name, dim.size)
            parameters += self._cost(dim, after) - dim.size * dim.params_per_unit
            kept.append(self._share(dim, after))
            safe += after is None or after in self._safe[dim.name]
        known = [share for share in kept if share is not None]
        return Variant(
            method,
            parameters,
            self._predictor.weights(sizes).latency_us,
            sum(known) / len(known) if len(known) == len(kept) else None,
            safe / len(inventory.dims),
            note,
        )

    def _cost(self, dim: Dim, size: int | None) -> int:
        if size is not None:
            return size * dim.params_per_unit
        module = next(m for m in self._predictor.inventory.modules if dim.name in m.dims)
        return module.out_features * module.in_features

    def _share(self, dim: Dim, size: int | None) -> float | None:
        if size is None or size >= dim.size:
            return 1.0
        shares = self._kept.get(dim.name)
        return None if shares is None else shares[size]


def _naive(judge: _Judge, dims: Sequence[Dim]) -> Iterator[Variant]:
    """What the compressors' own flags do: every dim to a multiple, up, down or to the nearest."""
    for multiple in (8, 64):
        for way, rounded in (
            ("up", lambda d, m: -(-d // m) * m),
            ("down", lambda d, m: max(m, d // m * m)),
            ("nearest", lambda d, m: max(m, (d + m // 2) // m * m)),
        ):
            sizes = {d.name: rounded(d.size, multiple) for d in dims if d.padding == "exact"}
            yield judge.variant(f"{way} to {multiple}", sizes)


def _paper(judge: _Judge, classes: Sequence[DimClass], inventory: Inventory) -> Iterator[Variant]:
    """Algorithm 1 of arXiv 2604.09595: Eq. 4 by dynamic programming in units of 8·M_min, M_min
    the fewest rows of a weight."""
    goal = Gac()
    free = [(group, goal.eligible(group)) for group in classes]
    free = [(group, options) for group, options in free if options]
    if not free:
        return
    planned = {dim.name for group, _ in free for dim in group.members}
    unit = 8 * min(m.out_features for m in inventory.modules if planned & set(m.dims))
    budget = sum(group.before for group, _ in free)
    solution = solve_gac(
        [[option.cost for option in options] for _, options in free],
        [[goal.value(group, option) for option in options] for group, options in free],
        budget,
        unit,
    )
    sizes: dict[str, int | None] = {}
    for (group, options), j in zip(free, solution.choice, strict=True):
        sizes |= {dim.name: options[j].size for dim in group.members}
    over = solution.overrun
    note = f"{over:,} parameters over its own budget" if over else ""
    yield judge.variant("paper's DP, today's budget", sizes, note)


def _ours(classes: Sequence[DimClass], aim: str, budgets: int) -> Iterator[Sizes]:
    """The objective's choices from the tightest budget that can be met to one that never binds."""
    goal = objective(aim)
    offered = {group.name: goal.eligible(group) for group in classes}
    least = sum(_cost(group, offered, min) for group in classes)
    most = sum(_cost(group, offered, max) for group in classes)
    seen: set[tuple[int, ...]] = set()
    for step in range(budgets):
        limit = least + (most - least) * step // max(1, budgets - 1)
        outcome = solve_classes(goal, classes, offered, Limits(limit))
        sizes: dict[str, int | None] = {}
        for group in classes:
            option = outcome.chosen[group.name]
            if option is not None:
                size = None if option.fused else option.size
                sizes |= {dim.name: size for dim in group.members}
        key = tuple(-1 if size is None else size for size in sizes.values())
        if key not in seen:
            seen.add(key)
            yield sizes


def _cost(
    group: DimClass, offered: Mapping[str, Sequence[Option]], which: Callable[..., int]
) -> int:
    costs = [option.cost for option in offered[group.name]]
    return which(costs) if costs else group.before

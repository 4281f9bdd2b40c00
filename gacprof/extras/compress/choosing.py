"""Which sizes the factors or widths of a compression get.

A compressed model's inventory follows from its sizes alone. So the planner is given the model that
the method would write by itself, what every size keeps or loses of the *original* weights, and the
parameters that the ratio allows; it moves every size to one that the map knows to be served well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gacprof.checkpoint.inventory import Inventory, NewSizes
from gacprof.cliffmap.source import SizeSource
from gacprof.core.errors import CompressionError, PlanError
from gacprof.core.texts import latency_limits, multiple_of
from gacprof.diagnosing.predict import Predictor
from gacprof.extras.compress.align import within
from gacprof.extras.compress.factoring import Factoring
from gacprof.extras.compress.pruning import Pruning
from gacprof.extras.compress.request import BY_LOSS, CompressRequest
from gacprof.extras.compress.writing import inventory_of_output
from gacprof.planning import Constraints, Plan, PlanRequest
from gacprof.planning.making import make_plan, refuse_unreachable
from gacprof.planning.objectives import Lost
from gacprof.planning.problem import Compression
from gacprof.planning.request import WINDOW

Family = Factoring | Pruning

REHEARSAL_S = 5.0
"""A rehearsal that has found nothing wrong after so many seconds is given up."""

NOTHING_KNOWN = "the map knows no safe size for any dim"
"""How the planner says so; it cannot name a checkpoint that does not exist yet."""


def plan_of(
    family: Family,
    request: CompressRequest,
    objective: str,
    source: SizeSource,
    requested: NewSizes,
    *,
    rehearsal: bool = False,
) -> tuple[Plan, Inventory]:
    """The plan, and the inventory at the method's own sizes (``requested``): a safe size for every
    dim, within the ratio's budget and the request's limits on time.

    By what sizes add to the loss every size is on offer unless a window is asked for, and every
    dense weight. A ``rehearsal`` values all alike, before anything is worked out: which sizes there
    are and which limits can be met depends on no value. Raises :class:`CompressionError` where the
    map cannot align all of them, :class:`SolverError` where nothing fits.
    """
    dense, by_loss = family.reader.inventory, objective in BY_LOSS
    path = f"{dense.path} at the method's own sizes"
    own = inventory_of_output(path, family.tensors(requested), family.config(requested))
    window, rounded = request.window, None
    base = _movable(family, own, requested, all_of_them=by_loss and window is None)
    names = [dim.name for dim in base.dims]
    if window is None and by_loss:
        window = max([1.0, *(family.most[d.name] / d.size - 1 for d in base.dims)])
    kept, lost, scores = _values(family, objective, names, rehearsal)
    asked = replace(
        _asked(family, request, base, source, dense=by_loss),
        objective="loss" if by_loss else objective,
        budget_parameters=dense.parameters
        - family.parameters
        + family.budget(request.ratio, requested),
        window=WINDOW if window is None else window,
        latency_limit_us=request.latency_limit_us,
        dominate=request.dominate,
        time_limit=REHEARSAL_S if rehearsal else None,
        scores=scores,
    )
    if request.dominate is not None:
        sizes = family.rounded(requested, multiple_of(request.dominate))
        rounded = {name: sizes[name] for name in names}
    try:
        plan = make_plan(asked, Compression(dense, own, rounded, kept, lost))
    except PlanError as error:
        if NOTHING_KNOWN not in str(error):
            raise
        tokens = Predictor(source, base, request.tokens, request.dtype).tokens
        raise CompressionError(
            f"the map '{source.name}' knows no safe size for any of {len(base.dims)} dims: "
            f"{how_to_measure(source, base, tokens)}"
        ) from None
    _refuse_unknown(plan, base, source)
    return plan, own


def _movable(
    family: Family, own: Inventory, requested: NewSizes, *, all_of_them: bool
) -> Inventory:
    """The model of the method's ``own`` sizes, of its dims those alone that are planned: with
    ``all_of_them`` also those of weights that the method leaves dense, which may be cut."""
    start, base = requested, own
    if all_of_them and None in requested.values():
        start = {n: family.most[n] if size is None else size for n, size in requested.items()}
        base = inventory_of_output(own.path, family.tensors(start), family.config(start))
    return only(base, [name for name, size in start.items() if size is not None])


def _asked(
    family: Family, request: CompressRequest, base: Inventory, source: SizeSource, *, dense: bool
) -> PlanRequest:
    """What any plan of these dims is asked for."""
    constraints = Constraints(
        most={dim.name: family.most[dim.name] for dim in base.dims},
        fuse=family.fuses,
        preset=request.preset,
        dense=dense,
    )
    return PlanRequest(
        base, source, tokens=request.tokens, dtype=request.dtype, bench=request.bench,
        constraints=constraints,
    )  # fmt: skip


def _refuse_unknown(plan: Plan, base: Inventory, source: SizeSource) -> None:
    unknown = [c for c in plan.choices if c.safe is None or not (c.candidates or c.fusable)]
    if unknown:
        first = base.dim(unknown[0].dim)
        raise CompressionError(
            f"the map '{plan.map}' knows no safe size for {len(unknown)} of {len(plan.choices)} "
            f"dims, the first is {first.name}, wanted at {first.size}: "
            f"{how_to_measure(source, base, plan.workload.tokens)}"
        )


Curves = Mapping[str, Sequence[float]]


def _values(
    family: Family, objective: str, names: Sequence[str], alike: bool
) -> tuple[Curves, Lost | None, dict[str, float] | None]:
    """By dim name: the shares kept at the sizes 0, 1, 2 …, what these add to the loss where they
    are chosen by it, and the importance in Eq. 4."""
    by_loss, by_score = objective in BY_LOSS, objective == "gac"
    if alike:
        full = {name: family.most[name] for name in names}
        lost = {name: [(1 - r / most) ** 2 for r in range(most + 1)] for name, most in full.items()}
        kept = {name: [1 - each for each in curve] for name, curve in lost.items()}
        return kept, lost if by_loss else None, dict.fromkeys(names, 1.0) if by_score else None
    if by_loss:
        return family.kept, family.lost, None
    scores = family.scores() if by_score else {}
    return (
        weighted(family.kept, family.weights(), names),
        None,
        {name: scores[name] for name in names} if by_score else None,
    )


def refuse_unreachable_limits(family: Family, request: CompressRequest, source: SizeSource) -> None:
    """Raise :class:`InfeasibleBudget` where no sizes meet the request's limits on time, whatever
    they lose. Limits against the method's own sizes are left for later: these are not known yet."""
    given, dense, most = request.latency_limit_us, family.reader.inventory, dict(family.most)
    limits = [limit for limit in latency_limits(given) if limit.of != "own"]
    if not limits:
        return
    inventory = inventory_of_output(dense.path, family.tensors(most), family.config(most))
    asked = replace(
        _asked(family, request, only(inventory, list(most)), source, dense=True),
        window=1.0,
        latency_limit_us=",".join(x.text for x in limits) if isinstance(given, str) else given,
    )
    refuse_unreachable(asked, Compression(dense))


def weighted(
    kept: Mapping[str, Sequence[float]], weights: Mapping[str, float] | None, names: Sequence[str]
) -> Mapping[str, Sequence[float]]:
    """The shares kept, a lost one counting by its dim's weight, 1 for the heaviest of ``names``."""
    most = max((weights[name] for name in names), default=0.0) if weights else 0.0
    if weights is None or not most > 0:
        return kept
    return {
        name: [1 - weights[name] / most * (1 - share) for share in kept[name]] for name in names
    }


def only(inventory: Inventory, names: Sequence[str]) -> Inventory:
    """The inventory with these dims alone; what a method does not change is no dim of its."""
    wanted = set(names)
    modules = tuple(
        replace(module, dims=tuple(name for name in module.dims if name in wanted))
        for module in inventory.modules
    )
    dims = tuple(dim for dim in inventory.dims if dim.name in wanted)
    return replace(inventory, dims=dims, modules=modules)


def multiples_of(
    family: Family,
    request: CompressRequest,
    objective: str,
    requested: NewSizes,
    *,
    rehearsal: bool = False,
) -> NewSizes:
    """The sizes that lose the least by the objective within the ratio's budget, of all multiples of
    ``round_to``, whatever the device; by the loss the dense weight is on offer too. A ``rehearsal``
    values all alike, as that of :func:`plan_of`.

    Raises :class:`SolverError` where nothing fits.
    """
    names = list(family.most)
    kept, lost, _ = _values(family, objective, names, rehearsal)
    curves = kept if lost is None else {n: [-each for each in curve] for n, curve in lost.items()}
    sizes, costs, values = list[list[int | None]](), list[list[int]](), list[list[float]]()
    offered = family.multiples(request.round_to or 1, requested)
    for name, takes in offered.items():
        sizes.append([size for size in takes if size is not None or lost is not None])
        costs.append([takes[size] for size in sizes[-1]])
        curve = curves.get(name)  # none where there is one size
        values.append([0.0 if r is None or curve is None else curve[r] for r in sizes[-1]])
    room = family.budget(request.ratio, requested)
    none_fit = (
        f"no multiples of {request.round_to} fit the {room:,} parameters that the ratio leaves"
    )
    chosen = within(values, costs, room, none_fit)
    found = {name: row[j] for name, row, j in zip(offered, sizes, chosen, strict=True)}
    return {name: found[name] for name in names}


def how_to_measure(source: SizeSource, inventory: Inventory, counts: Iterable[int]) -> str:
    """The sweep that fills the map for these sizes at these token counts, and the rules of the same
    GPU, which need none; or why none would."""
    at = Predictor(source, inventory, dict.fromkeys(counts, 1.0))
    if at.noisy:
        return at.too_noisy
    sizes = [dim.size for dim in inventory.dims]
    tokens = ",".join(str(count) for count in counts)
    if all(dim.kind == "rank" for dim in inventory.dims):
        low, high = max(1, min(sizes) * 3 // 4), max(sizes) * 5 // 4
        how = (
            f"measure them with 'gacprof sweep --ranks DENSE --range {low}:{high} --tokens "
            f"{tokens} --out runs/ranks', or widen --window"
        )
    else:
        how = (
            "compress without --map first, and measure what comes out with 'gacprof sweep --for "
            f"OUT --tokens {tokens} --out runs/own'"
        )
    return f"{how}; {source.instead}" if source.instead else how

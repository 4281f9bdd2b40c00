"""Which sizes factors and widths get: of a compression here, and of other people's compressors.

A compressed model's inventory follows from its sizes alone. So the planner is given the model that
the method would write by itself, the spectra of the *original* weights, and the parameters that the
ratio allows; it moves every size to one that the map knows to be served well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.checkpoint.inventory import Inventory, NewSizes
from gacprof.cliffmap import candidates
from gacprof.cliffmap.candidates import Candidate, Use
from gacprof.cliffmap.source import SizeSource, rules_instead
from gacprof.core.errors import CompressionError, PlanError
from gacprof.core.texts import latency_limits
from gacprof.diagnosing.predict import Predictor, is_number
from gacprof.diagnosing.profiles import LEAST_REACH
from gacprof.diagnosing.sources import open_source
from gacprof.extras.compress.methods.method import Target
from gacprof.planning import Constraints, Plan, PlanRequest
from gacprof.planning.limits import References
from gacprof.planning.objectives import GAC_NEIGHBOURS, MAX_SCORE, Lost
from gacprof.planning.request import WINDOW
from gacprof.planning.solving import make_plan, refuse_unreachable
from gacprof.solver import InfeasibleBudget, solve

if TYPE_CHECKING:
    from gacprof.extras.compress.request import CompressRequest

NOTHING_KNOWN = "the map knows no safe size for any dim"
"""How the planner says so; it cannot name a checkpoint that does not exist yet."""


def only(inventory: Inventory, names: Sequence[str]) -> Inventory:
    """The inventory with these dims alone; what a method does not change is no dim of its."""
    wanted = set(names)
    modules = tuple(
        replace(module, dims=tuple(name for name in module.dims if name in wanted))
        for module in inventory.modules
    )
    dims = tuple(dim for dim in inventory.dims if dim.name in wanted)
    return replace(inventory, dims=dims, modules=modules)


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


def choose(
    inventory: Inventory,
    cliff_map: SizeSource,
    request: CompressRequest,
    *,
    objective: str,
    budget_parameters: int,
    kept: Mapping[str, Sequence[float]],
    lost: Lost | None,
    most: Mapping[str, int],
    scores: Mapping[str, float] | None,
    references: References,
    fuse: bool = True,
) -> Plan:
    """A safe size for every dim, within the budget, and within the request's limits on time too,
    which may be relative to ``references``.

    ``inventory`` is that of the model as the method would write it; ``fuse`` says whether a dense
    weight may take the place of a factor pair. By what sizes add to the loss (``lost``) every size
    up to ``most`` is on offer unless a window is asked for, and every dense weight. Raises
    :class:`CompressionError` where the map cannot align all of them, :class:`SolverError` where
    nothing fits.
    """
    window = WINDOW if request.window is None else request.window
    if lost is not None and request.window is None:
        window = max([1.0, *(most[d.name] / d.size - 1 for d in inventory.dims)])
    asked = PlanRequest(
        inventory,
        cliff_map,
        objective=objective,
        budget_parameters=budget_parameters,
        tokens=request.tokens,
        window=window,
        latency_limit_us=request.latency_limit_us,
        dominate=request.dominate,
        bench=request.bench,
        scores=scores,
        constraints=Constraints(
            most={d.name: most[d.name] for d in inventory.dims},
            fuse=fuse,
            preset=request.preset,
            dense=lost is not None,
        ),
    )
    try:
        plan = make_plan(asked, kept=kept, lost=lost, references=references)
    except PlanError as error:
        if NOTHING_KNOWN not in str(error):
            raise
        tokens = Predictor(cliff_map, inventory, request.tokens).tokens
        raise CompressionError(
            f"the map '{cliff_map.name}' knows no safe size for any of {len(inventory.dims)} dims: "
            f"{how_to_measure(cliff_map, inventory, tokens)}"
        ) from None
    unknown = [c for c in plan.choices if c.safe is None or not (c.candidates or c.fusable)]
    if unknown:
        first = inventory.dim(unknown[0].dim)
        raise CompressionError(
            f"the map '{plan.map}' knows no safe size for {len(unknown)} of {len(plan.choices)} "
            f"dims, the first is {first.name}, wanted at {first.size}: "
            f"{how_to_measure(cliff_map, inventory, plan.workload.tokens)}"
        )
    return plan


def refuse_unreachable_limits(
    inventory: Inventory,
    dense: Inventory,
    cliff_map: SizeSource,
    request: CompressRequest,
    most: Mapping[str, int],
    fuse: bool,
) -> None:
    """Raise :class:`InfeasibleBudget` where no sizes meet the request's limits on time, before
    anything is worked out. ``inventory`` is the model at its ``most``. Limits against the method's
    own sizes are left for later: these are not known yet."""
    given = request.latency_limit_us
    limits = [limit for limit in latency_limits(given) if limit.of != "own"]
    if not limits or not cliff_map.timed:
        return
    asked = PlanRequest(
        only(inventory, list(most)),
        cliff_map,
        tokens=request.tokens,
        window=1.0,
        latency_limit_us=",".join(x.text for x in limits) if isinstance(given, str) else given,
        bench=request.bench,
        constraints=Constraints(most=most, fuse=fuse, preset=request.preset, dense=True),
    )
    refuse_unreachable(asked, References("dense", dense))


def multiples(
    targets: Sequence[Target],
    lost: Lost,
    most: Mapping[str, int],
    multiple: int,
    budget: int,
    dense: bool,
) -> NewSizes:
    """The ranks that lose the least within a ``budget`` of parameters, of all multiples of one
    number up to each dim's ``most``; with ``dense`` the weight itself is on offer too.

    Raises :class:`SolverError` where nothing fits.
    """
    names, sizes, costs = list[str](), list[list[int | None]](), list[list[int]]()
    for target in targets:
        for name in target.dims:
            own: list[int | None] = list(range(multiple, most[name] + 1, multiple))
            if not own:
                own = [most[name]]
            names.append(name)
            sizes.append([*own, None] if dense else own)
            costs.append([target.parameters if r is None else r * target.unit for r in sizes[-1]])
    values = [
        [0.0 if r is None else -lost[name][r] for r in row]
        for name, row in zip(names, sizes, strict=True)
    ]
    chosen = solve(values, [(costs, budget)]).choice
    return {name: row[j] for name, row, j in zip(names, sizes, chosen, strict=True)}


def how_to_measure(cliff_map: SizeSource, inventory: Inventory, counts: Iterable[int]) -> str:
    """The sweep that fills the map for these sizes at these token counts, and the rules of the same
    GPU, which need none; or why none would."""
    view = Predictor(cliff_map, inventory, dict.fromkeys(counts, 1.0)).view
    if view.noisy:
        return next(note for note in view.notes if "noisy" in note)
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
    instead = rules_instead(cliff_map.environment) if not cliff_map.basis else ""
    return f"{how}; {instead}" if instead else how


SHARE_ERROR = 1e-3
"""By how much a share may pass 1: cumulated in half precision, a sum is off by about as much."""

Shape = tuple[int, int]
Score = float | Sequence[float]
Where = Shape | Sequence[Use]


def align(
    dims: Sequence[int],
    scores: Sequence[Score],
    costs: Sequence[int | Shape],
    cliff_map: SizeSource | str | Path,
    budget: int | None = None,
    *,
    uses: Sequence[Sequence[Use]] | None = None,
    window: float = WINDOW,
    tokens: Mapping[int, float] | Sequence[int] | None = None,
    dtype: str | None = None,
    most: Sequence[int] | None = None,
) -> list[int]:
    """One dim for each of a compressor's own sizes that the device serves well, in its order.

    ``dims`` are these sizes d*, of ranks or widths. ``costs`` are what they are dims of: the
    weight's shape (out, in) for a rank, whose unit then costs in + out parameters; or the
    parameters of one more unit, with ``uses`` to say which products the dim takes part in.
    ``budget`` is the most parameters that all dims may take; by default what ``dims`` take.

    ``scores`` say what a dim is worth. A number s is the importance in the paper's Eq. 4: the
    choice maximises Σ s·cost·(d − d*) among the two safe dims on either side of each d* (it is
    linear: a wider window would only send every dim to an end of it). A sequence is the share of
    quality kept at the sizes 0, 1, 2 …, such as the cumulated squared singular values over their
    sum: the choice then keeps the most, among all safe dims within ± ``window`` of d* that
    the sequence reaches. All scores are numbers or all are sequences. ``most`` bounds the dims.

    Raises :class:`MapError` with the sweep to run where the map does not hold a product,
    :class:`CompressionError` for arrays that do not fit each other or a size without a safe dim,
    :class:`SolverError` naming the nearest budget where none fits.
    """
    dims, costs, most, tokens = (whole(plain(given)) for given in (dims, costs, most, tokens))
    scores, window, budget = (plain(given) for given in (scores, window, budget))
    _check(dims, scores, costs, uses, most)
    _check_numbers(budget, window, tokens)
    loaded = open_source(cliff_map)
    units = [cost if isinstance(cost, int) else sum(cost) for cost in costs]
    known: dict[str, list[Candidate]] = {}
    offered = []
    for i, requested in enumerate(dims):
        where: Any = uses[i] if uses is not None else costs[i]
        key = repr(where)
        if key not in known:
            known[key] = _judged(where, loaded, tokens, dtype, _reach(dims, window))
        allowed = [c for c in known[key] if most is None or c.d <= most[i]]
        found = _offered(allowed, requested, scores[i], window)
        if not found:
            if known[key] and not allowed and most is not None:
                raise CompressionError(
                    f"most[{i}] is {most[i]}, and the least safe dim that '{loaded.name}' knows is "
                    f"{known[key][0].d}: raise it, or leave dim {i} out"
                )
            raise CompressionError(
                f"dim {i}, wanted at {requested}: {_nothing_near(loaded, allowed)}"
            )
        offered.append(found)
    requested_cost = sum(requested * unit for requested, unit in zip(dims, units, strict=True))
    room = requested_cost if budget is None else int(budget)
    weights = [[d * unit for d in row] for row, unit in zip(offered, units, strict=True)]
    values = [
        [_value(scores[i], units[i], dims[i], d) for d in row] for i, row in enumerate(offered)
    ]
    try:
        chosen = solve(values, [(weights, room)]).choice
    except InfeasibleBudget as error:
        raise InfeasibleBudget(
            f"no aligned dims fit {room:,} parameters (the sizes asked for take "
            f"{requested_cost:,}); the nearest "
            f"budget is {int(error.nearest):,}",
            error.resource,
            error.nearest,
        ) from None
    return [row[j] for row, j in zip(offered, chosen, strict=True)]


def _nothing_near(source: SizeSource, allowed: Sequence[Candidate]) -> str:
    nothing = f"'{source.name}' knows no safe dim near it"
    if not allowed:
        return f"{nothing}, nor any other"
    return f"{nothing}: its safe dims are from {allowed[0].d} to {allowed[-1].d} (a wider window)"


def plain(given: Any) -> Any:
    """Python's own numbers and lists, where a compressor has NumPy's or torch's."""
    if hasattr(given, "tolist"):
        return given.tolist()
    if isinstance(given, list | tuple):
        return [plain(each) for each in given]
    return given


def whole(given: Any) -> Any:
    """Floats that are whole as ints, such as those of ``np.array([59.0])``; the rest as it is."""
    if isinstance(given, list | tuple):
        return [whole(each) for each in given]
    return int(given) if isinstance(given, float) and given.is_integer() else given


def _check_numbers(budget: Any, window: Any, tokens: Any) -> None:
    if budget is not None and not (is_number(budget) and 0 < budget < float("inf")):
        raise CompressionError(f"the budget is {budget!r}: it must be a number of parameters")
    if not (is_number(window) and 0 <= window < float("inf")):
        raise CompressionError(f"the window is {window!r}: it must be a share, such as 0.25")
    if isinstance(tokens, list | Mapping) and not tokens:
        raise CompressionError("no token counts were given: leave tokens out, or name some")


def _check(
    dims: Sequence[int],
    scores: Sequence[Score],
    costs: Sequence[int | Shape],
    uses: Sequence[Sequence[Use]] | None,
    most: Sequence[int] | None,
) -> None:
    given: dict[str, Any] = {"dims": dims, "scores": scores, "costs": costs}
    given |= {name: each for name, each in (("uses", uses), ("most", most)) if each is not None}
    for name, array in given.items():
        if isinstance(array, str) or not isinstance(array, Sequence):
            raise CompressionError(f"the {name} are {array!r}: give a sequence, one for each dim")
        if len(array) != len(dims):
            raise CompressionError(f"{len(dims)} dims and {len(array)} {name}: give one for each")
    if not len(dims):
        raise CompressionError("no dims were given")
    for i, bound in enumerate(most or ()):
        if not is_number(bound, int) or bound < 1:
            raise CompressionError(f"most[{i}] is {bound!r}: bounds are positive whole numbers")
    for i, (requested, score, cost) in enumerate(zip(dims, scores, costs, strict=True)):
        if not is_number(requested, int) or requested < 1:
            raise CompressionError(f"dim {i} is {requested!r}: dims are positive whole numbers")
        if isinstance(score, int | float):
            if not is_number(score) or not 0 <= score <= MAX_SCORE:
                raise CompressionError(f"the score of dim {i} is {score!r}: it must be 0 or more")
        else:
            _check_curve(i, requested, score)
        if is_number(cost, int):
            if uses is None:
                raise CompressionError(
                    f"the cost of dim {i} is a number: give uses, which say what products it is "
                    "in, or the weight's shape (out, in) in its place"
                )
        else:
            _check_shape(i, requested, cost, uses is None)
    numbers = [isinstance(score, int | float) for score in scores]
    if len(set(numbers)) > 1:
        raise CompressionError(
            f"the score of dim {numbers.index(True)} is a number and that of dim "
            f"{numbers.index(False)} a curve, which cannot be added: give all as one of these"
        )


def _check_shape(i: int, requested: int, shape: Any, is_rank: bool) -> None:
    sides = shape if isinstance(shape, list) else ()
    if len(sides) != 2 or not all(is_number(side, int) and side > 0 for side in sides):
        raise CompressionError(f"the cost of dim {i} is {shape!r}, no shape (out, in)")
    if is_rank and requested > min(shape):
        raise CompressionError(
            f"dim {i}, wanted at {requested}, is beyond the full rank {min(shape)} of a weight of "
            f"shape {tuple(shape)}"
        )


def _check_curve(i: int, requested: int, curve: Any) -> None:
    """The share kept at 0, 1, 2 …, up to what is wanted of dim ``i`` at least."""
    if isinstance(curve, str) or not isinstance(curve, Sequence) or not len(curve):
        raise CompressionError(f"the score of dim {i} is {curve!r}: no number and no curve")
    for at, value in enumerate(curve):
        if not is_number(value) or not 0 <= value <= 1 + SHARE_ERROR:
            raise CompressionError(
                f"the curve of dim {i} is {value!r} at {at}: it is the share kept, from 0 to 1 "
                "(divide by the sum over all)"
            )
    if any(a > b for a, b in pairwise(curve)):
        raise CompressionError(f"the curve of dim {i} falls: it is the share kept at 0, 1, 2 …")
    if len(curve) <= requested:
        raise CompressionError(
            f"the curve of dim {i} ends at {len(curve) - 1}, before the {requested} that is "
            "wanted: give the share kept at every size from 0 to the full one"
        )


def _judged(
    where: Where,
    cliff_map: SizeSource,
    tokens: Mapping[int, float] | Sequence[int] | None,
    dtype: str | None,
    within: tuple[int, int],
) -> list[Candidate]:
    """Every known dim ``within`` these of a rank or of a width's uses, with its verdict."""
    from gacprof.diagnosing.ranks import safe_ranks

    if len(where) == 2 and all(is_number(size, int) for size in where):  # a shape
        return safe_ranks(tuple(where), cliff_map, tokens=tokens, dtype=dtype)
    uses: Iterable[Use] = where  # type: ignore[assignment]
    given = [use if dtype is None else replace(use, dtype=dtype) for use in uses]
    return [c for c in cliff_map.judge_jointly(given, *within) if c.safe]


def _reach(dims: Sequence[int], window: float) -> tuple[int, int]:
    """The first and the last size that any of the sizes may become."""
    reach = [max(4 * LEAST_REACH, round(requested * window)) for requested in dims]
    low = min(requested - far for requested, far in zip(dims, reach, strict=True))
    return max(1, low), max(requested + far for requested, far in zip(dims, reach, strict=True))


def _offered(
    allowed: Sequence[Candidate], requested: int, score: Score, window: float
) -> list[int]:
    """The dims to choose from, ascending."""
    if isinstance(score, int | float):
        exact = any(c.d == requested for c in allowed)  # it is one of those above
        above = GAC_NEIGHBOURS - exact
        found = candidates.choose(allowed, requested, below=GAC_NEIGHBOURS, above=above)
    else:
        reach = max(LEAST_REACH, round(requested * window))
        found = candidates.choose(
            allowed, requested, window=(max(1, requested - reach), requested + reach)
        )
        found = [c for c in found if c.d < len(score)]
    return [c.d for c in found]


def _value(score: Score, unit: int, requested: int, d: int) -> float:
    if isinstance(score, int | float):
        return float(score) * unit * (d - requested)
    return float(score[d])

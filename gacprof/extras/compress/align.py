"""``align``: sizes that the device serves well, for compressors that choose their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from math import inf
from pathlib import Path
from typing import Any

from gacprof.cliffmap import candidates
from gacprof.cliffmap.source import Candidate, SizeSource, Use
from gacprof.core.errors import CompressionError, MapError, short
from gacprof.diagnosing.predict import is_number
from gacprof.diagnosing.profiles import LEAST_REACH
from gacprof.diagnosing.sources import open_source
from gacprof.planning.objectives import GAC_NEIGHBOURS, MAX_SCORE
from gacprof.planning.request import WINDOW
from gacprof.solver import InfeasibleBudget, solve

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
    numbers = _faults_of_numbers(budget, window, tokens)
    for fault in chain(numbers, _faults(dims, scores, costs, uses, most)):
        raise CompressionError(fault)
    if not (isinstance(cliff_map, str | Path) or hasattr(cliff_map, "view")):
        raise MapError(
            f"cliff_map is {short(repr(cliff_map))}: give a map or its file, or "
            "gacprof.rule_table('h100') for the rules of a GPU"
        )
    source = open_source(cliff_map)
    units = [cost if isinstance(cost, int) else sum(cost) for cost in costs]
    known: dict[str, list[Candidate]] = {}
    offered = []
    for i, requested in enumerate(dims):
        where: Any = uses[i] if uses is not None else costs[i]
        key = repr(where)
        if key not in known:
            known[key] = _judged(where, source, tokens, dtype, _reach(dims, window))
        allowed = [c for c in known[key] if most is None or c.d <= most[i]]
        offered.append(_offered(allowed, requested, scores[i], window))
        if not offered[-1]:
            bound = None if most is None else most[i]
            raise _nothing_near(i, requested, bound, source.name, known[key], allowed)
    values = [
        [_value(scores[i], units[i], dims[i], d) for d in row] for i, row in enumerate(offered)
    ]
    asked_for = sum(requested * unit for requested, unit in zip(dims, units, strict=True))
    room = asked_for if budget is None else int(budget)
    weights = [[d * unit for d in row] for row, unit in zip(offered, units, strict=True)]
    none_fit = f"no aligned dims fit {room:,} parameters (the sizes asked for take {asked_for:,})"
    chosen = within(values, weights, room, none_fit)
    return [row[j] for row, j in zip(offered, chosen, strict=True)]


def within(
    values: Sequence[Sequence[float]], costs: Sequence[Sequence[int]], room: int, none_fit: str
) -> Sequence[int]:
    """By class the place of its option, so that all are of the most value that there is room for.
    Raises :class:`InfeasibleBudget` that says ``none_fit``, and the nearest budget."""
    try:
        return solve(values, [(costs, room)]).choice
    except InfeasibleBudget as error:
        words = f"{none_fit}; the nearest budget is {int(error.nearest):,}"
        raise InfeasibleBudget(words, error.resource, error.nearest) from None


def _nothing_near(
    i: int,
    requested: int,
    most: int | None,
    source: str,
    known: Sequence[Candidate],
    allowed: Sequence[Candidate],
) -> CompressionError:
    """That a dim has no safe size, of all that are ``known`` and of those that are ``allowed``."""
    if known and not allowed:
        return CompressionError(
            f"most[{i}] is {most}, and the least safe dim that '{source}' knows is {known[0].d}: "
            f"raise it, or leave dim {i} out"
        )
    others = ", nor any other"
    if allowed:
        others = f": its safe dims are from {allowed[0].d} to {allowed[-1].d} (a wider window)"
    return CompressionError(
        f"dim {i}, wanted at {requested}: '{source}' knows no safe dim near it{others}"
    )


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


def _faults_of_numbers(budget: Any, window: Any, tokens: Any) -> Iterator[str]:
    if budget is not None and not (is_number(budget) and 1 <= budget < inf):
        yield f"the budget is {budget!r}: it must be a number of parameters, 1 or more"
    if not (is_number(window) and 0 <= window < inf):
        yield f"the window is {window!r}: it must be a share, such as 0.25"
    if isinstance(tokens, list | Mapping) and not tokens:
        yield "no token counts were given: leave tokens out, or name some"


def _faults(
    dims: Sequence[int],
    scores: Sequence[Score],
    costs: Sequence[Any],
    uses: Sequence[Sequence[Use]] | None,
    most: Sequence[int] | None,
) -> Iterator[str]:
    """What is wrong with the arrays. Only the first is sure: the next may come of it."""
    arrays: dict[str, Any] = {"dims": dims, "scores": scores, "costs": costs}
    arrays |= {name: each for name, each in (("uses", uses), ("most", most)) if each is not None}
    for name, array in arrays.items():
        if isinstance(array, str) or not isinstance(array, Sequence):
            yield f"the {name} are {array!r}: give a sequence, one for each dim"
        if len(array) != len(dims):
            yield f"{len(dims)} dims and {len(array)} {name}: give one for each"
    if not len(dims):
        yield "no dims were given"
    for i, each in enumerate(uses or ()):
        if not (isinstance(each, list | tuple) and each and all(isinstance(u, Use) for u in each)):
            yield f"uses[{i}] is {each!r}: give the products of dim {i}, a sequence of Use"
    for i, bound in enumerate(most or ()):
        if not is_number(bound, int) or bound < 1:
            yield f"most[{i}] is {bound!r}: bounds are positive whole numbers"
    for i, (requested, score, cost) in enumerate(zip(dims, scores, costs, strict=True)):
        if not is_number(requested, int) or requested < 1:
            yield f"dim {i} is {requested!r}: dims are positive whole numbers"
        elif not isinstance(score, int | float):
            yield from _faults_of_curve(i, requested, score)
        elif not is_number(score) or not 0 <= score <= MAX_SCORE:
            yield f"the score of dim {i} is {score!r}: it must be from 0 to {MAX_SCORE:g}"
        if is_number(cost, int):
            if uses is None:
                yield (
                    f"the cost of dim {i} is a number: give uses, which say what products it is "
                    "in, or the weight's shape (out, in) in its place"
                )
        elif not _is_shape(cost):
            yield f"the cost of dim {i} is {cost!r}, no shape (out, in)"
        elif uses is None and requested > min(cost):
            yield (
                f"dim {i}, wanted at {requested}, is beyond the full rank {min(cost)} of a weight "
                f"of shape {tuple(cost)}"
            )
    numbers = [isinstance(score, int | float) for score in scores]
    if len(set(numbers)) > 1:
        yield (
            f"the score of dim {numbers.index(True)} is a number and that of dim "
            f"{numbers.index(False)} a curve, which cannot be added: give all as one of these"
        )


def _is_shape(cost: Any) -> bool:
    sides = cost if isinstance(cost, list) else ()
    return len(sides) == 2 and all(is_number(side, int) and side > 0 for side in sides)


def _faults_of_curve(i: int, requested: int, curve: Any) -> Iterator[str]:
    """It is the share kept at 0, 1, 2 …, up to what is wanted of dim ``i`` at least."""
    if isinstance(curve, str) or not isinstance(curve, Sequence) or not len(curve):
        yield f"the score of dim {i} is {curve!r}: no number and no curve"
        return
    for at, value in enumerate(curve):
        if not is_number(value) or not 0 <= value <= 1 + SHARE_ERROR:
            yield (
                f"the curve of dim {i} is {value!r} at {at}: it is the share kept, from 0 to 1 "
                "(divide by the sum over all)"
            )
            return
    if any(a > b for a, b in pairwise(curve)):
        yield f"the curve of dim {i} falls: it is the share kept at 0, 1, 2 …"
    if len(curve) <= requested:
        yield (
            f"the curve of dim {i} ends at {len(curve) - 1}, before the {requested} that is "
            "wanted: give the share kept at every size from 0 to the full one"
        )


def _judged(
    where: Where,
    source: SizeSource,
    tokens: Mapping[int, float] | Sequence[int] | None,
    dtype: str | None,
    within: tuple[int, int],
) -> list[Candidate]:
    """Every known dim ``within`` these of a rank or of a width's uses, with its verdict."""
    from gacprof.diagnosing.ranks import safe_ranks

    if len(where) == 2 and all(is_number(size, int) for size in where):  # a shape
        return safe_ranks(tuple(where), source, tokens=tokens, dtype=dtype)
    uses: Iterable[Use] = where  # type: ignore[assignment]
    given = [use if dtype is None else replace(use, dtype=dtype) for use in uses]
    return [c for c in source.judge_jointly(given, *within) if c.safe]


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

"""``align``: sizes served well in place of a compressor's own, within the same parameters."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from gacprof.core.errors import PlanError
from gacprof.core.sizes import SizeSource, Use
from gacprof.core.verdicts import as_verdicts
from gacprof.diagnosing.safe_ranks import safe_ranks
from gacprof.diagnosing.sizes import window_of
from gacprof.diagnosing.source import open_source
from gacprof.planning.solver import solve
from gacprof.workload.deployment import Tokens

Score = float | Sequence[float]
Cost = int | tuple[int, int]
NEIGHBOURS = 2  # safe sizes on either side of a size
# by how much a share may pass 1: the error of a sum cumulated in half precision
SHARE_ERROR = 1e-3


def align(
    dims: Sequence[int],
    scores: Sequence[Score],
    costs: Sequence[Cost],
    source: SizeSource | str | Path,
    budget: int | None = None,
    *,
    uses: Sequence[Sequence[Use]] | None = None,
    window: float = 0.25,
    tokens: Tokens | None = None,
    dtype: str | None = None,
) -> list[int]:
    """Return sizes served well in place of a compressor's own, in their order.

    Parameters
    ----------
    dims
        The compressor's own sizes d*, of ranks or widths.
    scores
        All numbers s, importances in the GAC paper's Eq. 4: the choice maximises Σ s·cost·(d − d*)
        among the two safe sizes on either side of each d*. Or all sequences, the shares of quality
        kept at the sizes 0, 1, 2, …, such as cumulated squared singular values over their sum: the
        choice keeps the most among the safe sizes within ``window``.
    costs
        A rank's weight as its shape (out, in); or, with ``uses``, the parameters of one more unit
        of a width.
    source
        A map (file, run folder or shipped name) or a GPU's name.
    budget
        The most parameters of all dims together; by default those of ``dims``.
    uses
        The products that each dim is a part of, where costs are numbers.
    window
        How far from d* other sizes are looked for, as a fraction of it (32 at least).
    tokens
        Token counts; by default those of the source.
    dtype
        The type of the products of ranks; by default the source's only one.

    Raises
    ------
    MapError
        The source knows no size of such a product.
    PlanError
        The sequences do not fit each other, a dim has no safe size, or none fits the budget.

    Examples
    --------
    >>> ranks, weights = [107, 93, 121], [(1024, 1024)] * 3
    >>> gacprof.align(ranks, [1.0, 1.0, 1.0], weights, "h100")  # all weights matter alike
    [112, 112, 96]
    """
    size_source = open_source(source)
    curves: list[float | list[float]] = [np.asarray(score, float).tolist() for score in scores]
    shapes = [np.asarray(cost, int).tolist() for cost in costs]
    _check_arrays(dims, curves, shapes, uses)
    values = []
    takes = []
    options = []
    room = 0
    for i, (size, score, cost) in enumerate(zip(dims, curves, shapes, strict=True)):
        dim = int(size)
        low, high = window_of(dim, window)
        if uses is not None:
            verdicts = size_source.judge(uses[i], size_source.sizes(uses[i], low, high))
            sizes = as_verdicts(verdicts, size_source.tolerance).offered.tolist()
        else:
            sizes = safe_ranks(cost, size_source, tokens=tokens, dtype=dtype, low=low, high=high)
        unit = int(np.sum(cost))
        if isinstance(score, list):
            sizes = [size for size in sizes if size < len(score)]
            values.append([score[size] for size in sizes])
        else:
            # Eq. 4 is linear: of more sizes it would always choose the window's first or last
            below = [size for size in sizes if size < dim][-NEIGHBOURS:]
            sizes = below + [size for size in sizes if size >= dim][:NEIGHBOURS]
            values.append([score * unit * (size - dim) for size in sizes])
        if not sizes:
            raise PlanError(f"{size_source.name} knows no safe size near dim {i} of {dim}")
        options.append(sizes)
        takes.append([size * unit for size in sizes])
        room += dim * unit
    choice = solve(values, [(takes, room if budget is None else budget)]).choice
    return [sizes[index] for sizes, index in zip(options, choice, strict=True)]


def _check_arrays(
    dims: Sequence[int],
    scores: Sequence[float | list[float]],
    costs: Sequence[Cost],
    uses: Sequence[Sequence[Use]] | None,
) -> None:
    """Raise :class:`PlanError` for sequences that do not fit each other."""
    lengths = {len(dims), len(scores), len(costs), len(dims if uses is None else uses)}
    if len(lengths) > 1 or not len(dims):
        raise PlanError("give a score, a cost and, where there are any, uses for each of the dims")
    if len({type(score) for score in scores}) > 1:
        raise PlanError("scores are all numbers or all shares by size: they cannot be added")
    if uses is None and any(np.ndim(cost) == 0 for cost in costs):
        raise PlanError("costs are numbers: give uses too, or the weights' shapes (out, in)")
    for i, score in enumerate(score for score in scores if isinstance(score, list)):
        rises = all(a <= b for a, b in pairwise(score))
        if not rises or score[0] < 0 or score[-1] > 1 + SHARE_ERROR:
            raise PlanError(f"scores[{i}] is no share of quality by size, rising from 0 to 1")

"""``align``: sizes served well in place of a compressor's own, within the same parameters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from gacprof.core.errors import PlanError
from gacprof.core.sizes import SizeSource, Use
from gacprof.diagnosing.safe_ranks import safe_ranks
from gacprof.diagnosing.sizes import window_of
from gacprof.diagnosing.source import open_source
from gacprof.planning.solver import solve
from gacprof.workload.deployment import Tokens

Score = float | Sequence[float]
Cost = int | tuple[int, int]
Shares = float | list[float]
"""A score in Python's own numbers."""

NEIGHBOURS = 2
"""Safe sizes on either side of a requested one that Eq. 4 chooses from. It is linear: from a wider
choice it would send every dim to an end."""

SHARE_ERROR = 1e-3
"""By how much a share may pass 1: cumulated in half precision, a sum is off by about as much."""


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
        A dim's worth. A number s is the importance in the GAC paper's Eq. 4: the choice maximises
        Σ s·cost·(d − d*) among the two safe sizes on either side of each d*. A sequence is the
        share of quality kept at the sizes 0, 1, 2, …, such as cumulated squared singular values
        over their sum: the choice keeps the most among the safe sizes within ``window``. All
        scores are numbers, or all are sequences.
    costs
        A rank's weight as its shape (out, in), one more rank costing in + out parameters; or the
        parameters of one more unit of a width, with ``uses``.
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
    """
    size_source = open_source(source)
    plain_scores: list[Shares] = [np.asarray(score, float).tolist() for score in scores]
    plain_costs = [np.asarray(cost, int).tolist() for cost in costs]
    _check_arrays(dims, plain_scores, plain_costs, uses)
    values = []
    takes = []
    options = []
    room = 0
    for i, (dim, score, cost) in enumerate(
        zip(map(int, dims), plain_scores, plain_costs, strict=True)
    ):
        low, high = window_of(dim, window)
        if uses is not None:
            verdicts = size_source.judge(uses[i], size_source.sizes(uses[i], low, high))
            sizes = [v.size for v in verdicts if v.verdict == "safe"]
        else:
            sizes = safe_ranks(cost, size_source, tokens=tokens, dtype=dtype, low=low, high=high)
        sizes = _offered(sizes, dim, score)
        if not sizes:
            raise PlanError(f"{size_source.name} knows no safe size near dim {i} of {dim}")
        unit = int(np.sum(cost))
        options.append(sizes)
        takes.append([size * unit for size in sizes])
        if isinstance(score, list):
            values.append([score[size] for size in sizes])
        else:
            values.append([score * unit * (size - dim) for size in sizes])
        room += dim * unit
    choice = solve(values, [(takes, room if budget is None else budget)]).choice
    return [sizes[index] for sizes, index in zip(options, choice, strict=True)]


def _check_arrays(
    dims: Sequence[int],
    scores: Sequence[Shares],
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
    for i, score in enumerate(scores):
        if not isinstance(score, list):
            continue
        rises = all(a <= b for a, b in pairwise(score))
        if not rises or score[0] < 0 or score[-1] > 1 + SHARE_ERROR:
            raise PlanError(f"scores[{i}] is no share of quality by size, rising from 0 to 1")


def _offered(sizes: Sequence[int], dim: int, score: Shares) -> list[int]:
    """The safe sizes to choose from: those that a curve reaches, or next to the dim by Eq. 4."""
    if isinstance(score, list):
        return [size for size in sizes if size < len(score)]
    below = [size for size in sizes if size < dim][-NEIGHBOURS:]
    return below + [size for size in sizes if size >= dim][:NEIGHBOURS]

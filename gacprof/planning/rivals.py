"""What else one could do: the compressors' own rounding, and the paper's dynamic programming."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gacprof.checkpoint.inventory import Dim, Inventory
from gacprof.core.points import MAX_DIM
from gacprof.planning.classes import DimClass
from gacprof.planning.judging import Judge, Variant
from gacprof.planning.objectives import Gac
from gacprof.solver import solve_gac

MULTIPLES = (8, 64)
PAPER = "paper's DP, today's budget"


def naive(judge: Judge, dims: Sequence[Dim]) -> Iterator[Variant]:
    """What the compressors' own flags do: every dim to a multiple, up, down or to the nearest.

    A rank is raised to no more than is of use (:attr:`Dim.most`).
    """
    for multiple in MULTIPLES:
        for way, rounded in (
            ("up", lambda d, m: -(-d // m) * m),
            ("down", lambda d, m: max(m, d // m * m)),
            ("nearest", lambda d, m: max(m, (d + m // 2) // m * m)),
        ):
            sizes: dict[str, int | None] = {
                dim.name: min(rounded(dim.size, multiple), dim.most or MAX_DIM)
                for dim in dims
                if dim.padding == "exact"
            }
            yield judge.variant(f"{way} to {multiple}", sizes)


def paper(
    judge: Judge,
    classes: Sequence[DimClass],
    inventory: Inventory,
    scores: Mapping[str, float] | None,
) -> Iterator[Variant]:
    """Algorithm 1 of arXiv 2604.09595: Eq. 4 by dynamic programming in units of 8·M_min, M_min
    the fewest rows of a weight. A cut whose loss is not known (of a width) is not offered to it,
    so that its choice can be judged."""
    goal = Gac(scores)
    free = [(g, [o for o in goal.eligible(g) if o.kept is not None]) for g in classes]
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
    yield judge.variant(PAPER, sizes, f"{over:,} parameters over its own budget" if over else "")

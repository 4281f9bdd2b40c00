"""The verdict on a size by its tier and the tiers of larger ones.

A size is *safe* where it is of tier 1, the best there is, and nothing leaves that open;
*misaligned* where a larger size within reach is of a better tier, or no kernel serves it at all;
*undecided* where something else holds it in a worse tier, or what serves it has steps that nobody
knows. Of what no kernel serves, nor any size near it, nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from gacprof.cliffmap.source import SizeCost
from gacprof.core.points import Point
from gacprof.rules import gemm, serve
from gacprof.rules.target import RefusedError, Target

REACH = 64
"""How far above a size a better one is looked for, in units of one shard: templates of attention
are as far apart, alignments repeat earlier."""
GEMMS = ("linear", "bmm", "experts", "quantised")
TOKEN_AXES = ("M", "q_len", "kv_len", "tokens", "rows", "batch")


def judge_tier(
    size: int, last: int, tier_of: Callable[[int], int | None], unsure: Callable[[int, int], str]
) -> SizeCost:
    """The verdict on a size beside those up to ``last``. ``tier_of`` gives a size's tier, None
    where no kernel serves it; ``unsure`` why that size, of that tier, may be served worse than
    another of it, empty where it may not."""
    tier = tier_of(size)
    why = "" if tier is None else unsure(size, tier)
    if why or tier == 1:
        return SizeCost(size, verdict="undecided" if why else "safe", tier=tier, why=why)
    for larger in range(size + 1, last + 1):
        better = tier_of(larger)
        if better is not None and (tier is None or better < tier):
            why = f"{larger} is of tier {better}"
            return SizeCost(size, verdict="misaligned", tier=tier, why=why)
    if tier is None:
        return SizeCost(size, missing=f"no kernel serves {size}, nor a size near it")
    why = f"of tier {tier}, and so is every larger size near it: something else holds it there"
    return SizeCost(size, verdict="undecided", tier=tier, why=why)


def judged(at: Point, axis: str, dims: Sequence[int], target: Target) -> dict[int, SizeCost]:
    """An operator's point judged at each of these sizes of one axis. The mechanism of what is
    refused is the reason; sizes that nothing is known of are left out.

    Rules say nothing of steps along token counts: such a size is never safe. Raises
    :class:`NoRuleError`.
    """
    rows = axis in ("K", "N") and at.operator in GEMMS

    @cache
    def served(d: int) -> tuple[int | None, bool, str]:
        try:
            found = serve(at.with_dim(axis, d), target)
        except RefusedError as error:
            return None, False, str(error)
        return found.tier, found.open or axis in TOKEN_AXES, found.mechanism

    def unsure(d: int, tier: int) -> str:
        is_open = served(d)[1] or (tier == 1 and rows and not gemm.is_sure(at.dtype, d))
        return "its steps are not known" if is_open else ""

    costs = (judge_tier(d, d + REACH, lambda size: served(size)[0], unsure) for d in dims)
    return {c.size: replace(c, mechanism=served(c.size)[2]) for c in costs if c.verdict}

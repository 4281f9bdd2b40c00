"""Judge sizes for a GPU that is not at hand, by the alignment of its kernels: tiers, no latencies.

A size is *misaligned* where a larger one within reach is of a better tier; *unknown* where no
kernel serves it or a larger one; else *undecided*: a size of the best tier may be chosen, but what
its tiles cost only a measurement tells (on an H200 multiples of 64 lose up to 14 %). What
misaligned sizes cost is estimated by others' measurements where there are enough (``penalties``).
"""

from collections.abc import Sequence
from math import gcd, lcm
from typing import TYPE_CHECKING

from gacprof.core.dtypes import STORED_AS, compute_dtype
from gacprof.core.sizes import TOLERANCE, Gemm, Interval, SizeVerdict, Use
from gacprof.hardware.architectures import tiers_of
from gacprof.hardware.datasheet import gpu_facts
from gacprof.kernels import attention

if TYPE_CHECKING:
    from gacprof.core.verdicts import Verdicts


class Rules:
    """The rules of one GPU, as a :class:`~gacprof.core.sizes.SizeSource`. They judge attention by a
    ``torch`` release, by default the newest. Raises :class:`ConfigError` for what is not known."""

    tokens: Sequence[int] = ()
    tolerance = TOLERANCE

    def __init__(self, gpu: str, torch: str | None = None) -> None:
        facts = gpu_facts(gpu)
        self.name = facts.key
        self.arch = facts.arch
        self.torch = attention.release(torch)
        self.provenance = f"by rules for {facts.arch} and torch {self.torch}, not measured"
        self._tiers = tiers_of(facts.arch)
        self.dtypes: Sequence[str] = tuple(self._tiers.tiers)

    def sizes(self, uses: Sequence[Use], low: int, high: int) -> Sequence[int]:
        """Return the sizes within [low, high] whose own sides are all of the best tier."""
        step, units = 1, []
        for use in uses:
            if use.dtype not in self._tiers.tiers:
                return ()
            best = self._tiers.tiers[use.dtype][0]
            for side, multiple in ((use.N, best.N), (use.K, best.K)):
                if side.times:
                    unit = multiple * side.tp
                    units.append((side, unit))
                    step = lcm(step, unit // gcd(unit, side.times))
        for first in range(max(low, 1), max(low, 1) + step):
            if all((side.others + side.times * first) % unit == 0 for side, unit in units):
                return range(first, high + 1, step)
        return ()

    def judge(self, uses: Sequence[Use], sizes: Sequence[int]) -> "Verdicts | list[SizeVerdict]":
        """Return the verdicts on ascending sizes of a dim, each by its worst use."""
        unknown = [use.dtype for use in uses if use.dtype not in self._tiers.tiers]
        if unknown or not uses:
            reason = f"{self.name} has no rules for {unknown[0]}" if unknown else "feeds no product"
            return [SizeVerdict(size, "unknown", reason=reason, cause="no_rules") for size in sizes]
        from gacprof.kernels.judging import judge_by_tiers

        return judge_by_tiers(self.name, self._tiers, uses, sizes) if len(sizes) else []

    def latency_us(self, gemm: Gemm, tokens: int, dtype: str) -> Interval | None:
        """Return None: rules know no latency."""
        return None

    def head_dim(self, head_dim: int, heads: int, kv_heads: int, dtype: str) -> SizeVerdict:
        """Return the verdict on an attention's head_dim, in causal prefill without a mask."""
        stored = STORED_AS[compute_dtype(dtype)]
        if stored not in attention.ATTENTION_DTYPES:
            reason = f"PyTorch's attention takes no {stored}"
            return SizeVerdict(head_dim, "unknown", reason=reason, cause="unserved")
        call = attention.AttentionCall(
            self.name, self.arch, self.torch, stored, head_dim, heads, kv_heads
        )
        return attention.judge_head_dim(call)

"""Sizes of a GPU that is not at hand, by the alignment of its kernels: tiers, never latencies.

A size is *safe* where every product that it feeds is of the best tier, is a multiple of 128 bytes,
and has more than a few rows; *misaligned* where a larger size within reach is of a better tier;
*unknown* where no kernel serves it or a larger one; *undecided* where another side holds it in a
worse tier, or the best tier alone does not make it safe. Token counts are no rows of a matrix:
nothing is said of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import gcd, lcm
from typing import Protocol

from gacprof.core.dtypes import compute_dtype
from gacprof.core.errors import ConfigError
from gacprof.core.sizes import TOLERANCE, Gemm, Interval, SizeVerdict, Use, Verdict
from gacprof.gpus.architectures import Tier, tiers_of
from gacprof.gpus.datasheet import gpu_facts
from gacprof.kernels import attention

REACH = 64
"""How far above a size a better one is looked for, in units of one TP rank: alignments repeat
earlier."""
FEW_ROWS = 16
"""Products of at most so many rows are bound by loads and launches: 5 to 15 % of the aligned sizes
that were measured lose more than 2 % to a larger one, with more rows than 256 1 to 6 %
(aiconfigurator-core 0.12.0, A100 and H100)."""
HALVES = ("float16", "bfloat16")
NOT_SERVED = 99
"""The tier of what no kernel takes: worse than all others."""


class Times(Protocol):
    """Measured latencies of products, of whatever provenance."""

    provenance: str

    def latency_us(self, gemm: Gemm, tokens: int, dtype: str) -> Interval | None:
        """The latency of one product; None where it is not known."""


class Rules:
    """The rules of one GPU of the data sheet, as a :class:`~gacprof.core.sizes.SizeSource`.

    Parameters
    ----------
    gpu
        A GPU's name in the data sheet: ``h100``, ``rtx4090``.
    torch
        The PyTorch release whose attention kernels serve; None for the newest that was read.
    times
        Latencies that others measured; None for none.

    Raises
    ------
    ConfigError
        For a GPU or release that is not known.
    """

    tokens: Sequence[int] = ()
    tolerance = TOLERANCE

    def __init__(self, gpu: str, torch: str | None = None, times: Times | None = None) -> None:
        facts = gpu_facts(gpu)
        self.name = facts.key
        self.arch = facts.arch
        self.torch = attention.release(torch)
        self.times = times
        self.provenance = f"by rules for {facts.arch} and torch {self.torch}, not measured"
        if times is not None:
            self.provenance += f"; latencies: {times.provenance}"
        self._tiers = tiers_of(facts.arch)
        self.dtypes: Sequence[str] = tuple(self._tiers.tiers)

    def tiers(self, dtype: str) -> tuple[Tier, ...]:
        """The tiers of a dtype, the best first. Raises :class:`ConfigError` for one without any."""
        if dtype not in self._tiers.tiers:
            dtype = compute_dtype(dtype)  # of another spelling
        if dtype not in self._tiers.tiers:
            raise ConfigError(f"{self.name} has no rules for {dtype}, of {', '.join(self.dtypes)}")
        return self._tiers.tiers[dtype]

    def tier(self, dtype: str, *, tokens: int, n: int, k: int) -> int:
        """The tier of a product, from 0, the best; :data:`NOT_SERVED` where no kernel takes it."""
        tiers = self.tiers(dtype)
        sides = [n, k]
        if tokens == 1 and dtype in HALVES:
            sides = [k]  # one row of y is not stored in rows
        worst = 0
        for size in sides:
            fitting = [i for i, tier in enumerate(tiers) if size % tier.multiple == 0]
            worst = max(worst, min(fitting, default=NOT_SERVED))
        unsplit = dtype in HALVES and tokens > 1 and k >= self._tiers.unsplit_k
        if unsplit and tokens * n * k < self._tiers.unsplit_work:
            worst += len(tiers)
        return worst

    def sizes(self, uses: Sequence[Use], low: int, high: int) -> Sequence[int]:
        """The sizes within [low, high] whose own sides are all of the best tier."""
        step, units = 1, []
        for use in uses:
            if use.dtype not in self._tiers.tiers:
                return ()
            for side in (use.N, use.K):
                if side.times:
                    unit = self.tiers(use.dtype)[0].multiple * side.tp
                    units.append((side, unit))
                    step = lcm(step, unit // gcd(unit, side.times))
        for first in range(max(low, 1), max(low, 1) + step):
            if all((side.others + side.times * first) % unit == 0 for side, unit in units):
                return range(first, high + 1, step)
        return ()

    def judge(self, uses: Sequence[Use], sizes: Sequence[int]) -> list[SizeVerdict]:
        """The verdict on each of these sizes of a dim, by its worst use."""
        unknown = [use.dtype for use in uses if use.dtype not in self._tiers.tiers]
        if unknown or not uses:
            reason = f"{self.name} has no rules for {unknown[0]}" if unknown else "feeds no product"
            return [SizeVerdict(size, "unknown", reason=reason) for size in sizes]
        reach = REACH * max(side.tp for use in uses for side in (use.N, use.K))
        tier_at = cache(lambda size: self._served(uses, size))
        verdicts = []
        for size in sizes:
            tier, kernel = tier_at(size)
            larger_sizes = range(size + 1, size + reach + 1 if tier else 0)  # none is better than 0
            better = next((larger for larger in larger_sizes if tier_at(larger)[0] < tier), 0)
            doubt = self._doubt(uses, size) if tier == 0 else "another side holds it there"
            verdict: Verdict = "undecided" if doubt else "safe"
            if better:
                verdict, doubt = "misaligned", f"{better} is of a better tier"
            elif tier == NOT_SERVED:
                verdict, doubt = "unknown", ""
            reason = "; ".join(filter(None, (kernel, doubt)))
            verdicts.append(SizeVerdict(size, verdict, reason=reason))
        return verdicts

    def _served(self, uses: Sequence[Use], size: int) -> tuple[int, str]:
        """The tier of the worst use of a size, and its kernels or why none serve it."""
        worst = (-1, "")
        for use in uses:
            n, k = use.at(size) or (0, 0)
            if not n:
                return NOT_SERVED, f"TP ranks cannot share {size} evenly"
            tiers = self.tiers(use.dtype)
            tier = self.tier(use.dtype, tokens=use.tokens, n=n, k=k)
            kernel = str(tiers[tier % len(tiers)])
            if tier >= NOT_SERVED:
                return NOT_SERVED, f"no kernel serves N={n}, K={k} in {use.dtype}"
            if tier >= len(tiers):
                kernel = f"{kernel}; K not split"
            worst = max(worst, (tier, kernel))
        return worst

    def _doubt(self, uses: Sequence[Use], size: int) -> str:
        """Why a size of the best tier is not safe; empty where it is."""
        if max(use.tokens for use in uses) <= FEW_ROWS:
            return f"at most {FEW_ROWS} tokens: bound by loads and launches"
        for use in uses:
            multiple = self._tiers.sure[use.dtype]
            lengths = [side.at(size) for side in (use.N, use.K) if side.times]
            if any(length is not None and length % multiple for length in lengths):
                return f"whether a multiple of {multiple} is served better is not known"
        return ""

    def latency_us(self, gemm: Gemm, tokens: int, dtype: str) -> Interval | None:
        """The latency that others measured of a product; None without ``times``."""
        return self.times.latency_us(gemm, tokens, dtype) if self.times else None

    def head_dim(self, head_dim: int, heads: int, kv_heads: int, dtype: str) -> SizeVerdict:
        """The verdict on an attention's head_dim, in causal prefill without a mask."""
        call = attention.AttentionCall(
            self.name, self.arch, self.torch, compute_dtype(dtype), head_dim, heads, kv_heads
        )
        return attention.judge_head_dim(call)

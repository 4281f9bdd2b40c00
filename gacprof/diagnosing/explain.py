"""The verb ``explain``: a size beside the next better one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gacprof.checkpoint.products import Tokens, workload
from gacprof.core.sizes import Gemm, Interval, Side, SizeSource, SizeVerdict, Use
from gacprof.diagnosing.sizes import better_size, window_of
from gacprof.diagnosing.source import choose_dtype, open_source


@dataclass(frozen=True)
class Explanation:
    """A size and the next one above it that is safe or seems so. ``reason`` names the kernel or the
    tier that serves each; ``slower`` is the size's latency over the better one's, minus 1."""

    source: str
    provenance: str
    now: SizeVerdict
    better: SizeVerdict | None
    slower: Interval | None


def explain(
    size: int,
    source: str | Path | SizeSource,
    *,
    dim: Literal["N", "K", "rank", "head_dim"] = "N",
    other: int = 4096,
    tokens: Tokens | None = None,
    dtype: str | None = None,
    heads: int = 32,
    kv_heads: int | None = None,
) -> Explanation:
    """Say why a size is slow, beside the next better one.

    Parameters
    ----------
    size
        The size in question.
    source
        A map (file, run folder or shipped name) or a GPU's name.
    dim
        The side of the product it is; ``rank``: N and K of a square factor pair; ``head_dim``.
    other
        The product's other side, or the weight's side of a pair.
    tokens
        Token counts; by default those of the source.
    dtype
        The type of the product; by default the source's only one, else float16.
    heads
        Query heads of the attention, for ``head_dim``.
    kv_heads
        Its key and value heads; by default as many.

    Raises
    ------
    MapError, ConfigError
    """
    size_source = open_source(source)
    used_dtype = choose_dtype(size_source, dtype, "float16")
    low, high = size, window_of(size)[1]
    if dim == "head_dim":
        groups = kv_heads or heads
        verdicts = [
            size_source.head_dim(head_dim, heads, groups, used_dtype)
            for head_dim in range(low, high + 1)
        ]
    else:
        uses = [
            use
            for count, weight in workload(tokens, size_source).items()
            for use in _uses(dim, other, count, used_dtype, weight)
        ]
        larger = [x for x in size_source.sizes(uses, low, high) if x > size]
        verdicts = list(size_source.judge(uses, [size, *larger]))
    now, better = verdicts[0], better_size(verdicts, size, size_source.tolerance)
    slower = None if better is None else _slower(now, better)
    return Explanation(size_source.name, size_source.provenance, now, better, slower)


def _uses(dim: str, other: int, tokens: int, dtype: str, weight: float) -> list[Use]:
    """The parts of a size in its products."""
    as_n = Use(Gemm("", 1, other), Side(0, 1), Side(other), tokens, dtype, weight)
    as_k = Use(Gemm("", other, 1), Side(other), Side(0, 1), tokens, dtype, weight)
    return {"N": [as_n], "K": [as_k], "rank": [as_n, as_k]}[dim]


def _slower(now: SizeVerdict, better: SizeVerdict) -> Interval | None:
    """The first's latency over the second's, minus 1."""
    first, second = now.latency_us, better.latency_us
    if first is None or second is None:
        return None
    return Interval(
        first.low / second.high - 1, first.value / second.value - 1, first.high / second.low - 1
    )

"""The verb ``explain``: a size beside the next better one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal

from gacprof.checkpoint.inventory import MAX_SIZE
from gacprof.cliffmap.cliffmap import CliffMap
from gacprof.core.errors import ConfigError, require_within
from gacprof.core.results import Result
from gacprof.core.sizes import Interval, SizeSource, SizeVerdict, Use, seems_safe
from gacprof.diagnosing.sizes import better_size, window_of
from gacprof.diagnosing.source import choose_dtype, known_rows, open_source, rows_text
from gacprof.workload.deployment import Tokens
from gacprof.workload.products import side_uses


@dataclass(frozen=True)
class Explanation(Result):
    """A verdict on a size and, unless it seems safe, on the next larger size that does. ``slower``
    is the size's latency over the better one's, minus 1. ``question`` is what has the size, and the
    call; ``warnings`` say what the answer does not hold for."""

    schema: ClassVar[str] = "gacprof.Explanation/1"

    question: str
    source: str
    provenance: str
    now: SizeVerdict
    better: SizeVerdict | None
    slower: Interval | None
    warnings: tuple[str, ...] = ()


def uses_of(dim: str, other: int, rows: Mapping[int, float], dtype: str) -> list[Use]:
    """Return the uses of a size as a side of one product, or as the rank of a square factor
    pair."""
    axes: tuple[Literal["N", "K"], ...] = ("N", "K")
    sides = [axis for axis in axes if dim in (axis, "rank")]
    return list(chain.from_iterable(side_uses(axis, other, rows, dtype) for axis in sides))


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
    """Say why a size is slow, and which next size is better.

    Parameters
    ----------
    size
        The size to explain.
    source
        Where the answers come from: your own measurement (a map or a run folder), a shipped map, or
        a GPU's name such as h100.
    dim
        What has the size: ``N`` or ``K`` of a product, the ``rank`` of a square factor pair (N of
        one product, K of the other), or the ``head_dim`` of attention.
    other
        The other dimension of the matrix, for example the hidden size.
    tokens
        Numbers of tokens in a call, such as 1 1024. By default those that the source knows.
    dtype
        The type of the product. By default the only one that the source knows, else float16.
    heads
        For ``head_dim``: the query heads.
    kv_heads
        For ``head_dim``: the key and value heads, which divide the query heads. By default as many.

    Raises
    ------
    MapError, ConfigError

    Examples
    --------
    >>> explained = gacprof.explain(107, "h100", dim="rank")
    >>> explained.now.verdict, explained.better.size
    ('misaligned', 112)
    >>> measured = gacprof.explain(107, "h200-measured", dim="head_dim")
    >>> round(measured.slower.value, 1)  # attention takes 3.4 times as long as at the better size
    2.4
    """
    if not 1 <= size <= MAX_SIZE:
        raise ConfigError(f"a size of {size}: give one from 1 to {MAX_SIZE}")
    require_within("other", other, MAX_SIZE)
    size_source = open_source(source)
    used_dtype = choose_dtype(size_source, dtype, "float16")
    low, high = size, window_of(size)[1]
    warnings: tuple[str, ...] = ()
    if dim == "head_dim":
        from gacprof.kernels.dispatch import SCOPE, refuse_uneven_heads
        from gacprof.kernels.rules import Rules

        if tokens is not None:
            raise ConfigError(
                "a head_dim is judged at 1024 tokens, or a map's own: leave tokens out"
            )
        kv_heads = heads if kv_heads is None else kv_heads
        refuse_uneven_heads(heads, kv_heads)
        if isinstance(size_source, Rules):
            warnings = (f"Causal prefill of one sequence of 1024 tokens. {SCOPE}",)
        question = f"head_dim in {used_dtype}, {heads} query and {kv_heads} key heads"
        shape = heads, kv_heads, used_dtype
        # each size: a kernel may have a template for one head_dim alone
        verdicts = [size_source.head_dim(x, *shape) for x in range(low, high + 1)]
    else:
        uses_at = partial(uses_of, dim, other, dtype=used_dtype)
        rows = known_rows(tokens, size_source, uses_at, size, size)
        uses = uses_at(rows)
        sides = {"N": f"K = {other}", "K": f"N = {other}", "rank": f"two factors of {other}"}
        question = f"{dim} in {used_dtype}, {sides[dim]}, {rows_text(rows)}"
        larger = [x for x in size_source.sizes(uses, low, high) if x > size]
        verdicts = list(size_source.judge(uses, [size, *larger]))
    now, better, slower = verdicts[0], None, None
    if now.verdict == "unknown" and isinstance(size_source, CliffMap):
        dims = ("N", "K") if dim == "rank" else (dim,)
        labels = [c.label for c in size_source.curves if c.axis.dim in dims and not c.is_forced]
        warnings = (f"Its curves: {'; '.join(labels) or 'none over such a dim'}.",)
    if not seems_safe(now, size_source.tolerance):
        better = better_size(verdicts, size, size_source.tolerance)
    if better is not None and now.latency_us is not None and better.latency_us is not None:
        first, second = now.latency_us, better.latency_us
        # the least quotient is the first's least over the second's most
        slower = Interval(
            first.low / second.high - 1, first.value / second.value - 1, first.high / second.low - 1
        )
    return Explanation(
        question, size_source.name, size_source.provenance, now, better, slower, warnings
    )

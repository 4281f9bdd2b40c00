"""Opening a source of sizes by name, and the products of a checkpoint that it is asked about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.core.dtypes import compute_dtype, dtype_name
from gacprof.core.errors import MapError
from gacprof.core.sizes import SizeSource, Use
from gacprof.kernels.attention import ATTENTION_DTYPES
from gacprof.workload.deployment import Tokens, workload
from gacprof.workload.products import Products, plain_dtype
from gacprof.workload.sharing import Sharing

NOT_ASKED = "unknown, the dispatcher was not asked"
"""The answer for a size or type that a dispatch table does not hold."""


def open_source(source: SizeSource | str | Path) -> SizeSource:
    """Open a source of sizes by its name: a map (shipped name, file or run folder), or the rules of
    a GPU of the data sheet (``h100``). Raises :class:`ConfigError` for neither.

    Examples
    --------
    >>> gacprof.open_source("h100").head_dim(107, 32, 8, "bfloat16").verdict
    'misaligned'
    """
    if not isinstance(source, str | Path):
        return source
    from gacprof.cliffmap.cliffmap import is_map, load_map

    if is_map(source):
        return load_map(source)
    from gacprof.kernels.rules import Rules

    return Rules(str(source))


def products_for(
    inventory: Inventory,
    source: SizeSource,
    *,
    tokens: Tokens | None = None,
    tp: int = 1,
    ep: int = 1,
    dtype: str | None = None,
) -> Products:
    """Return the products of a checkpoint at a workload, computed in types that the source
    holds."""
    usual = plain_dtype(inventory)
    chosen = choose_dtype(source, dtype, usual)
    tokens_of = workload(tokens, source)
    return Products(inventory, tokens_of, tp, dtype if chosen == usual else chosen, ep=ep)


def choose_dtype(source: SizeSource, dtype: object, usual: object) -> str:
    """Return the type to ask about: ``dtype`` if given, else ``usual`` if the source holds it, else
    the source's only one. Raises :class:`MapError` where it holds several others."""
    usual_name = dtype_name(usual)
    dtypes = source.dtypes or [usual_name]
    if dtype is not None or usual_name in dtypes:
        return compute_dtype(dtype_name(dtype or usual_name))
    if len(dtypes) > 1:
        raise MapError(f"{source.name} holds {', '.join(dtypes)}: name one of them as dtype")
    return dtypes[0]


def known_rows(
    tokens: Tokens | None,
    source: SizeSource,
    uses_at: Callable[[Mapping[int, float]], Sequence[Use]],
    low: int,
    high: int,
) -> dict[int, float]:
    """Return the workload that is named, else the source's token counts at which it knows sizes
    from ``low`` to ``high``: a map may hold a product at one count only."""
    rows = workload(tokens, source)
    if tokens is not None:
        return rows
    answered = {
        n: often for n, often in rows.items() if source.sizes(uses_at({n: often}), low, high)
    }
    return answered or rows


def rows_text(rows: Mapping[int, float]) -> str:
    """Say how many tokens calls have: ``16 tokens``, ``1 and 1024 tokens together``."""
    together = " together" if len(rows) > 1 else ""
    return f"{' and '.join(map(str, rows))} tokens{together}"


def attention_dtype(products: Products) -> str:
    """Return the type of attention and norms: the products' own; beside 8-bit products that of
    most layers, or bfloat16."""
    types = (products.plain_dtype, products.inventory.main_dtype or "", "bfloat16")
    return next(dtype for dtype in types if dtype in ATTENTION_DTYPES)


def kernel_lines(sharing: Sharing, source: SizeSource, dtype: str) -> tuple[str, ...]:
    """Return lines on the kernels of attention and norms that PyTorch dispatches on a source's GPU;
    none for a map, and for a GPU and release that were not recorded."""
    from gacprof.kernels.dispatch import load_table
    from gacprof.kernels.rules import Rules

    table = load_table(source.name, source.torch) if isinstance(source, Rules) else None
    if table is None:
        return ()
    inventory = sharing.inventory
    lines = [f"Kernels {table.provenance} (inference, one sequence of 1024 tokens):"]
    shapes = dict.fromkeys((a.head_dim, *sharing.heads_on_rank(a)) for a in inventory.attentions)
    for head_dim, heads, kv_heads in shapes:
        if heads % kv_heads:
            lines.append(f"  attention of {heads} query and {kv_heads} key heads: refused")
            continue
        grid: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "batch": 1}
        prefill = table.sdpa(head_dim, dtype, causal=True, **grid)
        decode = table.sdpa(head_dim, dtype, q_len=1, **grid)
        answers = f"{prefill}; decode: {decode}" if prefill and decode else NOT_ASKED
        lines.append(f"  attention, head_dim {head_dim} in {dtype}: {answers}")
    lengths = {m.in_features for m in inventory.modules if m.role in ("q", "qkv", "up", "gate_up")}
    for length in sorted(lengths):
        kernel = table.rows("rms_norm", length, dtype=dtype)
        lines.append(f"  rms_norm over {length} in {dtype}: {kernel or NOT_ASKED}")
    return tuple(lines) if len(lines) > 1 else ()

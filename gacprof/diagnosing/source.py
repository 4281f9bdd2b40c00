"""Opening a source of sizes by name, and the products of a checkpoint that it is asked about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.products import Products, Tokens, plain_dtype, workload
from gacprof.core.dtypes import compute_dtype, dtype_name
from gacprof.core.errors import MapError
from gacprof.core.sizes import SizeSource

NOT_ASKED = "unknown, the dispatcher was not asked"
"""Of a size or type beyond those of a dispatch table."""


def open_source(source: SizeSource | str | Path) -> SizeSource:
    """Return the source of sizes that a name stands for.

    Parameters
    ----------
    source
        A GPU of the data sheet (``h100``): its kernels' rules. The name of a shipped map, a map
        file, or a run folder: that map. A :class:`SizeSource`: itself.

    Raises
    ------
    MapError
        Where there is neither a GPU nor a map of that name.
    """
    if not isinstance(source, str | Path):
        return source
    from gacprof.cliffmap.cliffmap import load_map
    from gacprof.devices.datasheet import GPUS

    if str(source).lower() in GPUS:
        from gacprof.kernels.rules import Rules

        return Rules(str(source).lower())
    return load_map(source)


def products_for(
    inventory: Inventory,
    source: SizeSource,
    *,
    tokens: Tokens | None = None,
    tp: int = 1,
    dtype: str | None = None,
) -> Products:
    """The products of a checkpoint at a workload, computed in types that the source holds.

    Raises :class:`MapError` where it holds several types, and not the model's.
    """
    if dtype is None and plain_dtype(inventory) not in (source.dtypes or [plain_dtype(inventory)]):
        dtype = choose_dtype(source, plain_dtype(inventory))
    return Products(inventory, workload(tokens, source), tp, dtype)


def choose_dtype(source: SizeSource, *wishes: object) -> str:
    """The first of these types that the source holds, else its only one.

    Raises :class:`MapError` where it holds several others.
    """
    names = [dtype_name(wish) for wish in wishes if wish]
    dtypes: Sequence[str] = source.dtypes or names[:1] or ["float16"]
    for name in names:
        if name in dtypes:
            return compute_dtype(name)
    if len(dtypes) > 1:
        raise MapError(f"{source.name} holds {', '.join(dtypes)}: name one of them as dtype")
    return dtypes[0]


def kernel_lines(inventory: Inventory, source: SizeSource, tp: int = 1) -> tuple[str, ...]:
    """Lines on the kernels of attention and norms as PyTorch dispatched them on a source's GPU;
    none for a map, and for a GPU and release that were not recorded."""
    from gacprof.kernels.dispatch import load_table
    from gacprof.kernels.rules import Rules

    table = load_table(source.name, source.torch) if isinstance(source, Rules) else None
    if table is None:
        return ()
    dtype = plain_dtype(inventory)
    lines = [f"Kernels {table.provenance}:"]
    shapes = dict.fromkeys((a.head_dim, a.heads // tp, a.kv_heads) for a in inventory.attentions)
    for head_dim, heads, kv_heads in shapes:
        gqa = heads != max(1, kv_heads // tp)
        prefill = table.sdpa(head_dim, dtype, causal=True, gqa=gqa)
        decode = table.sdpa(head_dim, dtype, q_len=1, gqa=gqa)
        answers = f"{prefill}; decode: {decode}" if prefill and decode else NOT_ASKED
        lines.append(f"  attention, head_dim {head_dim} in {dtype}: {answers}")
    lengths = {m.in_features for m in inventory.modules if m.role in ("q", "qkv", "up", "gate_up")}
    for length in sorted(lengths):
        kernel = table.rows("rms_norm", length, dtype=dtype)
        lines.append(f"  rms_norm over {length} in {dtype}: {kernel or NOT_ASKED}")
    return tuple(lines)

"""Which of a map's dtypes a checkpoint is judged in, and what that says of it."""

from __future__ import annotations

from gacprof.checkpoint.inventory import Inventory
from gacprof.cliffmap import CliffMap
from gacprof.core.errors import PlanError


def choose_dtype(cliff_map: CliffMap, inventory: Inventory, asked: str | None) -> tuple[str, str]:
    """The dtype and, where it is not the checkpoint's, a note. Raises :class:`PlanError`."""
    held = sorted({curve.dtype for curve in cliff_map.select("linear")})
    if asked is not None:
        if held and asked not in held:
            raise PlanError(
                f"the map '{cliff_map.name}' holds no {asked}; it holds {', '.join(held)}"
            )
        return asked, ""
    counts: dict[str, int] = {}
    for module in inventory.modules:
        counts[module.dtype] = counts.get(module.dtype, 0) + 1
    stored = max(counts, key=lambda d: counts[d], default="float16")
    if stored in held or not held:  # an empty map answers with misses, which say what to sweep
        return stored, ""
    which = "the only dtype" if len(held) == 1 else "the first dtype"
    return held[0], (
        f"stored as {stored}; predicted in {held[0]}, {which} of this map: what the weights cost "
        f"when computed in {held[0]}. Other kernels serve {stored}, with other cliffs and times; "
        f"'gacprof sweep --for CHECKPOINT --dtype {stored}' measures those"
    )

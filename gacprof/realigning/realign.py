"""A checkpoint with other sizes, in a new folder."""

from __future__ import annotations

from pathlib import Path

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import inventory_of
from gacprof.core.errors import CheckpointError
from gacprof.core.files import new_folder
from gacprof.realigning.changes import new_checkpoint
from gacprof.realigning.sizes import Sizes, new_sizes
from gacprof.realigning.writer import write_checkpoint


def realign(checkpoint: str | Path | Inventory, sizes: Sizes, out: str | Path) -> Path:
    """Write a checkpoint anew with other sizes.

    Padding with zeros keeps the function in real arithmetic; merging rounds products of factors
    once to the stored type; cuts change the function. One shard is in memory at a time. The
    checkpoint is never modified, the output appears whole or not at all.

    Parameters
    ----------
    checkpoint
        A folder or weights file of any layout, or its inventory.
    sizes
        A plan or its file; sizes by dim name (None merges factors); or a word: "pad8" and "pad16"
        pad every dim to a multiple, "uniform" gives all layers the largest width, which a plain
        config describes, "fuse" merges all factors.
    out
        The new checkpoint's folder, which must not exist.

    Returns
    -------
    Path
        The new folder.

    Raises
    ------
    PlanError
        The plan is another checkpoint's, or a size cannot be had.
    CheckpointError
        A dim may not change; the checkpoint is incomplete; the output would lie in it.
    FileExistsError
        ``out`` exists.
    """
    inventory = inventory_of(checkpoint)
    target = Path(out)
    if target.resolve().is_relative_to(Path(inventory.folder).resolve()):
        raise CheckpointError(f"{target} lies in the checkpoint {inventory.path}: name another")
    if inventory.left_out:
        raise CheckpointError(
            f"{inventory.path}: its index leaves out {inventory.left_out[0]!r}, which its shards "
            "hold: mend the index or fetch the checkpoint again"
        )
    new = new_checkpoint(inventory, new_sizes(inventory, sizes))
    with new_folder(target) as folder:
        write_checkpoint(new, folder)
    return target

"""What names and shapes mean: one file per layout, the first that recognises wins."""

from __future__ import annotations

from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.asvd import Asvd
from gacprof.checkpoint.layouts.base import Contents, Findings, Layout, Sizes
from gacprof.checkpoint.layouts.generic import Generic
from gacprof.checkpoint.layouts.llmpruner import LlmPruner
from gacprof.checkpoint.layouts.loaded import Loaded
from gacprof.checkpoint.layouts.moe import Moe
from gacprof.checkpoint.layouts.palu import Palu
from gacprof.checkpoint.layouts.plain import PerLayerWidths, Plain
from gacprof.checkpoint.layouts.quantised import Quantised
from gacprof.checkpoint.layouts.slicegpt import SliceGpt
from gacprof.checkpoint.layouts.svdllm import SvdLlm
from gacprof.core.errors import CheckpointError

__all__ = [
    "LAYOUTS",
    "Contents",
    "Findings",
    "Layout",
    "Sizes",
    "layout_named",
    "mirrored_files",
    "recognise",
]

LAYOUTS: tuple[Layout, ...] = (
    Palu(),
    Asvd(),
    SvdLlm(),
    SliceGpt(),
    Quantised(),
    Loaded(),
    LlmPruner(),
    Generic(),
    Moe(),
    PerLayerWidths(),
    Plain(),
)
"""In order of asking; ``Plain`` recognises everything and comes last."""


def recognise(contents: Contents) -> Layout:
    """The layout of a checkpoint; the user's own factor patterns go before all else."""
    if contents.factors:
        return layout_named(Generic.name)
    return next(layout for layout in LAYOUTS if layout.recognise(contents))


def layout_named(name: str) -> Layout:
    for layout in LAYOUTS:
        if layout.name == name:
            return layout
    raise CheckpointError(f"layout {name!r} is not known; this inventory is of a newer gacprof")


def mirrored_files(inventory: Inventory, sizes: Sizes) -> dict[str, dict[str, Any]]:
    """The JSON files that must change when dims are resized, by file name.

    ``sizes`` maps dim names to new sizes; a dim not named keeps its size, and ``None`` says
    that it is gone. Unknown keys of every file are kept. A file not in the result is unchanged.
    """
    return layout_named(inventory.layout).mirror(inventory, sizes)

"""What names and shapes mean: the first layout that recognises them wins."""

from __future__ import annotations

from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.layouts.experts import Moe
from gacprof.checkpoint.layouts.layout import Layout
from gacprof.checkpoint.layouts.quantised import Quantised
from gacprof.checkpoint.layouts.tools import (
    FactorPairs,
    GacprofFactors,
    PerLayerWidths,
    Plain,
    compressors,
)
from gacprof.core.errors import CheckpointError

__all__ = ["Contents", "all_layouts", "layout_named", "recognise"]

_WITHOUT_A_TOOL = (Quantised(), GacprofFactors(), FactorPairs(), Moe(), PerLayerWidths(), Plain())


def all_layouts() -> tuple[Layout, ...]:
    """In order of asking; ``Plain`` recognises everything and comes last."""
    return (*compressors(), *_WITHOUT_A_TOOL)


def recognise(contents: Contents) -> Layout:
    """The layout of a checkpoint; the user's own factor patterns go before all else."""
    if contents.factors:
        return layout_named(FactorPairs.name)
    return next(layout for layout in all_layouts() if layout.recognise(contents))


def layout_named(name: str) -> Layout:
    for layout in all_layouts():
        if layout.name == name:
            return layout
    raise CheckpointError(f"layout {name!r} is not known; this inventory is of a newer gacprof")

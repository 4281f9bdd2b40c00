"""Plain Hugging Face names and dense weights: one width for all layers, or widths per layer.

``Plain`` is the fallback: whatever no other layout recognises. Torch-Pruning's example,
LLM-Shearing and Minitron write this. Nothing in such a file names the tool, so neither do these.
"""

from __future__ import annotations

from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.assemble import assemble
from gacprof.checkpoint.layouts.base import Contents, Findings, Sizes
from gacprof.checkpoint.layouts.linear import dense_linears
from gacprof.checkpoint.layouts.width import find_widths, mirror_widths


class Plain:
    name = "plain"

    def recognise(self, contents: Contents) -> bool:
        return True

    def describe(self, contents: Contents) -> Findings:
        return assemble(contents, list(dense_linears(contents)))

    def mirror(self, inventory: Inventory, sizes: Sizes) -> dict[str, dict[str, Any]]:
        return mirror_config(inventory, sizes)


class PerLayerWidths(Plain):
    """Plain names, and MLPs whose widths differ, whatever tool cut them."""

    name = "per-layer-widths"

    def recognise(self, contents: Contents) -> bool:
        widths, _ = find_widths(contents, list(dense_linears(contents)))
        return len({dim.size for dim in widths if dim.role == "mlp"}) > 1


def mirror_config(inventory: Inventory, sizes: Sizes) -> dict[str, dict[str, Any]]:
    """config.json with a width that has become, or stayed, uniform."""
    if not inventory.config:
        return {}
    config = dict(inventory.config)
    mirror_widths(inventory, sizes, config)
    return {"config.json": config}


def made_plain(config: dict[str, Any], ranks: str, prefix: str) -> None:
    """Make ``config`` a plain model's once nothing is factored any more.

    ``ranks`` is the key of the ranks, ``prefix`` what the tool puts before names of classes and
    model types. Its remote code would build factors that are no longer there.
    """
    for key in (ranks, "auto_map"):
        config.pop(key, None)
    classes = config.get("architectures")
    if isinstance(classes, list):
        config["architectures"] = [_without(prefix, name) for name in classes]
    if "model_type" in config:
        config["model_type"] = _without(prefix.lower(), config["model_type"])


def _without(prefix: str, name: Any) -> Any:
    return name.removeprefix(prefix) or name if isinstance(name, str) else name

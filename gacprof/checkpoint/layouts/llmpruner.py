"""LLM-Pruner: a whole model pickled as ``{'model', 'tokenizer'}``, plain names, widths and
heads different per layer.

The model's own config keeps the sizes from before pruning; the modules' ``num_heads`` and the
shapes are right (horseee/LLM-Pruner, hf_prune.py).
"""

from __future__ import annotations

from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.assemble import assemble
from gacprof.checkpoint.layouts.base import Contents, Findings, Sizes
from gacprof.checkpoint.layouts.linear import dense_linears
from gacprof.checkpoint.layouts.plain import mirror_config
from gacprof.checkpoint.layouts.width import declared_width, find_widths


class LlmPruner:
    name = "llm-pruner"

    def recognise(self, contents: Contents) -> bool:
        """A pickled model of LLM-Pruner's own class, or of any class with uneven widths or with
        widths that are not its config's: the tool leaves that as it was."""
        if not contents.attributes:
            return False
        if any(str(a.get("class")).startswith("LLMPruner.") for a in contents.attributes.values()):
            return True
        widths, _ = find_widths(contents, list(dense_linears(contents)))
        sizes = {dim.size for dim in widths if dim.role == "mlp"}
        return len(sizes) > 1 or declared_width(contents.config, "mlp", sizes) not in (None, *sizes)

    def describe(self, contents: Contents) -> Findings:
        return assemble(contents, list(dense_linears(contents)))

    def mirror(self, inventory: Inventory, sizes: Sizes) -> dict[str, dict[str, Any]]:
        return mirror_config(inventory, sizes)

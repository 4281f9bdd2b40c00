"""LLM-Pruner: a whole model pickled as ``{'model', 'tokenizer'}``, plain names, widths and
heads different per layer.

The model's own config keeps the sizes from before pruning; the modules' ``num_heads`` and the
shapes are right (horseee/LLM-Pruner, hf_prune.py). Only the tool's own classes in the pickle tell
it from other tools that prune layer by layer (llama3.py there uses the classes of transformers):
without them the layout is ``per-layer-widths``.
"""

from __future__ import annotations

from gacprof.checkpoint.layouts.base import Contents
from gacprof.checkpoint.layouts.plain import Plain


class LlmPruner(Plain):
    name = "llm-pruner"

    def recognise(self, contents: Contents) -> bool:
        """A pickled model of LLM-Pruner's own classes."""
        classes = (str(module.get("class")) for module in contents.attributes.values())
        return any(name.startswith("LLMPruner.") for name in classes)

"""LLM-Pruner: a whole model pickled as ``{'model', 'tokenizer'}``, plain names, widths and
heads different per layer.

The model's own config keeps the sizes from before pruning; the modules' ``num_heads`` and the
shapes are right (horseee/LLM-Pruner, hf_prune.py). Only the tool's own classes in the pickle
distinguish it from other tools that prune layer by layer (llama3.py there uses the classes of
transformers): without them the layout is ``per-layer-widths``. Its own Llama attention has
LlamaRotaryEmbedding's default base.
"""

from __future__ import annotations

from gacprof.checkpoint.inventory import Contents
from gacprof.compressors.compressor import Compressor


class LlmPruner(Compressor):
    name = "llm-pruner"
    classes = ("LLMPruner.",)

    def recognise(self, contents: Contents) -> bool:
        """A pickled model of LLM-Pruner's own classes."""
        return any(self.has_class(str(m.get("class"))) for m in contents.attributes.values())

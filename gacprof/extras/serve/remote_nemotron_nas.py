"""The config of a DeciLM (Nemotron NAS) model whose layers differ in their MLP's width.

vLLM reads the blocks' attributes, transformers copies and serialises dicts: a block is both.
Written by gacprof export; needs transformers >= 4.51.
"""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig

from gacprof.checkpoint.config import without_heads


class AttributeDict(dict):
    """A dict whose keys are attributes too, at every depth."""

    def __init__(self, entries: Any = ()) -> None:
        super().__init__(entries)
        for key, value in self.items():
            if isinstance(value, dict):
                self[key] = AttributeDict(value)

    def __getattr__(self, key: str) -> Any:
        if key not in self:
            raise AttributeError(key)
        return self[key]


class NemotronNasConfig(LlamaConfig):
    model_type = "nemotron-nas"

    def __init__(self, block_configs: list[dict[str, Any]] | None = None, **kwargs: Any) -> None:
        kwargs, heads = without_heads(kwargs)
        super().__init__(**kwargs)
        for key, value in heads.items():
            setattr(self, key, value)
        self.block_configs = [AttributeDict(block) for block in block_configs or ()]

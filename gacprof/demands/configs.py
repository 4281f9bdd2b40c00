"""What a config says of a model's sizes, read by field names and checked: nothing is executed.

Partial configs are welcome: a field that is not there is *missing* and named, never guessed, but
for what the family's own configuration class means by silence (``families.toml``).
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from typing import Any

from gacprof.core.errors import LintError

MOST = 1 << 31
"""No size of a model comes near; a hostile number would."""
MOST_LAYERS = 1 << 14

_TABLES = tomllib.loads((resources.files("gacprof.demands") / "families.toml").read_text("utf-8"))
ALIASES: Mapping[str, tuple[str, ...]] = {k: tuple(v) for k, v in _TABLES.pop("fields").items()}
"""What a size is called, over all families; the first that a config has counts."""
OF_MAMBA: Mapping[str, tuple[str, ...]] = {
    name: tuple(called) for name, called in _TABLES.pop("fields-of-mamba").items()
}
"""What sizes are called in a model without attention (Mamba, Mamba-2)."""
TIED = frozenset(_TABLES.pop("tied")["types"])
"""Types whose head is the embedding where the config does not say."""

TEXT = ("text_config", "llm_config", "language_config")
"""Where multimodal configs describe their text model: transformers', InternVL's, DeepSeek-VL's."""
VISION = ("vision_config", "visual", "vision_tower_config", "vit_config")


@dataclass(frozen=True)
class Family:
    """A row of ``families.toml``; see there."""

    name: str
    types: tuple[str, ...] = ()
    expert: str = ""
    dense: str = "intermediate_size"
    shared: str = ""
    is_gated: bool = True
    experts_only: bool = False
    dense_if_listed: bool = False
    dense_too: bool = False
    head_dim: int | None = None
    kv_heads: int | str | None = None
    mlp_ratio: int | None = None
    q_gate: bool = False
    mixer: str = ""


@cache
def families() -> Mapping[str, Family]:
    """Family by model type."""
    rows = [Family(name, **row) for name, row in _TABLES.items()]
    return {one: row for row in rows for one in row.types}


@dataclass(frozen=True)
class Config:
    """A model's config: ``values`` are those of its text part. ``widths`` are (width, layers) of
    MLPs whose width differs from layer to layer; empty for one width."""

    values: Mapping[str, Any]
    whole: Mapping[str, Any]
    widths: tuple[tuple[int, int], ...] = ()

    def with_sizes(self, changes: Mapping[str, int]) -> Config:
        """The same with other numbers; widths by layer are what it then says."""
        made = Config({**self.values, **changes}, self.whole)
        return replace(made, widths=_widths(made)) if self.widths else made

    @cached_property
    def model_type(self) -> str:
        found = self.values.get("model_type") or self.whole.get("model_type") or ""
        return found[:80] if isinstance(found, str) else ""

    @property
    def is_tied(self) -> bool:
        """Whether the head is the embedding's tensor."""
        said = self.values.get("tie_word_embeddings")
        return said is True or (said is None and self.model_type.removesuffix("_text") in TIED)

    @cached_property
    def family(self) -> Family | None:
        """None for a type that no family lists."""
        for named in (self.model_type, str(self.whole.get("model_type", ""))):
            for plain in (named, named.removesuffix("_text"), named.replace("-", "_")):
                if plain in families():
                    return families()[plain]
        return None

    @cached_property
    def meaning(self) -> Family:
        """The family; for an unknown one what the field names say."""
        return self.family or self._guessed()

    def _guessed(self) -> Family:
        if self.get("moe_intermediate_size"):
            expert = "moe_intermediate_size"
        else:
            expert = "intermediate_size" if (self.get("experts") or 0) > 1 else ""
        for shared in ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
                       "share_expert_dim"):  # fmt: skip
            if self.get(shared):
                return Family("", expert=expert, shared=shared)
        by_count = expert and (self.get("shared_count") or 0) > 0
        return Family("", expert=expert, shared="count * expert" if by_count else "",
                      experts_only=expert == "intermediate_size")  # fmt: skip

    def get(self, name: str) -> int | None:
        """A size by its plain name or any alias; None where the config has none of them."""
        if name not in self._read:
            self._read[name] = whole_number(self.values, *self.keys(name))
        return self._read[name]

    def keys(self, name: str) -> tuple[str, ...]:
        """The names that a size may have in this config."""
        if self.family and self.family.mixer.startswith("mamba") and name in OF_MAMBA:
            return OF_MAMBA[name]
        return ALIASES.get(name, (name,))

    @cached_property
    def _read(self) -> dict[str, int | None]:
        return {}

    def listed(self, name: str) -> int:
        """How many entries a list of the config has."""
        found = self.values.get(name)
        return len(found) if isinstance(found, list) else 0

    def spelling(self, name: str) -> str:
        """The config's own name of a size."""
        keys = self.keys(name)
        return next((key for key in keys if self.values.get(key) is not None), (*keys, name)[0])

    @property
    def vision_heads(self) -> tuple[str, int] | None:
        """(where, heads) of a vision tower."""
        for key in VISION:
            part = self.whole.get(key)
            if isinstance(part, Mapping):
                heads = whole_number(part, *ALIASES["vision_heads"])
                return (key, heads) if heads else None
        return None

    @property
    def vision_head_dim(self) -> int | None:
        """A vision tower's head_dim; Qwen2-VL's hidden_size is that of what it gives out."""
        if self.vision_heads is None:
            return None
        where, heads = self.vision_heads
        part = self.whole[where]
        width = whole_number(part, "embed_dim", "hidden_size") or 0
        own = whole_number(part, "head_dim", "attention_head_dim")
        return own or (width // heads if width and width % heads == 0 else None)


def whole_number(values: Mapping[str, Any], *keys: str) -> int | None:
    """The first of these keys that is there, as a whole number from 0.

    Raises :class:`LintError` for what is there and is none, or is more than any model has.
    """
    for key in keys:
        value = values.get(key)
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            value = value[0]  # a size of each layer, all equal
        if value is None or isinstance(value, list):
            continue
        if type(value) is not int or not 0 <= value <= MOST:
            raise LintError(
                f"the config's {key} is {_short(value)}: no whole number of a model's size"
            )
        if key in ALIASES["layers"] and value > MOST_LAYERS:
            raise LintError(f"the config's {key} is {value}: no model has more than {MOST_LAYERS}")
        return value
    return None


def _short(value: object) -> str:
    if isinstance(value, int):
        return "a number of more than 20 digits" if abs(value) >= 10**20 else str(value)
    return repr(value)[:60]


def config_of(values: Mapping[str, Any]) -> Config:
    """A config read from JSON. The text part of a multimodal one is what is judged."""
    outer = values.get("thinker_config")
    whole = outer if isinstance(outer, Mapping) else values
    inner: dict[str, Any] = {}
    for key in ("ffn_config", "attn_config"):  # DBRX, MPT
        part = whole.get(key)
        if isinstance(part, Mapping):
            inner |= {k: v for k, v in part.items() if not isinstance(v, Mapping | list)}
    text = next((whole[key] for key in TEXT if isinstance(whole.get(key), Mapping)), None)
    if text is not None:
        plain = {k: v for k, v in whole.items() if not isinstance(v, Mapping)}
        return Config({**plain, **text}, whole)
    found = Config({**inner, **whole} if inner else whole, whole)
    return replace(found, widths=_widths(found))


def _widths(config: Config) -> tuple[tuple[int, int], ...]:
    """(width, layers) of MLPs that differ: Nemotron-NAS's ``block_configs``, whose ``ffn_mult`` is
    a share of the hidden size rounded up to 256 (vLLM, models/nemotron_nas.py), and transformers'
    ``per_layer_config``."""
    hidden, widths = config.get("hidden_size"), Counter[int]()
    blocks, sparse = config.values.get("block_configs"), config.values.get("per_layer_config")
    for block in blocks[:MOST_LAYERS] if isinstance(blocks, list) else ():
        ffn = block.get("ffn") if isinstance(block, Mapping) else None
        if not isinstance(ffn, Mapping) or ffn.get("no_op") is True:
            continue
        width, times = whole_number(ffn, "intermediate_size"), ffn.get("ffn_mult")
        if width is None and hidden and isinstance(times, int | float) and 0 < times < 1000:
            width = -(-int(2 * times * hidden / 3) // 256) * 256
        if width:
            widths[width] += 1
    if isinstance(sparse, Mapping):
        own = [whole_number(layer, "intermediate_size") for layer in sparse.values()
               if isinstance(layer, Mapping)]  # fmt: skip
        widths.update(width for width in own if width)
        rest, common = (config.get("layers") or 0) - len(own), config.get("intermediate_size")
        if common and rest > 0:
            widths[common] += rest
    return tuple(sorted(widths.items()))

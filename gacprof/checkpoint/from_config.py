"""An inventory made of a config.json alone: the products of each kind of layer, once.

Field names are read, nothing is executed. ``families.toml`` says what a size is called, what a
family means by silence, and which linear layers a kind of layer has. A size that the config doesn't
say is 0 and named in ``missing``; it is never assumed.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from math import prod
from typing import Any

from gacprof.checkpoint.inventory import AttentionHeads, Inventory, Module
from gacprof.core.dtypes import dtype_name
from gacprof.core.errors import ConfigError
from gacprof.core.sizes import Gemm

MAX_SIZE = 1 << 31
"""No size of a model comes near it."""
TEXT_PARTS = ("text_config", "llm_config", "language_config")
"""Text models in multimodal configs: transformers', InternVL's, DeepSeek-VL's."""
VISION_PARTS = ("vision_config", "visual", "vision_tower_config", "vit_config")
COMPRESSED = (
    r"truncation_ranks|head_wise_ranks|slicing_config|lowrank_config|rank_map|block_configs"
)
"""Fields that name sizes of single layers (configs of ASVD, PaLU and others, Nemotron-NAS)."""
COMPRESSORS = r"asvd|palu|svdllm|slicegpt|basel|dobi"
"""Words in the class names that compressors give their models (``ASVDLlamaForCausalLM``)."""


@cache
def _tables() -> Mapping[str, Any]:
    return tomllib.loads(files("gacprof.checkpoint").joinpath("families.toml").read_text("utf-8"))


@cache
def _families() -> Mapping[str, Mapping[str, Any]]:
    """Rows of ``families.toml`` by model type."""
    rows = [row for name, row in _tables().items() if name != "tied"]
    return {model_type: row for row in rows for model_type in row.get("types", ())}


class ConfigSizes:
    """The sizes that a config names, by plain names whatever its family calls them.

    ``values`` are those of the text part, ``whole`` the config as it is; ``missing`` collects the
    config's names of sizes that were asked for and aren't there. Raises :class:`ConfigError` for a
    config of a compressed model, whose sizes it doesn't state in full.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.whole: Mapping[str, Any] = config.get("thinker_config", config)
        self.values = _text_values(self.whole)
        self.missing: list[str] = []
        self.model_type = str(self.values.get("model_type") or self.whole.get("model_type", ""))
        named = re.findall(rf"'({COMPRESSED})'", str(list(self.values)))
        named += re.findall(COMPRESSORS, str(self.values.get("architectures")).lower())
        if named:
            raise ConfigError(
                f"the config is of a compressed model ({', '.join(named)}): 'gacprof diagnose "
                "FOLDER' judges the sizes of its weights"
            )
        plain = self.model_type.removesuffix("_text").replace("-", "_")
        by_type = _families().get(self.model_type) or _families().get(plain)
        self.is_known_type = by_type is not None
        self.family: Mapping[str, Any] = {}
        self.family = by_type or self._family_by_fields()

    def _family_by_fields(self) -> dict[str, Any]:
        """The meaning of a type that no row lists, by the names of its fields."""
        row: dict[str, Any] = {}
        if self.stated("moe_intermediate_size"):
            row["expert_width"] = "moe_intermediate_size"
        elif self.stated("experts") > 1:
            row |= {"expert_width": "intermediate_size", "experts_only": True}
        names = ("moe_shared_expert_intermediate_size", "share_expert_dim")
        shared = [name for name in ("shared_expert_intermediate_size", *names) if self.stated(name)]
        if shared:
            row["shared_width"] = shared[0]
        elif self.stated("shared_count"):
            row["shared_width"] = "shared_count*expert_width"
        return row

    def field(self, name: str) -> str:
        """The config's own name of a size."""
        if name.endswith("_width"):
            meaning = self.family.get(name, "intermediate_size")
            return self.field(meaning.removeprefix("shared_count*"))
        fields = self._fields(name)
        stated = [field for field in fields if self.values.get(field) is not None]
        return (*stated, *fields, name)[0]

    def _fields(self, name: str) -> Sequence[str]:
        tables = _tables()
        mixer = self.family.get("mixer", "")
        if mixer.startswith("mamba") and name in tables["fields-of-mamba"]:
            return tables["fields-of-mamba"][name]
        return tables["fields"].get(name, [name])

    def stated(self, name: str) -> int:
        """A size as the config states it; 0 where it doesn't."""
        values = self.vision if name == "vision_heads" else self.values
        numbers = [whole_number(values.get(field), field) for field in self._fields(name)]
        return next(filter(None, numbers), 0)

    def get(self, name: str) -> int:
        """A size: as stated, as the family means it, or as it follows from others; else 0."""
        number = self.stated(name)
        is_falcon = self.values.get("multi_query") is True
        if name == "kv_heads" and is_falcon and not self.values.get("new_decoder_architecture"):
            return 1
        meaning = self.family.get(name, 0)
        if isinstance(meaning, str):
            meaning = self.compute(meaning)
        number = number or meaning
        if name == "q_rows" and self.family.get("q_gate"):
            gates = 1 + (self.values.get("attn_output_gate") is not False)
            return gates * self.compute("heads*head_dim")
        for expression in _tables()["means"].get(name, ()):
            number = number or self.compute(expression)
        return number

    def compute(self, expression: str) -> int:
        """The value of ``a*b+c*d`` or ``a*b/c``; 0 where a size isn't said or doesn't divide."""
        terms = [self._term(term) for term in expression.split("+")]
        return sum(terms) if all(terms) else 0

    def _term(self, term: str) -> int:
        over, _, under = term.partition("/")
        divisor = (under and self.get(under)) or 1
        whole, rest = divmod(prod(map(self.get, over.split("*"))), divisor)
        return 0 if rest else whole

    def size_of(self, expression: str) -> int:
        """:meth:`compute`, and note sizes that the config doesn't say as missing."""
        names = re.split(r"[*+/]", expression)
        self.missing += [self.field(name) for name in names if not self.get(name)]
        return self.compute(expression)

    @property
    def mixer(self) -> str:
        """The kind of attention: grouped, mla, v4, mamba or mamba1."""
        is_latent = bool(self.stated("kv_lora_rank"))
        return self.family.get("mixer") or ("mla" if is_latent else "grouped")

    @property
    def has_experts(self) -> bool:
        """Whether a layer routes tokens to experts, as far as the config says."""
        return bool(self.get("expert_width") or self.family.get("experts_only"))

    @property
    def vision(self) -> Mapping[str, Any]:
        """The part of the config that describes a vision tower; empty without one."""
        parts = [self.whole[name] for name in VISION_PARTS if name in self.whole]
        return parts[0] if parts and isinstance(parts[0], Mapping) else {}


def _text_values(whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text model's fields; those of ``ffn_config`` and ``attn_config`` (DBRX, MPT) too."""
    parts = {name: part for name, part in whole.items() if isinstance(part, Mapping)}
    plain = {name: value for name, value in whole.items() if name not in parts}
    inner = {**parts.get("ffn_config", {}), **parts.get("attn_config", {})}
    text = [parts[name] for name in TEXT_PARTS if name in parts]
    return {**inner, **plain, **parts, **(text[0] if text else {})}


def whole_number(value: Any, field: str) -> int:
    """Return a field's value as a size, 0 where it has none. A list of equal sizes counts as one.

    Raises :class:`ConfigError` for what is no size, and for sizes that differ from layer to layer.
    """
    if isinstance(value, list) and value and field != "intermediate_size":
        if len(set(map(str, value))) > 1:
            raise ConfigError(f"the config's {field} differs from layer to layer: diagnose weights")
        value = value[0]
    if value is None or isinstance(value, list) or value == "auto":
        return 0
    if type(value) is not int or not 0 <= value <= MAX_SIZE:
        raise ConfigError(f"the config's {field} is {str(value)[:40]!r}: it must be a size")
    return value


def inventory_of_sizes(sizes: ConfigSizes, path: str = "config.json") -> Inventory:
    """Return the inventory of the model that a config describes, one layer of each kind: modules
    with one dense product each, no tensors, no adjustable dims.

    A size that the config doesn't say is 0, and ``sizes.missing`` then names it. Raises
    :class:`ConfigError` for a size that is none, and for a config of a compressed model.
    """
    dtype = dtype_name(sizes.values.get("dtype") or sizes.values.get("torch_dtype") or "bfloat16")
    attentions = []
    if sizes.get("heads") and sizes.mixer == "grouped":
        names = (("head_dim", "kv_heads"), ("global_head_dim", "global_kv"))
        for layer, (head_dim, kv_heads) in enumerate(names):
            if sizes.get(head_dim):
                heads = sizes.get("heads"), sizes.get(kv_heads), sizes.get(head_dim)
                attentions.append(AttentionHeads(layer, *heads))
    is_gated = sizes.family.get("is_gated", True)
    modules = [m for m in _modules(sizes, dtype) if is_gated or not m.role.endswith("gate")]
    return Inventory(
        tensors={},
        config=sizes.whole,
        container="config",
        path=path,
        layout="config",
        modules=tuple(modules),
        dims=(),
        attentions=tuple(attentions),
    )


def _modules(sizes: ConfigSizes, dtype: str) -> Iterator[Module]:
    """The linear layers of each kind of block, MLPs with a gate whether they have one or not."""
    for block in _blocks(sizes):
        layer = 1 if block == "global" else 0
        for name, role, n, k, *conditions in _tables()["modules"][block]:
            needs, lacks = (*conditions, "", "")[:2]
            if (needs and not sizes.compute(needs)) or (lacks and sizes.compute(lacks)):
                continue
            place = f"model.layers.{layer}.{name}"
            yield _module(place, role, layer, (sizes.size_of(n), sizes.size_of(k)), dtype)
    hidden = sizes.size_of("hidden_size")
    for layer, width in enumerate(mlp_widths(sizes)):
        sides = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
        for role, shape in sides.items():
            yield _module(f"model.layers.{layer}.mlp.{role}_proj", role, layer, shape, dtype)
    if sizes.get("vocab_size"):
        for name, role in (("model.embed_tokens", "embedding"), ("lm_head", "head")):
            yield _module(name, role, None, (sizes.get("vocab_size"), hidden), dtype)


def _module(name: str, role: str, layer: int | None, shape: tuple[int, int], dtype: str) -> Module:
    n, k = shape
    kind = "embedding" if role == "embedding" else "dense"
    gemms = (Gemm(f"{name}.weight", n, k),)
    return Module(name, role, layer, kind, k, n, dtype, gemms)  # type: ignore[arg-type]


def _blocks(sizes: ConfigSizes) -> Iterator[str]:
    """The kinds of blocks that a model has, by their names in ``families.toml``."""
    has_mamba = bool(sizes.get("mamba_heads"))
    has_heads = any(map(sizes.get, ("heads", "head_dim", "kv_heads")))
    if sizes.mixer != "grouped" and not sizes.mixer.startswith("mamba"):
        yield sizes.mixer
    elif sizes.mixer == "grouped" and (has_heads or not has_mamba):
        yield from ("grouped", "global")
    yield from ("delta_net", "mamba")
    names_mamba = any(field.startswith(("mamba_d_", "ssm_")) for field in sizes.values)
    if names_mamba or sizes.mixer == "mamba1":
        yield "mamba1"
    if sizes.has_experts and (sizes.get("expert_width") or sizes.get("experts")):
        yield "experts"
    yield "shared"


def mlp_widths(sizes: ConfigSizes) -> list[int]:
    """The distinct widths of dense MLPs, ascending; [0] where there is one of unknown width."""
    listed = sizes.values.get("intermediate_size")
    if isinstance(listed, list):
        return sorted({whole_number(width, "intermediate_size") for width in listed})
    family, values = sizes.family, sizes.values
    width = sizes.get("mlp_width")
    pattern = values.get("hybrid_override_pattern") or "-"
    is_sparse = sizes.has_experts and not family.get("dense_too")
    if family.get("experts_only") or sizes.mixer.startswith("mamba"):
        return []
    if not width:
        has_other_layers = "expert_width" in family or sizes.get("mamba_heads")
        return [] if has_other_layers else [sizes.size_of("mlp_width")]
    if is_sparse and family.get("dense_if_listed"):
        listed_layers = values.get("mlp_only_layers") or sizes.get("decoder_sparse_step") > 1
        return [width] if listed_layers else []
    if is_sparse and ("-" not in pattern or values.get("first_k_dense_replace") == 0):
        return []
    return [width]

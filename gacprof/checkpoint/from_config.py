"""An inventory made of a config.json alone: the products of each kind of layer, once.

Field names are read, nothing is executed. A size that the config doesn't say is 0 and named in
``missing``; it is never assumed, but for what the family's own configuration class means by silence
(``families.toml``).
"""

from __future__ import annotations

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
COMPRESSED = ("truncation_ranks", "head_wise_ranks", "slicing_config", "lowrank_config", "rank_map")
"""Fields that name compressed sizes (ASVD's, PaLU's and others' configs)."""
COMPRESSORS = ("asvd", "palu", "svdllm", "slicegpt", "basel", "dobi")
"""Words in the class names that compressors give their models (``ASVDLlamaForCausalLM``)."""


@cache
def _tables() -> Mapping[str, Any]:
    return tomllib.loads(files("gacprof.checkpoint").joinpath("families.toml").read_text("utf-8"))


@cache
def _families() -> Mapping[str, Mapping[str, Any]]:
    """Rows of ``families.toml`` by model type."""
    rows = [row for name, row in _tables().items() if "types" in row and name != "tied"]
    return {model_type: row for row in rows for model_type in row["types"]}


class ConfigSizes:
    """The sizes that a config names, by plain names whatever its family calls them.

    ``values`` are those of the text part, ``whole`` the config as it is; ``missing`` collects the
    config's names of sizes that were asked for and aren't there. Raises :class:`ConfigError` for a
    config of a compressed model, whose sizes it doesn't state in full.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        outer = config.get("thinker_config")
        self.whole: Mapping[str, Any] = outer if isinstance(outer, Mapping) else config
        self.values = _text_values(self.whole)
        self.missing: list[str] = []
        self.model_type = str(self.values.get("model_type") or self.whole.get("model_type") or "")
        named = {field for field in COMPRESSED if self.values.get(field)}
        architectures = str(self.values.get("architectures") or "").lower()
        named |= {word for word in COMPRESSORS if word in architectures}
        if named:
            raise ConfigError(
                f"the config is of a compressed model ({', '.join(sorted(named))}): "
                "'gacprof diagnose FOLDER' judges the sizes of its weights"
            )
        self.family = self._family()

    @property
    def is_known_type(self) -> bool:
        """Whether ``families.toml`` lists the model type."""
        return "types" in self.family

    def _family(self) -> Mapping[str, Any]:
        for name in (self.model_type, str(self.whole.get("model_type", ""))):
            for plain in (name, name.removesuffix("_text"), name.replace("-", "_")):
                if plain in _families():
                    return _families()[plain]
        row: dict[str, Any] = {}
        if self._number("moe_intermediate_size"):
            row["expert"] = "moe_intermediate_size"
        elif self._number("experts") > 1:
            row |= {"expert": "intermediate_size", "experts_only": True}
        shared = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
        for field in (*shared, "share_expert_dim"):
            if self._number(field):
                return {**row, "shared": field}
        if "expert" in row and self._number("shared_count"):
            row["shared"] = "count * expert"
        return row

    def field(self, name: str) -> str:
        """The config's own name of a size."""
        fields = self._fields(name)
        for field in fields:
            if self.values.get(field) is not None:
                return field
        return fields[0] if fields else name

    def _fields(self, name: str) -> Sequence[str]:
        family = getattr(self, "family", {})
        if family.get("mixer", "").startswith("mamba") and name in _tables()["fields-of-mamba"]:
            return _tables()["fields-of-mamba"][name]
        return _tables()["fields"].get(name, [name])

    def _number(self, name: str) -> int:
        for field in self._fields(name):
            number = whole_number(self.values.get(field), field)
            if number:
                return number
        return 0

    def get(self, name: str) -> int:
        """A size, by what the family means where the config is silent; 0 where nothing says it."""
        number = self._number(name)
        if name == "head_dim" and not number:
            heads, hidden = self._number("heads"), self._number("hidden_size")
            number = self.family.get("head_dim", 0)
            if not number and heads and hidden % heads == 0:
                number = hidden // heads
        elif name == "kv_heads":
            is_new = self.values.get("new_decoder_architecture") is True
            if self.values.get("multi_query") is True and not is_new:  # Falcon, GPTBigCode
                return 1
            if not number:
                meaning = self.family.get("kv_heads", 0)
                number = self._number("heads") if meaning == "heads" else meaning
        elif name == "mamba_head_dim" and not number:
            inner = self._number("mamba_d_ssm")
            inner = inner or self._number("mamba_expand") * self._number("hidden_size")
            heads = self._number("mamba_heads")
            number = inner // heads if heads and inner % heads == 0 else 0
        elif name == "intermediate_size" and not number:
            number = self.family.get("mlp_ratio", 0) * self._number("hidden_size")
        return number

    def times(self, *names: str) -> int:
        """The product of sizes; 0, and the missing ones noted, where one isn't said."""
        sizes = {name: self.get(name) for name in names}
        self.missing += [self.field(name) for name, size in sizes.items() if not size]
        return prod(sizes.values())

    @property
    def is_latent(self) -> bool:
        """Whether attention is multi-head latent attention (DeepSeek)."""
        mixer = self.family.get("mixer", "")
        return mixer == "mla" or bool(self._number("kv_lora_rank") and not mixer)

    @property
    def has_experts(self) -> bool:
        expert = self.family.get("expert")
        return bool(expert and (self._number(expert) or self.family.get("experts_only")))

    @property
    def vision(self) -> Mapping[str, Any]:
        """The part of the config that describes a vision tower; empty without one."""
        parts = [self.whole.get(name) for name in VISION_PARTS]
        return next((part for part in parts if isinstance(part, Mapping)), {})


def _text_values(whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text model's fields; those of ``ffn_config`` and ``attn_config`` (DBRX, MPT) too."""
    for name in TEXT_PARTS:
        part = whole.get(name)
        if isinstance(part, Mapping):
            return {k: v for k, v in whole.items() if not isinstance(v, Mapping)} | part
    inner: dict[str, Any] = {}
    for name in ("ffn_config", "attn_config"):
        part = whole.get(name)
        if isinstance(part, Mapping):
            inner |= {k: v for k, v in part.items() if not isinstance(v, Mapping | list)}
    return inner | whole


def whole_number(value: Any, field: str) -> int:
    """A field's value as a size; 0 for none. A list of equal sizes, one a layer, is one size.

    Raises :class:`ConfigError` for what is no size, and for sizes that differ from layer to layer.
    """
    if isinstance(value, list) and value:
        if any(item != value[0] for item in value) and field != "intermediate_size":
            raise ConfigError(f"the config's {field} differs from layer to layer: diagnose weights")
        value = value[0]
    if value is None or isinstance(value, list) or value == "auto":
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_SIZE:
        raise ConfigError(f"the config's {field} is {str(value)[:40]!r}: it must be a size")
    return value


def inventory_from_config(config: Mapping[str, Any], path: str = "config.json") -> Inventory:
    """The inventory of the model that a config describes, one layer of each kind.

    Parameters
    ----------
    config
        What a config.json holds.
    path
        A name for messages.

    Returns
    -------
    Inventory
        Modules with one product each, dense; a size that the config doesn't say is 0. Experts are
        one expert. There are no tensors and no adjustable dims.

    Raises
    ------
    ConfigError
        For a size that is none, and for a config of a compressed model.
    """
    return inventory_of_sizes(ConfigSizes(config), path)


def inventory_of_sizes(sizes: ConfigSizes, path: str = "config.json") -> Inventory:
    """The same of a config that was read; ``sizes.missing`` then names what it doesn't say."""
    dtype = dtype_name(sizes.values.get("dtype") or sizes.values.get("torch_dtype") or "bfloat16")
    modules = []
    for kind in (_attention, _delta_net, _mamba, _dense_mlp, _experts, _vocabulary):
        for name, role, n, k in kind(sizes):
            weight = f"{name}.weight"
            form = "embedding" if role == "embedding" else "dense"
            gemms = (Gemm(weight, n, k),)
            layer = int(name.split(".")[2]) if ".layers." in name else None
            modules.append(Module(name, role, layer, form, k, n, dtype, gemms))  # type: ignore[arg-type]
    heads, kv_heads = sizes.get("heads"), sizes.get("kv_heads")
    attentions = []
    if heads and not sizes.family.get("mixer") and not sizes.is_latent:
        attentions.append(AttentionHeads(0, heads, kv_heads, sizes.get("head_dim")))
        if sizes.get("global_head_dim"):
            global_kv = sizes.get("global_kv_heads") or kv_heads
            attentions.append(AttentionHeads(1, heads, global_kv, sizes.get("global_head_dim")))
    return Inventory(
        tensors={}, config=sizes.whole, container="config", path=path, layout="config",
        modules=tuple(modules), dims=(), attentions=tuple(attentions),
    )  # fmt: skip


Rows = Iterator[tuple[str, str, int, int]]
"""(module, role, N, K) of linear layers."""


def _attention(at: ConfigSizes) -> Rows:
    mixer = at.family.get("mixer", "")
    if mixer.startswith("mamba"):
        return
    if at.is_latent:
        yield from _latent(at)
    elif mixer == "v4":  # DeepSeek-V4: a latent q, an output in groups of low rank
        name = "model.layers.0.attn"
        if at.get("q_lora_rank"):
            yield f"{name}.wq_b", "q_b", at.times("heads", "head_dim"), at.get("q_lora_rank")
        if at.get("o_lora_rank"):
            n = at.times("hidden_size")
            yield f"{name}.wo_b", "o_b", n, at.times("o_groups", "o_lora_rank")
    elif any(map(at.get, ("heads", "head_dim", "kv_heads"))) or not at.get("mamba_heads"):
        yield from _grouped(at, 0, "head_dim", "kv_heads")
        if at.get("global_head_dim"):
            kv_heads = "global_kv_heads" if at.get("global_kv_heads") else "kv_heads"
            yield from _grouped(at, 1, "global_head_dim", kv_heads)


def _grouped(at: ConfigSizes, layer: int, head_dim: str, kv_heads: str) -> Rows:
    name, hidden = f"model.layers.{layer}.self_attn", at.times("hidden_size")
    value_dim = "v_head_dim" if at.get("v_head_dim") else head_dim
    gate = 2 if at.family.get("q_gate") and at.values.get("attn_output_gate") is not False else 1
    yield f"{name}.q_proj", "q", gate * at.times("heads", head_dim), hidden
    yield f"{name}.k_proj", "k", at.times(kv_heads, head_dim), hidden
    yield f"{name}.v_proj", "v", at.times(kv_heads, value_dim), hidden
    yield f"{name}.o_proj", "o", hidden, at.times("heads", value_dim)


def _latent(at: ConfigSizes) -> Rows:
    name, hidden = "model.layers.0.self_attn", at.times("hidden_size")
    rope, latent, rank = map(at.get, ("qk_rope_head_dim", "kv_lora_rank", "q_lora_rank"))
    if rank:
        yield f"{name}.q_a_proj", "q_a", rank, hidden
    kv_a = latent + rope if latent and rope else 0
    if rank or kv_a:
        yield f"{name}.kv_a_proj_with_mqa", "kv_a", kv_a, hidden
    nope, value_dim, heads = at.get("qk_nope_head_dim"), at.get("v_head_dim"), at.get("heads")
    if nope or value_dim:
        end = "q_b_proj" if rank else "q_proj"
        yield f"{name}.{end}", "q_b", heads * (nope + rope) if nope and rope else 0, rank or hidden
        kv_b = heads * (nope + value_dim) if nope and value_dim else 0
        yield f"{name}.kv_b_proj", "kv_b", kv_b, at.times("kv_lora_rank")
        yield f"{name}.o_proj", "o", hidden, heads * value_dim


def _delta_net(at: ConfigSizes) -> Rows:
    """Gated delta nets (Qwen3-Next): four parts of one product, and the way out."""
    if not (at.get("linear_num_key_heads") or at.get("linear_num_value_heads")):
        return
    name, hidden = "model.layers.0.linear_attn", at.times("hidden_size")
    key = at.times("linear_num_key_heads", "linear_key_head_dim")
    value = at.times("linear_num_value_heads", "linear_value_head_dim")
    for part, size in (("q", key), ("k", key), ("v", value), ("z", value)):
        yield f"{name}.in_proj_qkvz", f"gdn_{part}", size, hidden
    yield f"{name}.out_proj", "gdn_out", hidden, value


def _mamba(at: ConfigSizes) -> Rows:
    """Mamba-2 mixers: gate, input, B and C of each group, and one step a head."""
    name = "model.layers.0.mixer"
    if not at.get("mamba_heads"):
        is_older = any(field.startswith(("mamba_d_", "ssm_")) for field in at.values)
        if is_older or at.family.get("mixer") == "mamba1":
            yield f"{name}.in_proj", "mamba1", 0, 0
        return
    hidden, inner = at.times("hidden_size"), at.times("mamba_heads", "mamba_head_dim")
    state = at.times("mamba_groups", "mamba_state")
    parts = {"z": inner, "x": inner, "B": state, "C": state, "dt": at.times("mamba_heads")}
    for part, size in parts.items():
        yield f"{name}.in_proj", f"mamba_{part}", size, hidden
    yield f"{name}.out_proj", "mamba_out", hidden, inner


def _mlp(at: ConfigSizes, name: str, width: int, prefix: str = "") -> Rows:
    hidden = at.times("hidden_size")
    if at.family.get("is_gated", True):
        yield f"{name}.gate_proj", f"{prefix}gate", width, hidden
    yield f"{name}.up_proj", f"{prefix}up", width, hidden
    yield f"{name}.down_proj", f"{prefix}down", hidden, width


def _dense_mlp(at: ConfigSizes) -> Rows:
    for i, width in enumerate(layer_widths(at)):
        yield from _mlp(at, f"model.layers.{i}.mlp", width)


def layer_widths(at: ConfigSizes) -> list[int]:
    """The distinct widths of dense MLPs, ascending; [0] where there is one of unknown width."""
    listed = at.values.get("intermediate_size")
    widths = set(listed) if isinstance(listed, list) else set()
    for block in at.values.get("block_configs") or ():  # Nemotron-NAS (vLLM, nemotron_nas.py)
        ffn = block.get("ffn") or {}
        if ffn.get("ffn_mult") and not ffn.get("intermediate_size"):
            widths.add(-(-int(2 * ffn["ffn_mult"] * at.get("hidden_size") / 3) // 256) * 256)
        elif not ffn.get("no_op"):
            widths.add(whole_number(ffn.get("intermediate_size"), "intermediate_size"))
    per_layer = at.values.get("per_layer_config")
    for layer in per_layer.values() if isinstance(per_layer, Mapping) else ():
        widths |= {layer.get("intermediate_size", 0), at.get("intermediate_size")}
    if widths - {0}:
        return sorted(widths - {0})
    width = at.get(at.family.get("dense", "intermediate_size"))
    if not _runs_dense(at, width):
        return []
    return [width or at.times(at.family.get("dense", "intermediate_size"))]


def _runs_dense(at: ConfigSizes, width: int) -> bool:
    """Whether any layer has a dense MLP, or none is said to be without."""
    family, values = at.family, at.values
    if family.get("experts_only") or family.get("mixer", "").startswith("mamba"):
        return False
    if not width:
        return not at.has_experts and "expert" not in family and not at.get("mamba_heads")
    if not at.has_experts or family.get("dense_too"):
        return True
    if family.get("dense_if_listed"):
        return bool(values.get("mlp_only_layers")) or at.get("decoder_sparse_step") > 1
    pattern = values.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return "-" in pattern
    return values.get("first_k_dense_replace") != 0


def _experts(at: ConfigSizes) -> Rows:
    """One routed expert, and the experts that every token takes."""
    expert, shared = at.family.get("expert", ""), at.family.get("shared", "")
    if at.has_experts and (at.get(expert) or at.get("experts")):
        yield from _mlp(at, "model.layers.0.mlp.experts.0", at.times(expert), "expert_")
    if shared == "count * expert" and at.get("shared_count"):
        width = at.times("shared_count", expert)
        yield from _mlp(at, "model.layers.0.mlp.shared_experts", width, "shared_")
    elif shared and shared != "count * expert" and at.get(shared):
        yield from _mlp(at, "model.layers.0.mlp.shared_expert", at.get(shared), "shared_")


def _vocabulary(at: ConfigSizes) -> Rows:
    if at.get("vocab_size"):
        yield "model.embed_tokens", "embedding", at.get("vocab_size"), at.times("hidden_size")
        yield "lm_head", "head", at.get("vocab_size"), at.times("hidden_size")

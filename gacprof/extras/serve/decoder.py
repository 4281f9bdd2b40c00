"""A Llama-like decoder as the export formats see it: config, sizes layer by layer, tensor names.

Every format writes the same kind of model: an embedding, layers of attention (q, k, v, o) and a
gated MLP (gate, up, down), a norm, a head. Here a checkpoint of any layout becomes that, or is
refused with the reason. No tensor data is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gacprof.checkpoint.config import effective_config, refuse_oversized
from gacprof.checkpoint.inventory import AttentionHeads, Inventory, Module
from gacprof.core.errors import CheckpointError
from gacprof.extras.serve.carried import decoder_settings, refuse_unless, rope_scaling
from gacprof.planning.costs import footprint
from gacprof.resizing.sizes import Fuse

FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
"""Model types that are exported, and how transformers names their classes."""

ROPE_THETA = 10000.0
"""What a Llama's config means where it names no base (transformers' default_theta)."""

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")
_HEAD_NORMS = ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
_DERIVED = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached")


@dataclass(frozen=True)
class Decoder:
    """``names`` maps stored tensors to a plain Llama's names; of factored layers to
    ``….inner.weight`` [r, in] and ``….outer.weight`` [out, r], per group ``….outer.{i}.weight``.

    ``config`` holds what :mod:`.carried` lets pass and is true to the tensors: uniform head counts,
    head_dim, the largest width, RoPE as ``rope_theta`` and ``rope_scaling``, which every version of
    every reader knows.
    """

    inventory: Inventory
    config: Mapping[str, Any]
    modules: Mapping[str, Module]
    attentions: tuple[AttentionHeads, ...]
    widths: tuple[int, ...]
    names: Mapping[str, str]

    @property
    def path(self) -> str:
        return self.inventory.path

    @property
    def family(self) -> str:
        return str(self.config["model_type"])

    @property
    def head_dim(self) -> int:
        return self.attentions[0].head_dim

    @property
    def has_equal_heads(self) -> bool:
        return len({(a.heads, a.kv_heads) for a in self.attentions}) == 1

    @cached_property
    def factored(self) -> tuple[Module, ...]:
        return tuple(m for m in self.modules.values() if m.kind in ("factored", "grouped"))

    @property
    def attention_window(self) -> int | None:
        """The sliding window of attention, where the config uses one."""
        window = self.config.get("sliding_window")
        used = self.config.get("use_sliding_window", self.family == "mistral")
        return int(window) if used and window else None

    @property
    def rope(self) -> tuple[str, Mapping[str, Any]]:
        """How RoPE is scaled ("default" where it is not), with the numbers of it."""
        scaling = self.config["rope_scaling"] or {}
        return _rope_kind(scaling), scaling

    def beyond(self, engine: str) -> str:
        """What of this model ``engine``'s plain decoder does not compute; empty for nothing."""
        if self.family == "qwen3":
            return f"it norms queries and keys, which {engine} does not"
        if self.config.get("hidden_act", "silu") != "silu":
            return f"its activation is {self.config['hidden_act']}, {engine} has silu"
        if self.attention_window is not None:
            return f"its attention has a window of {self.attention_window}, {engine} has none"
        return ""

    def refuse_factors(self, what: str) -> None:
        """Raise :class:`CheckpointError` where a layer is factored, with what merging costs."""
        if not self.factored:
            return
        before = self.inventory.parameters
        after = footprint(self.inventory, Fuse().request(self.inventory).sizes).parameters
        raise CheckpointError(
            f"{self.path}: {len(self.factored)} layers are factor pairs ({self.factored[0].name} "
            f"the first), which {what} cannot hold: merge them with 'gacprof realign "
            f"{self.path} --fuse --out DIR' ({before:,} → {after:,} parameters, "
            f"{after / before - 1:+.1%}), or export --to transformers"
        )


def read_decoder(inventory: Inventory) -> Decoder:
    """The decoder in a checkpoint. Raises :class:`CheckpointError` where it is none."""
    _refuse_layout(inventory)
    config = effective_config(inventory)
    family = config["model_type"]
    if family not in FAMILIES:
        raise CheckpointError(
            f"{inventory.path}: models of type '{family}' are not exported, only "
            f"{', '.join(FAMILIES)}; 'gacprof realign --uniform' may make a plain one of it"
        )
    layers = config.get("num_hidden_layers")
    if type(layers) is not int or layers < 1:
        raise CheckpointError(f"{inventory.path}: config.json does not say num_hidden_layers")
    refuse_oversized(config, inventory)
    wanted = [*_linears(layers), "lm_head"]
    modules = {m.name: m for m in inventory.modules if m.name in wanted}
    missing = next((n for n in _linears(layers) if n not in modules), None)
    if missing is not None:
        raise CheckpointError(f"{inventory.path}: has no {missing}: not a {family}'s layers")
    attentions = {a.layer: a for a in inventory.attentions}
    if sorted(attentions) != list(range(layers)):
        raise CheckpointError(f"{inventory.path}: the heads of its {layers} layers are not known")
    widths = tuple(modules[f"model.layers.{i}.mlp.down_proj"].in_features for i in range(layers))
    ordered = tuple(attentions[i] for i in range(layers))
    names = _names(inventory, modules, layers, family)
    true = _true_config(config, inventory, ordered, widths, names)
    return Decoder(inventory, true, modules, ordered, widths, names)


def _linears(layers: int) -> Iterator[str]:
    for i in range(layers):
        yield from (f"model.layers.{i}.self_attn.{part}" for part in _ATTENTION)
        yield from (f"model.layers.{i}.mlp.{part}" for part in _MLP)


def _refuse_layout(inventory: Inventory) -> None:
    if inventory.is_quantised:
        raise CheckpointError(
            f"{inventory.path} is quantised: export the checkpoint that it was made from"
        )
    if any(dim.kind == "hidden" for dim in inventory.dims):
        raise CheckpointError(
            f"{inventory.path} has a sliced hidden size and shortcut matrices between layers, "
            "which no engine's format describes; SliceGPT's own loader runs it"
        )
    if "text_config" in inventory.config:
        raise CheckpointError(f"{inventory.path} is multimodal: only text decoders are exported")


def _names(
    inventory: Inventory, modules: Mapping[str, Module], layers: int, family: str
) -> dict[str, str]:
    """Stored name → exported name. Raises :class:`CheckpointError` for a tensor without a place."""
    from gacprof.checkpoint.layers import parameter_names

    norms = _NORMS + (_HEAD_NORMS if family == "qwen3" else ())
    plain = [_EMBEDDING, "model.norm.weight"]
    plain += [f"model.layers.{i}.{norm}" for i in range(layers) for norm in norms]
    missing = sorted(set(plain) - inventory.tensors.keys())
    if missing:
        raise CheckpointError(f"{inventory.path}: has no {missing[0]}: not a {family}'s tensors")
    for name in plain:
        shape, sides = inventory.tensors[name].shape, 2 if name == _EMBEDDING else 1
        if len(shape) != sides or not all(shape):
            raise CheckpointError(
                f"{inventory.path}: {name} has the shape {list(shape)}, not a {family}'s"
            )
    names = {name: name for name in plain}
    for module in modules.values():
        if module.kind in ("factored", "grouped"):
            names |= parameter_names(module)
            continue
        for gemm in module.gemms:
            names[gemm.weight] = gemm.weight
            if gemm.bias:
                names[f"{module.name}.bias"] = f"{module.name}.bias"
    stray = sorted(n for n in inventory.tensors if n not in names and not n.endswith(_DERIVED))
    if stray:
        raise CheckpointError(
            f"{inventory.path}: a {family} has no place for {stray[0]}"
            + (f" and {len(stray) - 1} more" if len(stray) > 1 else "")
        )
    if not inventory.has_own_head:
        names.pop(_HEAD, None)  # a second name of the embedding
    return names


def _true_config(
    config: Mapping[str, Any],
    inventory: Inventory,
    attentions: tuple[AttentionHeads, ...],
    widths: tuple[int, ...],
    names: Mapping[str, str],
) -> dict[str, Any]:
    if len({a.head_dim for a in attentions}) > 1:
        raise CheckpointError(f"{inventory.path}: layers differ in their head_dim")
    if not inventory.has_own_head and not inventory.ties_head:
        raise CheckpointError(
            f"{inventory.path}: has no {_HEAD}, and its config does not tie it to the embedding"
        )
    path = inventory.path
    parameters = rope_scaling(config.get("rope_parameters") or {}, path)
    scaling = rope_scaling(config.get("rope_scaling") or {}, path) or parameters
    thetas = (scaling.get("rope_theta"), parameters.get("rope_theta"), config.get("rope_theta"))
    theta = next((theta for theta in thetas if theta), ROPE_THETA)
    refuse_unless(type(theta) in (int, float), path, "rope_theta", theta)
    scaling = {key: value for key, value in scaling.items() if key != "rope_theta"}
    vocabulary, hidden = inventory.tensors[_EMBEDDING].shape
    return decoder_settings(config, path) | {
        "rope_theta": float(theta),
        "rope_scaling": dict(scaling) if _rope_kind(scaling) != "default" else None,
        "head_dim": attentions[0].head_dim,
        "num_attention_heads": max(a.heads for a in attentions),
        "num_key_value_heads": max(a.kv_heads for a in attentions),
        "intermediate_size": max(widths),
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "tie_word_embeddings": not inventory.has_own_head,
        "torch_dtype": _dtype(inventory, names),
    }


def _rope_kind(scaling: Mapping[str, Any]) -> str:
    return str(scaling.get("rope_type", scaling.get("type", "default")))


def _dtype(inventory: Inventory, names: Mapping[str, str]) -> str:
    """The widest type that is stored, as gacprof.load_model takes it."""
    stored = {inventory.tensors[name].dtype for name in names}
    widest = next((dtype for dtype in ("float64", "float32") if dtype in stored), "")
    if widest or stored == {"float16", "bfloat16"}:
        return widest or "float32"
    if len(stored) == 1 and stored <= {"float16", "bfloat16"}:
        return stored.pop()
    raise CheckpointError(
        f"{inventory.path}: weights stored as {', '.join(sorted(stored))} are not exported; "
        "float32, float16 and bfloat16 are"
    )

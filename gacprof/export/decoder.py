"""A checkpoint as our model code reads it: tensor names, and a config of sizes layer by layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gacprof.checkpoint.config import LLAMA_ROPE_THETA, effective_config
from gacprof.checkpoint.inventory import Inventory, is_derived
from gacprof.checkpoint.layers import parameter_names
from gacprof.core.errors import CheckpointError
from gacprof.workload.roles import role_of_module

FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
"""Model types that are exported, and how transformers names their classes."""

MODULE = "modeling_gacprof"

SETTINGS = (
    "num_hidden_layers",
    "max_position_embeddings",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "rms_norm_eps",
    "initializer_range",
    "attention_dropout",
    "attention_bias",
    "mlp_bias",
    "hidden_act",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
"""Keys of a config that an export carries, besides RoPE and the sizes that the tensors say. Others
can name code (``attn_implementation``: "org/kernel"), and users load an export with
``trust_remote_code``."""


@dataclass(frozen=True)
class Decoder:
    """Names of exported tensors by stored ones', the exported config, engines that can load it."""

    family: str
    names: Mapping[str, str]
    config: Mapping[str, Any]
    engines: tuple[str, ...]


def read_decoder(inventory: Inventory) -> Decoder:
    """The decoder in a checkpoint. Raises :class:`CheckpointError` where it is none."""
    config = effective_config(inventory)
    family = str(config["model_type"])
    head_dims = {attention.head_dim for attention in inventory.attentions}
    sliced = any(dim.kind == "hidden" for dim in inventory.dims)
    if family not in FAMILIES or inventory.is_quantised or sliced or len(head_dims) != 1:
        raise CheckpointError(
            f"{inventory.path} is not exported: only {', '.join(FAMILIES)} are, neither quantised "
            "nor with a sliced hidden size, and with one head_dim in all layers"
        )
    ours = parameter_names(inventory)
    names = {name: ours.get(name, name) for name in inventory.tensors if not is_derived(name)}
    if not inventory.has_own_head:
        names.pop("lm_head.weight", None)  # a second name of the embedding
    ranks: dict[str, int | list[int]] = {}
    for module in inventory.modules:
        if module.kind == "factored":
            ranks[module.name] = module.gemms[1].K
        elif module.kind == "grouped":
            ranks[module.name] = [gemm.K for gemm in module.gemms[1:]]
    heads = [[a.heads, a.kv_heads] for a in inventory.attentions]
    downs = [module for module in inventory.modules if module.role == "down"]
    widths = [down.in_features for down in sorted(downs, key=lambda down: down.layer or 0)]
    engines = ["transformers"]
    if heads == [heads[0]] * len(heads) and "lm_head" not in ranks:
        engines.append("vllm")  # it builds one head count for all layers, and a dense lm_head
    vocabulary, hidden = inventory.shape("model.embed_tokens.weight")
    kinds = {"AutoConfig": "Config", "AutoModel": "Model", "AutoModelForCausalLM": "ForCausalLM"}
    exported = {key: config[key] for key in SETTINGS if key in config} | rope_of(config)
    exported |= {
        "model_type": f"gacprof_{family}",
        "architectures": [f"Gacprof{FAMILIES[family]}ForCausalLM"],
        "auto_map": {a: f"{MODULE}.Gacprof{FAMILIES[family]}{kind}" for a, kind in kinds.items()},
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "head_dim": head_dims.pop(),
        "num_attention_heads": max(heads)[0],
        "num_key_value_heads": max(kv_heads for _, kv_heads in heads),
        "intermediate_size": max(widths),
        "tie_word_embeddings": "lm_head" not in ranks and "lm_head.weight" not in names,
        "torch_dtype": inventory.main_dtype,
        "factor_ranks": ranks,
        "layer_widths": widths,
        "layer_heads": heads,
        "layer_splits": layer_splits(inventory),
    }
    return Decoder(family, names, exported, tuple(engines))


def layer_splits(inventory: Inventory) -> dict[str, str]:
    """The tensor-parallel split of every linear layer, in the words of transformers' plans; none
    where groups are factored."""
    splits: dict[str, str] = {}
    dense: dict[str, str] = {}
    for module in inventory.modules:
        split = role_of_module(module).split
        if module.kind == "grouped":
            return {}
        if module.layer is None or split == "replicated":
            continue
        pattern = module.name.replace(f"model.layers.{module.layer}.", "layers.*.", 1)
        if module.kind == "dense":
            dense[pattern] = "colwise" if split == "column" else "rowwise"
        elif split == "column":
            splits |= {f"{pattern}.inner": "replicate", f"{pattern}.outer": "colwise"}
        else:
            splits |= {f"{pattern}.inner": "rowwise", f"{pattern}.outer": "replicate"}
    # engines take keys for patterns and the first match counts: the longer keys of factors go first
    return splits | dense


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """RoPE as ``rope_theta`` and ``rope_scaling``."""
    # transformers 5 stores rope_parameters, and reads the older keys, which 4.56 needs
    scaling = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = scaling.pop("rope_theta", None) or config.get("rope_theta") or LLAMA_ROPE_THETA
    if scaling.get("rope_type", scaling.get("type", "default")) == "default":
        return {"rope_theta": theta}
    return {"rope_theta": theta, "rope_scaling": scaling}

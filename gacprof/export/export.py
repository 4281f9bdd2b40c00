"""One folder for transformers and vLLM: renamed weights, config, model code, tokenizer; checked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file, save_file

from gacprof.check.models import random_ids
from gacprof.check.verify import SEQUENCES, logits_of
from gacprof.checkpoint.config import LLAMA_ROPE_THETA, effective_config, without_code
from gacprof.checkpoint.containers import read_json_object
from gacprof.checkpoint.inventory import Inventory, is_derived
from gacprof.checkpoint.layers import parameter_names
from gacprof.checkpoint.scan import inventory_of, side_files
from gacprof.checkpoint.writer import write_weights
from gacprof.core.errors import CheckpointError
from gacprof.core.files import new_folder, write_json
from gacprof.core.results import Result
from gacprof.realigning.changes import NewCheckpoint, NewTensor
from gacprof.realigning.realign import output_tensors
from gacprof.workload.roles import role_of_module

# model types that are exported, and how transformers names their classes
FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
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

TOKENS = 16
# of the largest logit, in float32: orders of adding differ by 1e-6 (small models) to 1e-5
LOGIT_TOLERANCE = 1e-4
MAY_NAME_CODE = ("tokenizer_config.json", "generation_config.json")
SERVE = {
    "transformers": "AutoModelForCausalLM.from_pretrained('{out}', trust_remote_code=True)",
    "vllm": "vllm serve {out} --trust-remote-code --model-impl transformers",
}


@dataclass(frozen=True)
class Exported(Result):
    """An exported folder. ``serve`` says how each engine loads it; ``max_error`` is the largest
    difference of transformers' logits from gacprof's over the largest logit, None where not
    checked."""

    schema: ClassVar[str] = "gacprof.Exported/1"

    folder: str
    serve: dict[str, str]
    max_error: float | None


def export(
    checkpoint: str | Path | Inventory,
    out: str | Path,
    *,
    tokenizer: str | Path | None = None,
    check: bool = True,
) -> Exported:
    """Write a folder that transformers and vLLM load, for layers of different sizes.

    It brings its own model code, for factor pairs, and for widths and heads that differ by layer.
    For llama.cpp and other servers of plain models, use ``realign`` with "uniform" and their own
    converters.

    Parameters
    ----------
    checkpoint
        A Llama-like decoder (Llama, Mistral, Qwen 2, Qwen 3) of any layout.
    out
        The new folder, which must not exist.
    tokenizer
        A folder with the tokenizer. By default the checkpoint's own.
    check
        Whether to load the folder with transformers, in a process without gacprof, and compare
        logits; this holds the model in float32.

    Raises
    ------
    CheckpointError
        The checkpoint is no such decoder, or what was written does not compute the same.
    FileExistsError
        ``out`` exists.

    Examples
    --------
    >>> served = gacprof.export("tests/fixtures/checkpoints/asvd_mha_r1", "served")
    >>> served.max_error < 1e-3
    True
    """
    inventory = inventory_of(checkpoint)
    names, config = read_decoder(inventory)
    engines = ["transformers"]
    heads = config["layer_heads"]
    if heads == [heads[0]] * len(heads) and "lm_head" not in config["factor_ranks"]:
        engines.append("vllm")  # it builds one head count for all layers, and a dense lm_head
    max_error = None
    with new_folder(Path(out)) as folder:
        tensors = tuple(NewTensor(new, (old,)) for old, new in names.items())
        renamed = NewCheckpoint(inventory, {}, (), (), tensors)
        write_weights(folder, inventory, output_tensors(renamed))
        write_side_files(config, Path(tokenizer or inventory.folder), folder)
        if check:
            max_error = error_in_transformers(inventory, folder)
    serve = {engine: SERVE[engine].format(out=out) for engine in engines}
    return Exported(str(out), serve, max_error)


def read_decoder(inventory: Inventory) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the exported tensors' names by stored ones', and the config; :class:`CheckpointError`
    for what is no such decoder."""
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
    return names, exported


def layer_splits(inventory: Inventory) -> dict[str, str]:
    """Return the tensor-parallel split of every linear layer, in the words of transformers' plans;
    none where groups are factored."""
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
        else:
            parts = ("replicate", "colwise") if split == "column" else ("rowwise", "replicate")
            splits |= {f"{pattern}.inner": parts[0], f"{pattern}.outer": parts[1]}
    # engines take keys for patterns and the first match counts: the longer keys of factors go first
    return splits | dense


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return RoPE as ``rope_theta`` and ``rope_scaling``."""
    # transformers 5 stores rope_parameters, and reads the older keys, which 4.56 needs
    scaling = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = scaling.pop("rope_theta", None) or config.get("rope_theta") or LLAMA_ROPE_THETA
    if scaling.get("rope_type", scaling.get("type", "default")) == "default":
        return {"rope_theta": theta}
    return {"rope_theta": theta, "rope_scaling": scaling}


def write_side_files(config: Mapping[str, Any], tokenizer: Path, folder: Path) -> None:
    """Write config, code and tokenizer."""
    write_json(folder / "config.json", config)
    family = config["model_type"].removeprefix("gacprof_")
    code = Path(__file__).with_name("modeling_llama.py").read_text(encoding="utf-8")
    code = code.replace("Llama", FAMILIES[family]).replace("llama", family)
    (folder / f"{MODULE}.py").write_text(code, encoding="utf-8")
    for name in side_files(tokenizer):
        if name in MAY_NAME_CODE:
            write_json(folder / name, without_code(read_json_object(tokenizer / name)))
        elif name != "config.json" and not name.endswith(".py"):
            shutil.copy(tokenizer / name, folder / name)


def error_in_transformers(inventory: Inventory, folder: Path) -> float:
    """Return the largest difference of transformers' logits from the checkpoint's, over the largest
    logit."""
    expected = logits_of(inventory, TOKENS, "float32", torch.device("cpu"))
    with tempfile.TemporaryDirectory(prefix="gacprof-") as scratch:
        ids, logits = Path(scratch) / "ids", Path(scratch) / "logits"
        vocabulary, _ = inventory.shape("model.embed_tokens.weight")
        save_file({"ids": random_ids(vocabulary, (SEQUENCES, TOKENS))}, ids)
        script = Path(__file__).with_name("load_alone.py")
        # transformers copies model code into its cache: ours would stay there after the check
        environment = {**os.environ, "HF_MODULES_CACHE": scratch, "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, str(script), str(folder), str(ids), str(logits)]
        process = subprocess.run(command, env=environment, capture_output=True, text=True)
        if process.returncode:
            reason = process.stderr.strip().rpartition("\n")[2]
            raise CheckpointError(f"transformers does not load the export: {reason}")
        difference = load_file(logits)["logits"] - expected
    error = float(difference.abs().max() / expected.abs().max())
    if error > LOGIT_TOLERANCE:
        raise CheckpointError(
            f"{inventory.path}: transformers' logits differ by {error:.1e} of the largest: the "
            "checkpoint has tensors that a decoder of its family does not read"
        )
    return error

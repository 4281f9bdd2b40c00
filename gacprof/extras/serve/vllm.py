"""Folders for vLLM: its Transformers backend, and its own DeciLM with a width for every layer.

``vllm`` is the transformers folder where that backend can take it. ``vllm-native`` needs no code
of ours to compute: vLLM's DeciLMForCausalLM (models/nemotron_nas.py) reads ``block_configs``. It
has one count of query heads and no factors. Other readers of DeciLM (SGLang, TensorRT-LLM,
mlx-lm, llama.cpp's converter) know ``ffn_mult`` only, which gives multiples of 256:
``blocks_of=256`` pads the widths with zeros and writes it.
"""

from __future__ import annotations

from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.core.errors import CheckpointError
from gacprof.extras.serve.decoder import Decoder, read_decoder
from gacprof.extras.serve.folder import FolderExport, remote_code, with_code
from gacprof.extras.serve.request import ExportRequest

MODULE = "configuration_nemotron_nas"
NO_ENGINE = "vLLM is not run from here (it has an environment of its own)"
FFN_MULTIPLE = 256
"""DeciLM's formula rounds ⌊2 · ffn_mult · hidden / 3⌋ up to a multiple of this."""


def prepare(inventory: Inventory, request: ExportRequest) -> FolderExport:
    """A folder for vLLM's and SGLang's Transformers backends."""
    decoder = read_decoder(inventory)
    if not decoder.has_equal_heads:
        counts = sorted({(a.heads, a.kv_heads) for a in decoder.attentions})
        shown = ", ".join(f"{heads}/{kv}" for heads, kv in counts[:4])
        raise CheckpointError(
            f"{decoder.path}: layers differ in their heads (query/key-value {shown}), and vLLM's "
            "Transformers backend has one count for all: heads cannot be padded, export --to "
            "transformers"
        )
    if any(module.name == "lm_head" for module in decoder.factored):
        raise CheckpointError(
            f"{decoder.path}: its lm_head is a factor pair, and vLLM builds a dense one: merge it "
            f"with 'gacprof realign {decoder.path} --fuse --module lm_head --out DIR'"
        )
    serve = "vllm serve {out} --trust-remote-code --model-impl transformers"
    return with_code("vllm", serve, decoder, request)


def prepare_native(inventory: Inventory, request: ExportRequest) -> FolderExport:
    """A folder for vLLM's DeciLMForCausalLM."""
    decoder = read_decoder(inventory)
    decoder.refuse_factors("vLLM's DeciLM")
    _refuse(decoder)
    if request.blocks_of not in (None, FFN_MULTIPLE):
        raise CheckpointError(
            f"--blocks-of {request.blocks_of}: readers of ffn_mult round to {FFN_MULTIPLE}; give "
            f"--blocks-of {FFN_MULTIPLE}, or leave it out to keep every width as it is"
        )
    widths, sizes = decoder.widths, {}
    if request.blocks_of is not None:
        widths = tuple(-(-width // FFN_MULTIPLE) * FFN_MULTIPLE for width in widths)
        sizes = {f"model.layers.{i}.mlp:width": width for i, width in enumerate(widths)}
    return FolderExport(
        to="vllm-native",
        serve="vllm serve {out} --trust-remote-code",
        no_engine=NO_ENGINE,
        inventory=inventory,
        names=decoder.names,
        config=_config(decoder, widths, as_multiples=request.blocks_of is not None),
        code={f"{MODULE}.py": remote_code("remote_nemotron_nas.py")},
        sizes=sizes,
        tokenizer=request.tokenizer_folder(inventory),
    )


def _refuse(decoder: Decoder) -> None:
    """Raise :class:`CheckpointError` for what vLLM's class does not compute."""
    heads = {a.heads for a in decoder.attentions}
    reason = decoder.beyond("DeciLM")
    if len(heads) > 1:
        reason = f"its layers have {len(heads)} different counts of query heads, DeciLM has one"
    elif any(a.heads % a.kv_heads for a in decoder.attentions):
        reason = "its query heads are no multiple of its key-value heads"
    if reason:
        raise CheckpointError(f"{decoder.path}: {reason}: export --to vllm")


def _config(decoder: Decoder, widths: tuple[int, ...], as_multiples: bool) -> dict[str, Any]:
    config = dict(decoder.config)
    if decoder.family == "qwen2":
        config |= {"attention_bias": False, "qkv_bias": True}
    hidden = int(config["hidden_size"])
    config |= {
        "model_type": "nemotron-nas",
        "architectures": ["DeciLMForCausalLM"],
        "auto_map": {"AutoConfig": f"{MODULE}.NemotronNasConfig"},
        "intermediate_size": max(widths),
        "block_configs": [
            {
                "attention": {
                    "no_op": False,
                    "replace_with_linear": False,
                    "n_heads_in_group": attention.heads // attention.kv_heads,
                },
                "ffn": {"no_op": False, "replace_with_linear": False, **_width(width, hidden)}
                if as_multiples
                else {"no_op": False, "intermediate_size": width},
            }
            for attention, width in zip(decoder.attentions, widths, strict=True)
        ],
    }
    return config


def _width(width: int, hidden: int) -> dict[str, float]:
    """``ffn_mult`` from which the readers' formula gives ``width``."""
    multiplier = round(3 * width / (2 * hidden), 6)
    if -(-int(2 * multiplier * hidden / 3) // FFN_MULTIPLE) * FFN_MULTIPLE != width:
        raise CheckpointError(f"no ffn_mult gives the width {width} at hidden size {hidden}")
    return {"ffn_mult": multiplier}

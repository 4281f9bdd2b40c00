"""Folders for transformers: with model code of their own, and plain ones.

``AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True)`` loads the first without
gacprof: factor pairs, widths and heads layer by layer. The base model is a subclass of
transformers' own, so that vLLM's and SGLang's Transformers backends take it too; those have one
head count for all layers. The plain one has every layer padded to the same width and a config for
every server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.core import Progress
from gacprof.core.errors import CheckpointError
from gacprof.exporting.decoder import FAMILIES, Decoder, read_decoder
from gacprof.exporting.folder import FolderExport, remote_code
from gacprof.exporting.format import Request, Written
from gacprof.resizing import realign_uniform
from gacprof.resizing.sizes import uniform

MODULE = "modeling_gacprof"

MULTIPLE = 8
"""The common width is rounded up to this, as by ``gacprof realign --uniform``."""


def prepare(inventory: Inventory, request: Request) -> FolderExport:
    """A folder for transformers. Raises :class:`CheckpointError` for a bias its class lacks."""
    serve = "AutoModelForCausalLM.from_pretrained('{out}', trust_remote_code=True)"
    return with_code("transformers", serve, read_decoder(inventory), request)


def with_code(to: str, serve: str, decoder: Decoder, request: Request) -> FolderExport:
    """The folder with the model's own code."""
    for module in decoder.factored:
        expected = _bias_of(decoder, module.name)
        has = any(gemm.bias for gemm in module.gemms)
        if has != expected:
            raise CheckpointError(
                f"{decoder.path}: {module.name} is stored {'with' if has else 'without'} a "
                f"bias, a {decoder.family} computes {'without' if has else 'with'} one"
            )
    words = {"Llama": FAMILIES[decoder.family], "llama": decoder.family}
    return FolderExport(
        to=to,
        serve=serve,
        inventory=decoder.inventory,
        names=decoder.names,
        config=_config(decoder),
        code={f"{MODULE}.py": remote_code("remote_llama.py", **words)},
        tokenizer=request.tokenizer,
    )


def _bias_of(decoder: Decoder, module: str) -> bool:
    """Whether transformers' class has a bias there."""
    part = module.rsplit(".", 1)[-1]
    if part == "lm_head" or decoder.family == "mistral":
        return False
    if decoder.family == "qwen2":
        return part in ("q_proj", "k_proj", "v_proj")
    key = "mlp_bias" if part in ("gate_proj", "up_proj", "down_proj") else "attention_bias"
    return bool(decoder.config.get(key, False))


def _config(decoder: Decoder) -> dict[str, Any]:
    family = FAMILIES[decoder.family]
    # transformers warns of a rope_scaling, None too
    config = {k: v for k, v in decoder.config.items() if (k, v) != ("rope_scaling", None)}
    kinds = {"AutoConfig": "Config", "AutoModel": "Model", "AutoModelForCausalLM": "ForCausalLM"}
    ranks = {m.name: [gemm.K for gemm in m.gemms[1:]] for m in decoder.factored}
    return config | {
        "model_type": f"gacprof_{decoder.family}",
        "architectures": [f"Gacprof{family}ForCausalLM"],
        "auto_map": {auto: f"{MODULE}.Gacprof{family}{kind}" for auto, kind in kinds.items()},
        "factor_ranks": {name: r[0] if len(r) == 1 else r for name, r in ranks.items()},
        "layer_widths": list(decoder.widths),
        "layer_heads": [[a.heads, a.kv_heads] for a in decoder.attentions],
    }


class UniformExport(FolderExport):
    """``gacprof realign --uniform``, checked by transformers."""

    def write(self, out: Path, progress: Progress | None) -> Written:
        done = realign_uniform(self.inventory, out, MULTIPLE, progress=progress)
        more = done.parameters_after - done.parameters_before
        cost = f"padding cost {more:,} parameters ({more / done.parameters_before:+.1%})"
        return Written(done.files, done.parameters_after, done.bytes_written, (cost, *done.notes))


def prepare_uniform(inventory: Inventory, request: Request) -> UniformExport:
    """A plain folder. Raises :class:`CheckpointError` where no plain config describes it."""
    return UniformExport(
        to="uniform",
        serve="vllm serve {out}",
        inventory=inventory,
        names={name: name for name in inventory.tensors},
        sizes=uniform(inventory, MULTIPLE).sizes,
        tokenizer=request.tokenizer,
    )

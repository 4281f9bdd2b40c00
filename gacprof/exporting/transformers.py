"""A folder with its own model code: factor pairs, widths and heads layer by layer.

``AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True)`` loads it without gacprof. The
base model is a subclass of transformers' own, so that vLLM's and SGLang's Transformers backends
take it too; those have one head count for all layers.
"""

from __future__ import annotations

from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.core.errors import CheckpointError
from gacprof.exporting.decoder import FAMILIES, Decoder, read_decoder
from gacprof.exporting.folder import FolderExport, remote_code
from gacprof.exporting.format import Request

MODULE = "modeling_gacprof"


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
    code = {f"{MODULE}.py": remote_code("remote_llama.py", **words)}
    tokenizer = request.tokenizer_of(decoder.inventory)
    return FolderExport(to, serve, decoder, _config(decoder), code, tokenizer)


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
    config["model_type"] = f"gacprof_{decoder.family}"
    config["architectures"] = [f"Gacprof{family}ForCausalLM"]
    config["auto_map"] = {
        "AutoConfig": f"{MODULE}.Gacprof{family}Config",
        "AutoModel": f"{MODULE}.Gacprof{family}Model",
        "AutoModelForCausalLM": f"{MODULE}.Gacprof{family}ForCausalLM",
    }
    ranks = {m.name: [gemm.K for gemm in m.gemms[1:]] for m in decoder.factored}
    config["factor_ranks"] = {n: r[0] if len(r) == 1 else r for n, r in ranks.items()}
    config["layer_widths"] = list(decoder.widths)
    config["layer_heads"] = [[a.heads, a.kv_heads] for a in decoder.attentions]
    return config

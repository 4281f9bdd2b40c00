"""Folders for transformers: with model code of their own, and plain ones.

``AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True)`` loads the first without
gacprof: factor pairs, widths and heads layer by layer. The base model is a subclass of
transformers' own, so that vLLM's and SGLang's Transformers backends take it too; those have one
head count for all layers. The plain one has every layer padded to the same width and a config for
every server.
"""

from __future__ import annotations

from typing import Any

from gacprof.checkpoint import mirrored_files
from gacprof.checkpoint.config import refuse_oversized
from gacprof.checkpoint.foreign import carried_config
from gacprof.checkpoint.inventory import Inventory
from gacprof.core.errors import CheckpointError
from gacprof.extras.serve.decoder import FAMILIES, Decoder, read_decoder
from gacprof.extras.serve.folder import FolderExport, remote_code
from gacprof.extras.serve.format import Request
from gacprof.planning.costs import footprint
from gacprof.resizing.output import notes_on
from gacprof.resizing.sizes import Uniform

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


def prepare_uniform(inventory: Inventory, request: Request) -> FolderExport:
    """A plain folder, as ``gacprof realign --uniform`` writes it. Raises :class:`CheckpointError`
    where no plain config describes it."""
    refuse_oversized(inventory.config, inventory)
    chosen = Uniform().request(inventory)
    mirrored = mirrored_files(inventory, chosen.sizes)
    before, after = inventory.parameters, footprint(inventory, chosen.sizes).parameters
    cost = f"padding cost {after - before:,} parameters ({after / before - 1:+.1%})"
    return FolderExport(
        to="uniform",
        serve="vllm serve {out}",
        inventory=inventory,
        names={name: name for name in inventory.tensors},
        config=carried_config(mirrored.get("config.json", {}), inventory.path),
        sizes=chosen.sizes,
        tokenizer=request.tokenizer,
        notes=(cost, *chosen.notes, *notes_on(inventory, chosen.sizes, mirrored)),
    )

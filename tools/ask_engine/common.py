"""What is asked of every engine alike: a short model, rank 0 of a world that is not there."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from hollow import write_hollow
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

ARCHITECTURES = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES | {"kimi_k2": "DeepseekV3ForCausalLM"}
"""Classes by type, for configs that don't say theirs."""
LONG_BUILDS = ["fused_moe", "fp8_blockscale_gemm"]
"""FlashInfer's modules that take the compiler many minutes, and are needed to run only."""
LAYERS = 2
TOKENS = 2048
PACKAGES = (
    *("vllm", "sglang", "torch", "transformers", "flashinfer-python", "triton"),
    *("sglang-kernel", "nvidia-cutlass-dsl"),
)

compute_bool = torch.Tensor.__bool__  # what a device computes is not known: checks find nothing
torch.Tensor.__bool__ = lambda self: not self.is_cuda and compute_bool(self)


class NotBuiltError(Exception):
    """Something was needed that is not here: a compiled module, a number that a device computes."""


def known_on_host(repeat: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``repeat_interleave`` that ends the question where a device holds how often to repeat: its
    values are none, and what follows (*repeats can not be negative*) is no word of the engine."""

    def repeat_interleave(*inputs: Any, **options: Any) -> torch.Tensor:
        repeats = [options["repeats"]] if "repeats" in options else inputs[:2][-1:]
        if any(isinstance(number, torch.Tensor) and number.is_cuda for number in repeats):
            raise NotBuiltError(
                "how often to repeat is computed on the device, so that nothing ran"
            )
        return repeat(*inputs, **options)

    return repeat_interleave


torch.repeat_interleave = known_on_host(torch.repeat_interleave)
torch.Tensor.repeat_interleave = known_on_host(torch.Tensor.repeat_interleave)


class NoNccl:
    """A communicator whose collectives do nothing: NCCL does not start without a driver."""

    disabled, available, rank = True, False, 0

    def __init__(self, *args: Any, **options: Any) -> None:
        self.world_size = dist.get_world_size()

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: args[0] if args else None


def enter_world(size: int) -> None:
    """Join a world of ``size`` ranks as rank 0, by torch's fake process group."""
    ranks = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1"}
    os.environ |= {name: str(value) for name, value in ranks.items()} | {"MASTER_PORT": "1"}
    dist.init_process_group(backend="fake", rank=0, world_size=size, store=FakeStore())
    new_group = dist.new_group
    dist.new_group = lambda ranks=None, *_, **__: new_group(ranks, backend="fake")


def refuse_long_builds() -> None:
    """Let FlashInfer build none of :data:`LONG_BUILDS`, and fetch nothing."""
    from flashinfer.jit import cubin_loader  # starts CUDA: not before the fork
    from flashinfer.jit.core import JitSpec

    def fetch(source: str, *_: Any, **__: Any) -> None:
        raise NotBuiltError(
            f"FlashInfer's {source.rpartition('/')[2]} was not fetched, so that nothing ran"
        )

    cubin_loader.download_file = fetch

    original = JitSpec.build_and_load

    def build_and_load(self: JitSpec, *args: Any, **options: Any) -> Any:
        if self.name.startswith(tuple(LONG_BUILDS)) and not self.is_compiled:
            raise NotBuiltError(f"FlashInfer's {self.name} was not compiled, so that nothing ran")
        return original(self, *args, **options)

    JitSpec.build_and_load = build_and_load


def shortened(config: dict[str, Any]) -> dict[str, Any]:
    """A config with a layer of each kind, and one more where they are all of one."""
    short = {"architectures": [ARCHITECTURES.get(config.get("model_type"))], "dtype": "bfloat16"}
    if "architectures" in config or not short["architectures"][0]:
        short = {}
    short |= {k: shortened(v) if k == "text_config" else v for k, v in config.items()}
    if "hybrid_override_pattern" in config:
        pattern = "".join(dict.fromkeys(config["hybrid_override_pattern"]))
        return short | {"hybrid_override_pattern": pattern, "num_hidden_layers": len(pattern)}
    layers = config.get("full_attention_interval", LAYERS)
    if "num_hidden_layers" in config:
        short["num_hidden_layers"] = min(layers, config["num_hidden_layers"])
    if "layer_types" in config:
        short["layer_types"] = config["layer_types"][:layers]
    if config.get("first_k_dense_replace"):
        short["first_k_dense_replace"] = 1
    return short


Serve = Callable[[dict[str, Any], Path, dict[str, Any], Callable[[], Any]], None]
"""Serves a question from a folder; notes in a dict how far it came, and writes it when called."""


def answer(serve: Serve, question: dict[str, Any], folder: Path, result: Path) -> None:
    """Write the engine's answer: how far it came, its words, each module with sizes and kernel."""
    installed = {d.metadata["Name"].lower(): d.version for d in distributions()}
    versions = {name: installed[name] for name in PACKAGES if name in installed}
    said: dict[str, Any] = {"stage": "config", "verdict": "ok", "versions": versions}

    def write() -> None:
        result.write_text(json.dumps(said, default=str))

    try:
        config = shortened(question["config"])
        (folder / "config.json").write_text(json.dumps(config))
        if question.get("hollow"):
            write_hollow(folder, config)
        enter_world(question.get("tp", 1))
        refuse_long_builds()
        serve(question, folder, said, write)
    except BaseException as error:
        is_ours = isinstance(error, NotBuiltError) or "can not be negative" in str(error)
        said["verdict"] = "not run" if is_ours else "refused"
        said["says"] = f"{type(error).__name__}: {error}"[:1500]
        frames = traceback.extract_tb(error.__traceback__)[-5:]
        said["where"] = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames]
    write()

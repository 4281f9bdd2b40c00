"""One question to vLLM: a worker that is rank 0 of a world that is not there."""

from __future__ import annotations

import json
import os
import traceback
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import vllm.platforms
from torch.testing._internal.distributed.fake_pg import FakeStore
from vllm.platforms.cuda import NonNvmlCudaPlatform
from vllm.platforms.interface import DeviceCapability

# The GPU is known before CUDA starts, which would forbid to fork; collectives need a device.
NAME, MEMORY, ATTRIBUTES = os.environ["GACPROF_VIRTUAL_DEVICE"].split(";")
VALUES = dict(attribute.split("=") for attribute in ATTRIBUTES.split(","))
CAPABILITY = DeviceCapability(int(VALUES["75"]), int(VALUES["76"]))  # their numbers in cuda.h
NonNvmlCudaPlatform.get_device_capability = staticmethod(lambda *_, **__: CAPABILITY)
NonNvmlCudaPlatform.get_device_name = staticmethod(lambda *_, **__: NAME)
NonNvmlCudaPlatform.get_device_total_memory = staticmethod(lambda *_, **__: int(MEMORY))
NonNvmlCudaPlatform.is_fully_connected = staticmethod(lambda *_, **__: False)
vllm.platforms._current_platform = NonNvmlCudaPlatform()
compute_bool = torch.Tensor.__bool__  # what a device computes is not known: checks find nothing
torch.Tensor.__bool__ = lambda self: not self.is_cuda and compute_bool(self)
torch.cuda.device_count = lambda: 1
torch.cuda.is_available = lambda: True
for unused in ("ALLREDUCE_USE_SYMM_MEM", "ALLREDUCE_USE_FLASHINFER", "USE_FLASHINFER_SAMPLER"):
    os.environ[f"VLLM_{unused}"] = "0"

import vllm.distributed.device_communicators.pynccl as pynccl  # noqa: E402
import vllm.distributed.device_communicators.shm_broadcast as shm_broadcast  # noqa: E402
import vllm.model_executor.model_loader.base_loader as base_loader  # noqa: E402
from hollow import write_hollow  # noqa: E402
from modules import modules_of, note_launches  # noqa: E402
from transformers.models.auto.modeling_auto import (  # noqa: E402
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)
from vllm import EngineArgs  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.distributed.parallel_state import GroupCoordinator  # noqa: E402
from vllm.v1.worker.gpu_worker import Worker  # noqa: E402

ARCHITECTURES = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES | {"kimi_k2": "DeepseekV3ForCausalLM"}
"""Classes by type, for configs that don't say theirs."""
LONG_BUILDS = ("fused_moe", "fp8_blockscale_gemm")
"""FlashInfer's modules that take the compiler many minutes, and are needed to run only."""
LAYERS = 2
TOKENS = 2048
PACKAGES = "vllm torch transformers flashinfer-python triton nvidia-cutlass-dsl"


class NotBuiltError(Exception):
    """A module was needed that is not compiled here."""


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
    pynccl.PyNcclCommunicator = NoNccl
    shm_broadcast.MessageQueue.create_from_process_group = staticmethod(lambda *_, **__: None)
    GroupCoordinator.broadcast_object = lambda self, value=None, src=0: value
    GroupCoordinator.barrier = lambda self: None


def refuse_long_builds() -> None:
    """Let FlashInfer build none of :data:`LONG_BUILDS`."""
    from flashinfer.jit.core import JitSpec  # starts CUDA: not before the fork

    original = JitSpec.build_and_load

    def build_and_load(self: JitSpec, *args: Any, **options: Any) -> Any:
        if self.name.startswith(LONG_BUILDS) and not self.is_compiled:
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


def answer(question: dict[str, Any], folder: Path, result: Path) -> None:
    """Write the engine's answer: how far it came, its words, each module with sizes and kernel."""
    installed = {d.metadata["Name"].lower(): d.version for d in distributions()}
    versions = {name: installed[name] for name in PACKAGES.split() if name in installed}
    said: dict[str, Any] = {"stage": "config", "verdict": "ok", "versions": versions}
    try:
        _serve(question, folder, said, result)
    except BaseException as error:
        said["verdict"] = "not run" if isinstance(error, NotBuiltError) else "refused"
        said["says"] = f"{type(error).__name__}: {error}"[:1500]
        frames = traceback.extract_tb(error.__traceback__)[-5:]
        said["where"] = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames]
    result.write_text(json.dumps(said, default=str))


def _serve(question: dict[str, Any], folder: Path, said: dict[str, Any], result: Path) -> None:
    config = shortened(question["config"])
    (folder / "config.json").write_text(json.dumps(config))
    if question.get("hollow"):
        write_hollow(folder, config)
    tp = question.get("tp", 1)
    enter_world(tp)
    refuse_long_builds()
    arguments = EngineArgs(
        model=str(folder),
        load_format="safetensors" if question.get("hollow") else "dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=TOKENS,
        max_num_batched_tokens=TOKENS,
        max_num_seqs=8,
        tensor_parallel_size=tp,
        enable_expert_parallel=question.get("ep", 1) > 1,
        distributed_executor_backend="external_launcher",
        disable_custom_all_reduce=True,
    )
    settings = arguments.create_engine_config()
    process = base_loader.process_weights_after_loading

    def process_weights(model: torch.nn.Module, *args: Any, **options: Any) -> None:
        said["stage"], said["modules"] = "processing", modules_of(model)
        process(model, *args, **options)
        for row, after in zip(said["modules"], modules_of(model), strict=True):
            row |= {"loaded": row["stored"], "stored": after["stored"], "chosen": after["chosen"]}

    base_loader.process_weights_after_loading = process_weights
    with set_current_vllm_config(settings):
        worker = Worker(settings, 0, 0, "env://", is_driver_worker=True)
        worker.init_device()
        said["stage"] = "building"
        worker.load_model()
        said["stage"] = "run"
        result.write_text(json.dumps(said, default=str))  # a run may end the process
        if "Humming" in str(said["modules"]):
            raise NotBuiltError("Humming compiles and tunes its kernels at first use: nothing ran")
        said["launches"] = note_launches(worker.model_runner.model)
        worker.model_runner.profile_run()
        torch.cuda.synchronize()

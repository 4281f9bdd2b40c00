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

for unused in ("ALLREDUCE_USE_SYMM_MEM", "ALLREDUCE_USE_FLASHINFER", "USE_FLASHINFER_SAMPLER"):
    os.environ[f"VLLM_{unused}"] = "0"  # collectives and samplers that need a device
torch.cuda.device_count = lambda: 1  # the driver's would forbid to fork
torch.cuda.is_available = lambda: True
NAME, MEMORY, ATTRIBUTES = os.environ["GACPROF_VIRTUAL_DEVICE"].split(";")
MAJOR, MINOR = (int(dict(a.split("=") for a in ATTRIBUTES.split(","))[key]) for key in ("75", "76"))
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of cuda.h."""


class VirtualPlatform(NonNvmlCudaPlatform):
    """A CUDA platform that says what the GPU is before CUDA is started, as NVML would."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
        return DeviceCapability(MAJOR, MINOR)

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return NAME

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return int(MEMORY)

    @classmethod
    def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
        return False


vllm.platforms._current_platform = VirtualPlatform()

import vllm.distributed.device_communicators.pynccl as pynccl  # noqa: E402
import vllm.distributed.device_communicators.shm_broadcast as shm_broadcast  # noqa: E402
import vllm.distributed.parallel_state as parallel_state  # noqa: E402
import vllm.model_executor.model_loader.base_loader as base_loader  # noqa: E402
from modules import modules_of, note_launches, shapes_of  # noqa: E402
from transformers.models.auto.modeling_auto import (  # noqa: E402
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
)
from vllm import EngineArgs  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.v1.worker.gpu_worker import Worker  # noqa: E402

ARCHITECTURES = {"kimi_k2": "DeepseekV3ForCausalLM"}
"""Of types that transformers has no class of, where a config doesn't say it."""
LONG_BUILDS = ("fused_moe", "fp8_blockscale_gemm")
LAYERS = 2
"""Layers that are built, where a model's pattern needs no more."""
TOKENS = 2048
PACKAGES = r"vllm torch transformers flashinfer-python deep-gemm humming triton nvidia-cutlass-dsl"


class NoNccl:
    """A communicator whose collectives do nothing: NCCL does not start without a driver."""

    disabled, available = True, False

    def __init__(self, group: Any, *args: Any, **options: Any) -> None:
        self.world_size, self.rank = dist.get_world_size(), 0

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **options: args[0] if args else None


def enter_world(size: int) -> None:
    """Join a world of ``size`` ranks as rank 0, by torch's fake process group."""
    ranks = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": size, "MASTER_PORT": 1}
    os.environ |= {name: str(value) for name, value in ranks.items()}
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    dist.init_process_group(backend="fake", rank=0, world_size=size, store=FakeStore())
    new_group = dist.new_group
    dist.new_group = lambda ranks=None, *_, **__: new_group(ranks, backend="fake")
    torch.distributed.new_group = dist.new_group
    pynccl.PyNcclCommunicator = NoNccl
    queue = shm_broadcast.MessageQueue
    queue.create_from_process_group = staticmethod(lambda *_, **__: None)
    coordinator = parallel_state.GroupCoordinator
    coordinator.broadcast_object = lambda self, value=None, src=0: value
    coordinator.barrier = lambda self: None


def count_on_host() -> None:
    """Let ``repeat_interleave`` take its output's size from the host's copy of the counts."""
    original = torch.Tensor.repeat_interleave

    def repeat_interleave(
        self: torch.Tensor, repeats: Any, dim: int | None = None, *, output_size: int | None = None
    ) -> torch.Tensor:
        if isinstance(repeats, torch.Tensor) and repeats.is_cuda and output_size is None:
            output_size = int(repeats.cpu().sum())
        return original(self, repeats, dim, output_size=output_size)

    torch.Tensor.repeat_interleave = repeat_interleave


class NotBuiltError(Exception):
    """A module that takes the compiler many minutes, and is needed to run only."""


def refuse_long_builds() -> None:
    """Let FlashInfer build nothing of CUTLASS's experts, which it compiles at first use."""
    from flashinfer.jit.core import JitSpec  # starts CUDA: not before the fork

    original = JitSpec.build_and_load

    def build_and_load(self: JitSpec, *args: Any, **options: Any) -> Any:
        if self.name.startswith(LONG_BUILDS) and not self.is_compiled:
            raise NotBuiltError(f"FlashInfer's {self.name} was not compiled, so that nothing ran")
        return original(self, *args, **options)

    JitSpec.build_and_load = build_and_load


def shortened(config: dict[str, Any]) -> dict[str, Any]:
    """A config with a layer of each kind, and one more where they are all of one."""
    kind = config.get("model_type")
    named = ARCHITECTURES.get(kind) or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    short = {"architectures": [named], "dtype": "bfloat16"} if named else {}
    short |= config
    for part, values in config.items():
        if isinstance(values, dict) and "num_hidden_layers" in values:
            short[part] = shortened(values)
    pattern = config.get("hybrid_override_pattern")
    if pattern:
        short["hybrid_override_pattern"] = "".join(dict.fromkeys(pattern))
        short["num_hidden_layers"] = len(short["hybrid_override_pattern"])
    elif "num_hidden_layers" in config:
        period = config.get("full_attention_interval") or LAYERS
        layers = max(LAYERS, period, 1 + bool(config.get("first_k_dense_replace")))
        short["num_hidden_layers"] = min(layers, config["num_hidden_layers"])
        if config.get("first_k_dense_replace"):
            short["first_k_dense_replace"] = 1
        if isinstance(config.get("layer_types"), list):
            short["layer_types"] = config["layer_types"][: short["num_hidden_layers"]]
    return short


def versions() -> dict[str, str]:
    """The versions of what chooses kernels."""
    installed = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in distributions()}
    chosen = {name: installed[name] for name in PACKAGES.split() if name in installed}
    return chosen | {"cuda": torch.version.cuda or ""}


def answer(question: dict[str, Any], folder: Path, result: Path) -> None:
    """Write the engine's answer: how far it came, its words, each module with sizes and kernel."""
    said: dict[str, Any] = {"stage": "config", "verdict": "refused", "versions": versions()}
    try:
        _serve(question, folder, said, result)
        said["verdict"] = "ok"
    except BaseException as error:
        said["says"] = f"{type(error).__name__}: {error}"[:1500]
        frames = traceback.extract_tb(error.__traceback__)[-5:]
        said["where"] = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in frames]
        said["verdict"] = "not run" if isinstance(error, NotBuiltError) else "refused"
        cause = error.__cause__ or error.__context__
        if cause is not None:
            said["cause"] = f"{type(cause).__name__}: {cause}"[:600]
    result.write_text(json.dumps(said, default=str))


def _serve(question: dict[str, Any], folder: Path, said: dict[str, Any], result: Path) -> None:
    config = shortened(question["config"])
    (folder / "config.json").write_text(json.dumps(config))
    tp = question.get("tp", 1)
    enter_world(tp)
    count_on_host()
    refuse_long_builds()
    arguments = EngineArgs(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=TOKENS,
        max_num_batched_tokens=TOKENS,
        max_num_seqs=8,
        tensor_parallel_size=tp,
        enable_expert_parallel=question.get("ep", 1) > 1,
        distributed_executor_backend="external_launcher",
        disable_custom_all_reduce=True,
        **question.get("arguments", {}),
    )
    settings = arguments.create_engine_config()
    process = base_loader.process_weights_after_loading

    def process_weights(model: torch.nn.Module, *args: Any, **options: Any) -> None:
        said["stage"], said["loaded"] = "processing", shapes_of(model)
        said["modules"] = modules_of(model)
        process(model, *args, **options)

    base_loader.process_weights_after_loading = process_weights
    with set_current_vllm_config(settings):
        worker = Worker(
            vllm_config=settings,
            local_rank=0,
            rank=0,
            distributed_init_method="env://",
            is_driver_worker=True,
        )
        worker.init_device()
        said["stage"] = "building"
        worker.load_model()
        said["modules"] = modules_of(worker.model_runner.model)
        said["stage"] = "run"
        result.write_text(json.dumps(said, default=str))  # a run may end the process
        said["launches"] = note_launches(worker.model_runner.model)
        worker.model_runner.profile_run()
        torch.cuda.synchronize()

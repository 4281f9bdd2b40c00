"""One question to vLLM, as a worker of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import vllm.platforms
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
torch.cuda.device_count = lambda: 1
torch.cuda.is_available = lambda: True
for unused in ("ALLREDUCE_USE_SYMM_MEM", "ALLREDUCE_USE_FLASHINFER", "USE_FLASHINFER_SAMPLER"):
    os.environ[f"VLLM_{unused}"] = "0"

import vllm.distributed.device_communicators.pynccl as pynccl  # noqa: E402
import vllm.distributed.device_communicators.shm_broadcast as shm_broadcast  # noqa: E402
import vllm.model_executor.model_loader.base_loader as base_loader  # noqa: E402
from common import TOKENS, NoNccl, NotBuiltError  # noqa: E402
from modules import modules_of, note_launches  # noqa: E402
from vllm import EngineArgs  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.distributed.parallel_state import GroupCoordinator  # noqa: E402
from vllm.v1.worker.gpu_worker import Worker  # noqa: E402

pynccl.PyNcclCommunicator = NoNccl
shm_broadcast.MessageQueue.create_from_process_group = staticmethod(lambda *_, **__: None)
GroupCoordinator.broadcast_object = lambda self, value=None, src=0: value
GroupCoordinator.barrier = lambda self: None


def serve(
    question: dict[str, Any], folder: Path, said: dict[str, Any], write: Callable[[], Any]
) -> None:
    """Build the folder's model on one rank, and let vLLM profile it."""
    arguments = EngineArgs(
        model=str(folder),
        load_format="safetensors" if question.get("hollow") else "dummy",
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=TOKENS,
        max_num_batched_tokens=TOKENS,
        max_num_seqs=8,
        tensor_parallel_size=question.get("tp", 1),
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
        write()  # a run may end the process
        if "Humming" in str(said["modules"]):
            raise NotBuiltError("Humming compiles and tunes its kernels at first use: nothing ran")
        said["launches"] = note_launches(worker.model_runner.model)
        worker.model_runner.profile_run()
        torch.cuda.synchronize()

"""One question to SGLang, by the steps of its own benchmark of one batch."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

os.environ["SGLANG_JIT_DEEPGEMM_PRECOMPILE"] = "0"  # which would take half an hour
os.environ["FLASHINFER_USE_CUDA_NORM"] = "1"  # CuTe's runtime is linked with CUDA's own
torch.cuda._is_in_bad_fork = lambda: False  # SGLang starts CUDA on import; ours can be forked

import sglang.benchmark.one_batch as one_batch  # noqa: E402
import sglang.kernels.jit.utils.compile.ninja as ninja  # noqa: E402
import sglang.srt.distributed.device_communicators.pynccl as pynccl  # noqa: E402
import sglang.srt.distributed.device_communicators.shm_broadcast as shm_broadcast  # noqa: E402
import sglang.srt.distributed.device_communicators.triton_symm_mem_ag as gather  # noqa: E402
import sglang.srt.layers.quantization.kv_cache as kv_cache  # noqa: E402
import sglang.srt.model_executor.model_runner as model_runner  # noqa: E402
from common import LONG_BUILDS, TOKENS, NoNccl, NotBuiltError  # noqa: E402
from modules import modules_of, note_launches  # noqa: E402
from sglang.srt.distributed.parallel_state import GroupCoordinator  # noqa: E402
from sglang.srt.layers.radix_attention import RadixAttention  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402

LONG_BUILDS += ["trtllm", "fp4_gemm", "mxfp8_gemm", "batch_"]  # a module a head_dim and type
pynccl.PyNcclCommunicator = NoNccl
shm_broadcast.MessageQueue.create_from_process_group = staticmethod(lambda *_, **__: None)
GroupCoordinator.broadcast_object = lambda self, value=None, src=0: value
GroupCoordinator.barrier = lambda self: None
model_runner.dist_barrier_after_load = lambda *_, **__: None
one_batch.get_tokenizer = lambda *_, **__: None
gather.MultimemAllGatherer.__call__ = lambda self, logits: logits
kv_cache.BaseKVCacheMethod.process_weights_after_loading = lambda self, layer: vars(layer).update(
    k_scale_float=1.0, v_scale_float=1.0
)  # scales are read, and nothing was computed
build = ninja.build


def build_short(*, spec: Any, **options: Any) -> Path:
    """Build a module that doesn't take the compiler many minutes."""
    if "marlin_" in spec.module_name.replace("marlin_repack", ""):
        raise NotBuiltError(f"SGLang's {spec.module_name} was not compiled, so that nothing ran")
    return build(spec=spec, **options)


ninja.build = build_short
MISSED: list[NotBuiltError] = []


def or_skip(call: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """A part of attention; where its kernel was not built, ``otherwise``: what follows is asked."""

    def called(*inputs: Any, **options: Any) -> Any:
        try:
            return otherwise(*inputs) if MISSED else call(*inputs, **options)
        except NotBuiltError as error:
            MISSED.append(error)
            return otherwise(*inputs)

    return called


def unattended(layer: RadixAttention, q: torch.Tensor, *_: Any) -> torch.Tensor:
    """What a layer of attention would give, without values."""
    return q.new_empty(len(q), layer.tp_q_head_num * layer.v_head_dim)


RadixAttention.forward = or_skip(RadixAttention.forward, unattended)


def serve(
    question: dict[str, Any], folder: Path, said: dict[str, Any], write: Callable[[], Any]
) -> None:
    """Build the folder's model on one rank, and compute one prompt."""
    dist.init_process_group = lambda *_, **__: None  # the world that is entered already
    tp = question.get("tp", 1)
    arguments = ServerArgs(
        model_path=str(folder),
        load_format="safetensors" if question.get("hollow") else "dummy",
        skip_tokenizer_init=True,
        tp_size=tp,
        ep_size=question.get("ep", 1),
        disable_cuda_graph=True,
        disable_custom_all_reduce=True,
        enforce_disable_flashinfer_allreduce_fusion=True,
        context_length=TOKENS,
        max_running_requests=8,
        max_total_tokens=4 * TOKENS,
        mem_fraction_static=0.5,
    )
    arguments.resolve_once()
    one_batch._set_envs_and_config(arguments)
    ports = one_batch.PortArgs.init_new(arguments)
    rank = one_batch.spawn_world_rank(arguments, tp_rank=0, pp_rank=0)
    ranks = one_batch.SpawnRanks(world_rank=rank, gpu_id=0)
    one_batch.publish(arguments, role="scheduler", ranks=ranks)
    one_batch._init_process_global_configs()
    said["stage"] = "building"
    runner, _ = one_batch.load_model(arguments, ports, 0, 0)
    model, backend = runner.torch_runner.model, runner.torch_runner.attn_backend
    backend.init_forward_metadata = or_skip(backend.init_forward_metadata, lambda *_: None)
    said["stage"], said["modules"] = "run", modules_of(model)
    for row in said["modules"]:
        if row["class"] == "RadixAttention":
            row["chosen"]["attention"] = type(backend).__name__
    write()  # a run may end the process
    said["launches"] = note_launches(model)
    runner.extend(one_batch.prepare_synthetic_inputs_for_latency_test(1, TOKENS // 2))
    torch.cuda.synchronize()
    for error in MISSED:
        raise error

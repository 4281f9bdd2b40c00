"""Attention by the rules of PyTorch's dispatcher: which backend takes a head_dim, and how well.

The rules follow ``sdp_utils.cpp`` in its order of checks, for dense, contiguous tensors at
inference, with the wheels that PyPI offers for x86-64 Linux (CUDA 13, cuDNN newer than 9.15).
Those of 2.13 were compared with PyTorch's own answers on a virtual GPU: 0 of 10,764 differ on each
of six; recorded answers of a release stand in :mod:`gacprof.kernels.dispatch`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from gacprof.core.errors import ConfigError
from gacprof.core.sizes import SizeVerdict
from gacprof.kernels.dispatch import DispatchTable, load_table

RELEASES = ("2.11.0", "2.12.0", "2.13.0", "2.14.1")
TEMPLATES = (32, 64, 96, 128, 192, 256)
"""FlashAttention-2's head_dims in ``libtorch_cuda.so`` of 2.11 to 2.13 (symbol names), and of
2.14.1 (launches on a virtual GPU); 160 and 224 went earlier."""
FLASH_MULTIPLE = 8
"""scaled_dot_product_attention pads head_dim to a multiple of it for flash (attention.cpp)."""
ORDER = ("flash", "efficient", "math", "cudnn")
"""``torch._C._get_sdp_priority_order()``; on sm90 and sm100 cuDNN newer than 9.15 goes first."""
HALVES = ("float16", "bfloat16")
QUALITY = (
    "cudnn", "filled", "unfilled", "padded", "efficient", "efficient-unfilled", "math",
)  # fmt: skip
"""Ways to serve a head_dim, the best first; cuDNN's and a filled template are equals."""


@dataclass(frozen=True)
class AttentionCall:
    """One call of ``scaled_dot_product_attention`` on a GPU of the data sheet; ``mask`` is whether
    one is passed."""

    gpu: str
    arch: str
    torch: str
    dtype: str
    head_dim: int
    heads: int
    kv_heads: int
    q_len: int = 1024
    kv_len: int = 1024
    mask: bool = False
    causal: bool = True

    @property
    def sm(self) -> int:
        return int(self.arch.rstrip("af").removeprefix("sm"))

    @property
    def is_new(self) -> bool:
        """A call of torch 2.14 or newer."""
        return _version(self.torch) >= (2, 14)


def _version(torch: str) -> tuple[int, ...]:
    return tuple(int(part) for part in torch.split("+")[0].split(".")[:2])


def release(torch: str | None) -> str:
    """The release with rules that ``2.13`` or ``2.13.0+cu130`` names; None: the newest.

    Raises :class:`ConfigError` for one without rules.
    """
    if torch is None:
        return RELEASES[-1]
    for known_release in RELEASES:
        if known_release.split(".")[:2] == torch.split("+")[0].split(".")[:2]:
            return known_release
    raise ConfigError(f"attention of torch {torch} was not read, of {', '.join(RELEASES)} it was")


def refusals(call: AttentionCall) -> dict[str, str]:
    """Why backends cannot take a call, by backend; those that can are left out."""
    checks = {"flash": _flash(call), "efficient": _efficient(call), "cudnn": _cudnn(call)}
    return {backend: reason for backend, reason in checks.items() if reason}


def recorded(call: AttentionCall) -> DispatchTable | None:
    """What PyTorch dispatched on a virtual GPU; None where nobody recorded it."""
    return load_table(call.gpu, call.torch)


def backend(call: AttentionCall) -> str:
    """The backend that PyTorch takes: flash, efficient, cudnn or math. As recorded, else by
    rules."""
    table = recorded(call)
    answer = table and table.sdpa(
        call.head_dim,
        call.dtype,
        call.q_len,
        call.kv_len,
        causal=call.causal,
        mask="float" if call.mask else "none",
        gqa=call.heads != call.kv_heads,
    )
    return answer.backend if answer else backend_by_rules(call)


def backend_by_rules(call: AttentionCall) -> str:
    """The backend that the dispatcher's rules choose."""
    order: tuple[str, ...] = ORDER
    if call.sm in (90, 100):
        order = ("cudnn", *ORDER)
    refused = refusals(call)
    return next(name for name in order if name not in refused)


def _flash(call: AttentionCall) -> str:
    if call.mask:
        return "an explicit attn_mask is passed"
    if call.head_dim > TEMPLATES[-1]:
        return f"head_dim {call.head_dim} is above {TEMPLATES[-1]}"
    if call.causal and call.q_len != call.kv_len:
        return f"is_causal with {call.q_len} queries and {call.kv_len} keys"
    return _device(call) or _halves(call)


def _efficient(call: AttentionCall) -> str:
    if not 50 <= call.sm <= 121:
        return f"{call.arch} is not in sm50 … sm121"
    half = call.dtype in HALVES
    multiple = 1
    if call.sm >= 80:
        multiple = 8 if half else 4
    elif call.sm >= 70 and half:
        multiple = 8
    if call.head_dim % multiple:
        return f"head_dim {call.head_dim} is no multiple of {multiple}"
    if not half and call.dtype != "float32":
        return f"it takes 16-bit types and float32, not {call.dtype}"
    if call.sm < 80 and call.dtype == "bfloat16":
        return "it takes bfloat16 from sm80 on"
    if call.heads != call.kv_heads and not call.is_new:
        return "query heads outnumber key heads"
    return ""


def _cudnn(call: AttentionCall) -> str:
    limit = 128
    if call.sm == 90 or (call.sm // 10 == 10 and call.is_new and call.q_len > 1):
        limit = 256
    if call.head_dim > limit:
        return f"head_dim {call.head_dim} is above {limit}"
    if call.head_dim % 8:
        return f"head_dim {call.head_dim} is no multiple of 8"
    if call.kv_len == 1:
        return "there is one key"
    if call.sm == 100 and call.is_new and call.q_len == 1:
        return "there is one query"
    return _device(call) or _halves(call)


def _device(call: AttentionCall) -> str:
    if 80 <= call.sm <= 121:
        return ""
    return f"{call.arch} is not in sm80 … sm121"


def _halves(call: AttentionCall) -> str:
    if call.dtype not in HALVES:
        return f"it takes float16 and bfloat16, not {call.dtype}"
    if call.heads % call.kv_heads:
        return f"{call.heads} query heads are no multiple of {call.kv_heads} key heads"
    return ""


def template(head_dim: int) -> int:
    """FlashAttention-2's template that serves a head_dim up to 256: the next larger."""
    return next(size for size in TEMPLATES if size >= head_dim)


def serving(call: AttentionCall) -> str:
    """One of :data:`QUALITY`: how a call's head_dim is served."""
    name = backend(call)
    if name == "flash":
        if call.head_dim % FLASH_MULTIPLE:
            return "padded"  # q, k and v are copied before, the output is sliced after
        return "filled" if template(call.head_dim) == call.head_dim else "unfilled"
    fills = call.head_dim > 128 or call.arch != "sm80" or call.head_dim % 32 == 0
    if name == "efficient" and not fills:
        return "efficient-unfilled"  # slower at 104 to 120 than at 128 (arXiv 2604.09595, B.1)
    return name


@cache
def _ways(call: AttentionCall) -> list[int]:
    """Ranks in :data:`QUALITY` of all ways in which head_dims up to 256 are served, ascending."""
    return sorted({_rank(replace(call, head_dim=size)) for size in range(1, 257)})


def _rank(call: AttentionCall) -> int:
    return max(QUALITY.index(serving(call)) - 1, 0)


def judge_head_dim(call: AttentionCall) -> SizeVerdict:
    """The verdict on the head_dim of a call.

    Safe is one that is served in the best way of all; cuDNN's own steps are not known but 128
    (its one kernel in ``libtorch_cuda`` 2.13), and the efficient kernel's on sm80 alone.
    """
    size, way = call.head_dim, serving(call)
    reason = f"SDPA {backend(call)}"
    if reason == "SDPA flash":
        reason = f"{reason} template {template(size)}, {way}"
    table = recorded(call)
    if table:
        reason = f"{reason} ({table.provenance})"
    steps_known = {"cudnn": size == 128, "efficient": call.arch == "sm80" and size <= 128}
    if not steps_known.get(way, True):
        return SizeVerdict(size, "undecided", reason=f"{reason}: its steps are not known")
    rank = _rank(call)
    if rank == _ways(call)[0]:
        return SizeVerdict(size, "safe", reason=reason)
    for larger in range(size + 1, size + 65):
        if _rank(replace(call, head_dim=larger)) < rank:
            reason = f"{reason}; {larger} is served better"
            return SizeVerdict(size, "misaligned", reason=reason)
    return SizeVerdict(size, "undecided", reason=f"{reason}; no larger one is served better")

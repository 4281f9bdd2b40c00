"""PyTorch's choice as rules: one function a backend, each giving the first reason to refuse.

They follow ``sdp_utils.cpp`` in its order of checks, for PyTorch 2.6 to 2.13. What changed from
release to release was read out of the messages in the ``libtorch_cuda.so`` of the wheels
2.6.0, 2.8.0, 2.9.1, 2.10.0, 2.11.0, 2.12.0 and 2.13.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gacprof.core.errors import MapError
from gacprof.kernels.sdpa.question import Choice, Question

OLDEST, NEWEST = (2, 6), (2, 13)
ORDER = ("flash", "efficient", "math", "cudnn")
"""``torch._C._get_sdp_priority_order()`` of 2.13."""
FLASH_QUANTUM = 8
"""scaled_dot_product_attention pads head_dim to a multiple of 8 for flash (attention.cpp)."""
CUDNN_FIRST_AFTER = 91500
"""cuDNN newer than this goes first on sm90 and sm100, from PyTorch 2.10 on, unless
``TORCH_CUDNN_SDPA_DEPRIORITIZED=1``; before 2.10 only ``TORCH_CUDNN_SDPA_PREFERRED=1`` asks
for it."""
LARGEST_GRID = 65535
HALVES = ("float16", "bfloat16")


def choose(question: Question, disabled: tuple[str, ...] = ()) -> Choice:
    """Which backend PyTorch would take. ``disabled`` are backends switched off.

    Raises :class:`MapError` where no backend could serve, or for an argument that is no
    architecture or version.
    """
    _check(question)
    refusals: dict[str, str] = {}
    for name, refuse in _REFUSE.items():
        reason = "switched off" if name in disabled else refuse(question)
        if reason:
            refusals[name] = reason
    order, doubts = _order(question)
    taken = next((name for name in order if name not in refusals), None)
    if taken is None:
        raise MapError(f"no SDPA backend can serve this call: {refusals}")
    head_dim = question.q[3]
    pads = taken == "flash" and head_dim % FLASH_QUANTUM != 0
    pads_to = -(-head_dim // FLASH_QUANTUM) * FLASH_QUANTUM if pads else None
    return Choice(taken, refusals, order, pads_to, "rules", doubts)


def _check(q: Question) -> None:
    if q.mask not in ("none", "float", "bool"):
        raise MapError(f"mask is '{q.mask}': it must be none, float or bool")
    if q.mask != "none" and q.causal:
        raise MapError("PyTorch takes either is_causal or a mask, not both")
    if min(*q.q, *q.k, *q.v) < 1 or q.q[3] != q.k[3]:
        raise MapError(f"q {q.q} and k {q.k} do not fit together")


def _order(q: Question) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The order in which backends are asked, and what is in doubt about it."""
    doubts = []
    if not OLDEST <= q.release <= NEWEST:
        doubts.append(
            f"the rules are of torch {'.'.join(map(str, OLDEST))} to "
            f"{'.'.join(map(str, NEWEST))}, not {q.torch}"
        )
    if q.sm not in (90, 100) or q.release < (2, 10):
        return ORDER, tuple(doubts)
    if q.cudnn is None:
        doubts.append("cuDNN's version is not known: newer than 9.15, it would be asked first")
        return ORDER, tuple(doubts)
    if q.cudnn <= CUDNN_FIRST_AFTER:
        return ORDER, tuple(doubts)
    return ("cudnn", *(name for name in ORDER if name != "cudnn")), tuple(doubts)


def _newest_supported(q: Question) -> int:
    return 90 if q.release < (2, 7) else 121


def _refuse_flash(q: Question) -> str | None:
    d = q.q[3]
    if q.mask != "none":
        return "an explicit attn_mask is given"
    if q.v[3] != d:
        return f"head_dims differ (q, k {d}, v {q.v[3]})"
    if d > 256:
        return f"head_dim {d} is above 256"
    if not 80 <= q.sm <= _newest_supported(q):
        return f"{q.arch} is not in sm80 … sm{_newest_supported(q)}"
    if q.training and q.sm in (86, 89, 120, 121) and (192 < d <= 224 or (d > 224 and q.dropout)):
        return f"training with head_dim {d} does not fit the shared memory of {q.arch}"
    if q.causal and q.q[2] != q.k[2]:
        return f"is_causal with {q.q[2]} queries and {q.k[2]} keys"
    return _refuse_type(q) or _refuse_heads(q)


def _refuse_efficient(q: Question) -> str | None:
    if not 50 <= q.sm <= _newest_supported(q):
        return f"{q.arch} is not in sm50 … sm{_newest_supported(q)}"
    half = q.dtype in HALVES
    quantum = (8 if half else 4) if q.sm >= 80 else (8 if half and q.sm >= 70 else 1)
    for name, d in (("q and k", q.q[3]), ("v", q.v[3])):
        if d % quantum:
            return f"head_dim {d} of {name} is no multiple of {quantum}"
    allowed = ("float16", "bfloat16", "float32") if q.sm >= 80 else ("float16", "float32")
    if q.dtype not in allowed:
        return f"it takes {', '.join(allowed)}, not {q.dtype}"
    if q.grouped:
        return "query heads outnumber key heads (no grouped queries)"
    return None


def _refuse_math(q: Question) -> str | None:
    return None


def _refuse_cudnn(q: Question) -> str | None:
    if q.cudnn is not None and q.cudnn < 8903:
        return "cuDNN is older than 8.9.3"
    return _refuse_cudnn_shape(q) or _refuse_cudnn_size(q) or _refuse_cudnn_device(q)


def _refuse_cudnn_shape(q: Question) -> str | None:
    version = q.cudnn or 0
    if q.dropout and 91100 <= version < 91400:
        return "cuDNN 9.11 to 9.13 has no dropout"
    limit = 256 if q.sm == 90 and version >= 91000 else 128
    latent = q.sm // 10 == 10 and (q.q[3], q.v[3]) == (192, 128)
    for name, d in (("q and k", q.q[3]), ("v", q.v[3])):
        if d > limit and not latent:
            return f"head_dim {d} of {name} is above {limit}"
        if d % 8:
            return f"head_dim {d} of {name} is no multiple of 8"
    return None


def _refuse_cudnn_size(q: Question) -> str | None:
    if q.k[2] == 1:
        return "there is one key"
    if q.q[2] == 1 and (q.release < (2, 9) or q.dropout):
        return "there is one query"
    if q.release >= (2, 13) and max(q.q[0], q.q[1]) > LARGEST_GRID:
        return f"batch or heads exceed {LARGEST_GRID}"
    return None


def _refuse_cudnn_device(q: Question) -> str | None:
    if not 80 <= q.sm <= _newest_supported(q):
        return f"{q.arch} is not in sm80 … sm{_newest_supported(q)}"
    return _refuse_type(q) or _refuse_heads(q)


def _refuse_type(q: Question) -> str | None:
    return None if q.dtype in HALVES else f"it takes float16 and bfloat16, not {q.dtype}"


def _refuse_heads(q: Question) -> str | None:
    if q.q[1] % q.k[1] or q.q[1] % q.v[1]:
        return f"{q.q[1]} query heads are no multiple of {q.k[1]} key heads"
    return None


_REFUSE: Mapping[str, Callable[[Question], str | None]] = {
    "flash": _refuse_flash,
    "efficient": _refuse_efficient,
    "math": _refuse_math,
    "cudnn": _refuse_cudnn,
}

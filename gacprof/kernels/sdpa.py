"""Which backend serves scaled-dot-product attention, and why the others refuse.

:func:`choose` answers by rules, for any device and version, without one; :func:`ask` asks the
PyTorch at hand, on a GPU. Both give a :class:`BackendChoice`.

The rules follow ``sdp_utils.cpp`` in its order of checks, for PyTorch 2.6 to 2.13. What changed
from release to release was read out of the messages in the ``libtorch_cuda.so`` of the wheels
2.6.0, 2.8.0, 2.9.1, 2.10.0, 2.11.0, 2.12.0 and 2.13.0.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import MapError, MeasurementError
from gacprof.core.points import Point

if TYPE_CHECKING:
    import torch

CODES = {-1: "error", 0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}
"""What ``torch._fused_sdp_choice`` returns (ATen SDPBackend)."""
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


@dataclass(frozen=True)
class Question:
    """One call of ``scaled_dot_product_attention`` on dense, contiguous tensors.

    ``q`` is (batch, heads, tokens, head_dim); so are ``k`` and ``v``, whose heads may be fewer
    (grouped queries) and whose head_dims may differ. ``mask`` is ``none``, ``float`` or
    ``bool``; ``arch`` is ``sm80`` and so on. ``torch`` is a version such as ``2.9.1``;
    ``cudnn`` its number as ``torch.backends.cudnn.version()`` gives it (91002), None if unknown.
    """

    arch: str
    q: tuple[int, int, int, int]
    k: tuple[int, int, int, int]
    v: tuple[int, int, int, int]
    dtype: str
    torch: str
    cudnn: int | None = None
    mask: str = "none"
    causal: bool = False
    dropout: float = 0.0
    training: bool = False

    @property
    def sm(self) -> int:
        """80 of ``sm80``. Raises :class:`MapError` for what is no CUDA architecture."""
        digits = self.arch.removeprefix("sm").rstrip("af")
        if not self.arch.startswith("sm") or not digits.isdigit():
            raise MapError(f"'{self.arch}' is no CUDA architecture such as sm80 or sm90")
        return int(digits)

    @property
    def release(self) -> tuple[int, int]:
        """(2, 9) of ``2.9.1+cu128``. Raises :class:`MapError` for what is no version."""
        parts = self.torch.split("+")[0].split(".")
        if len(parts) < 2 or not (parts[0].isdigit() and parts[1].isdigit()):
            raise MapError(f"'{self.torch}' is no torch version such as 2.9.1")
        return int(parts[0]), int(parts[1])

    @property
    def grouped(self) -> bool:
        return not self.q[1] == self.k[1] == self.v[1]


@dataclass(frozen=True)
class BackendChoice:
    """``backend`` is who serves; ``refusals`` says of each other backend why it cannot.

    A backend that is neither chosen nor refused could serve but comes later in the order.
    ``pads_to`` is the head_dim that q, k and v are copied to before, and the output sliced
    from after, or None. ``basis`` is ``rules`` or ``live``; ``doubts`` what the rules could
    not know.
    """

    backend: str
    refusals: Mapping[str, str]
    order: tuple[str, ...]
    pads_to: int | None = None
    basis: str = "rules"
    doubts: tuple[str, ...] = ()

    def explain(self) -> str:
        """One sentence."""
        text = f"SDPA takes {self.backend}"
        if self.pads_to:
            text += f"; q, k and v are padded to {self.pads_to} and the output is sliced"
        earlier = self.order[: self.order.index(self.backend)] if self.backend in self.order else ()
        reasons = [f"{name}: {self.refusals[name]}" for name in earlier if name in self.refusals]
        return text + (f" (refused by {'; '.join(reasons)})" if reasons else "")

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"refusals": dict(self.refusals), "explanation": self.explain()}


def question_of(point: Point, arch: str, torch: str, cudnn: int | None = None) -> Question:
    """The question that an ``attention`` point asks. Raises :class:`MapError` for others."""
    if point.operator != "attention":
        raise MapError(f"{point} is no attention point: SDPA has no say in it")
    d, flags = point.dim, point.flag
    batch, head_dim = d.get("batch", 1), d["head_dim"]
    keys = batch, d.get("kv_heads", d["heads"]), d.get("kv_len", d["q_len"]), head_dim
    return Question(
        arch=arch,
        q=(batch, d["heads"], d["q_len"], head_dim),
        k=keys,
        v=keys,
        dtype=point.dtype,
        torch=torch,
        cudnn=cudnn,
        mask=str(flags.get("mask", "none")),
        causal=bool(flags.get("causal", False)),
    )


def padded(head_dim: int) -> int | None:
    """What flash's head_dim is padded to, or None where it need not be."""
    return -(-head_dim // FLASH_QUANTUM) * FLASH_QUANTUM if head_dim % FLASH_QUANTUM else None


def choose(question: Question, disabled: tuple[str, ...] = ()) -> BackendChoice:
    """Which backend PyTorch would take. ``disabled`` are backends switched off.

    Raises :class:`MapError` where no backend could serve, or for an argument that is no
    architecture or version.
    """
    _check(question)
    refusals = {}
    for name, reasons in _REASONS.items():
        reason = "switched off" if name in disabled else next(reasons(question), None)
        if reason:
            refusals[name] = reason
    order, doubts = _order(question)
    taken = next((name for name in order if name not in refusals), None)
    if taken is None:
        raise MapError(f"no SDPA backend can serve this call: {refusals}")
    pads_to = padded(question.q[3]) if taken == "flash" else None
    return BackendChoice(taken, refusals, order, pads_to, "rules", doubts)


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
    order: tuple[str, ...] = ORDER
    if q.sm in (90, 100) and q.release >= (2, 10):
        if q.cudnn is None:
            doubts.append("cuDNN's version is not known: newer than 9.15, it would be asked first")
        elif q.cudnn > CUDNN_FIRST_AFTER:
            order = ("cudnn", *(name for name in ORDER if name != "cudnn"))
    return order, tuple(doubts)


# Each backend's reasons to refuse a call, in the order of PyTorch's checks: the first counts.


def _flash(q: Question) -> Iterator[str]:
    d = q.q[3]
    if q.mask != "none":
        yield "an explicit attn_mask is given"
    if q.v[3] != d:
        yield f"head_dims differ (q, k {d}, v {q.v[3]})"
    if d > 256:
        yield f"head_dim {d} is above 256"
    yield from _device(q, oldest=80)
    if q.training and q.sm in (86, 89, 120, 121) and (192 < d <= 224 or (d > 224 and q.dropout)):
        yield f"training with head_dim {d} does not fit the shared memory of {q.arch}"
    if q.causal and q.q[2] != q.k[2]:
        yield f"is_causal with {q.q[2]} queries and {q.k[2]} keys"
    yield from _types_and_heads(q)


def _efficient(q: Question) -> Iterator[str]:
    yield from _device(q, oldest=50)
    half = q.dtype in HALVES
    quantum = (8 if half else 4) if q.sm >= 80 else (8 if half and q.sm >= 70 else 1)
    yield from _multiples(q, quantum)
    allowed = ("float16", "bfloat16", "float32") if q.sm >= 80 else ("float16", "float32")
    if q.dtype not in allowed:
        yield f"it takes {', '.join(allowed)}, not {q.dtype}"
    if q.grouped:
        yield "query heads outnumber key heads (no grouped queries)"


def _math(q: Question) -> Iterator[str]:
    return iter(())


def _cudnn(q: Question) -> Iterator[str]:
    version = q.cudnn or 0
    if q.cudnn is not None and version < 8903:
        yield "cuDNN is older than 8.9.3"
    if q.dropout and 91100 <= version < 91400:
        yield "cuDNN 9.11 to 9.13 has no dropout"
    limit = 256 if q.sm == 90 and version >= 91000 else 128
    if q.sm // 10 == 10 and (q.q[3], q.v[3]) == (192, 128):  # multi-head latent attention
        limit = 192
    yield from _multiples(q, 8, limit)
    if q.k[2] == 1:
        yield "there is one key"
    if q.q[2] == 1 and (q.release < (2, 9) or q.dropout):
        yield "there is one query"
    if q.release >= (2, 13) and max(q.q[0], q.q[1]) > LARGEST_GRID:
        yield f"batch or heads exceed {LARGEST_GRID}"
    yield from _device(q, oldest=80)
    yield from _types_and_heads(q)


def _device(q: Question, oldest: int) -> Iterator[str]:
    newest = 90 if q.release < (2, 7) else 121
    if not oldest <= q.sm <= newest:
        yield f"{q.arch} is not in sm{oldest} … sm{newest}"


def _multiples(q: Question, quantum: int, limit: int | None = None) -> Iterator[str]:
    for name, d in (("q and k", q.q[3]), ("v", q.v[3])):
        if limit and d > limit:
            yield f"head_dim {d} of {name} is above {limit}"
        if d % quantum:
            yield f"head_dim {d} of {name} is no multiple of {quantum}"


def _types_and_heads(q: Question) -> Iterator[str]:
    if q.dtype not in HALVES:
        yield f"it takes float16 and bfloat16, not {q.dtype}"
    if q.q[1] % q.k[1] or q.q[1] % q.v[1]:
        yield f"{q.q[1]} query heads are no multiple of {q.k[1]} key heads"


_REASONS: Mapping[str, Callable[[Question], Iterator[str]]] = {
    "flash": _flash,
    "efficient": _efficient,
    "math": _math,
    "cudnn": _cudnn,
}


# The same question, put to the PyTorch and the GPU at hand.


def ask(question: Question) -> BackendChoice:
    """PyTorch's own choice and refusals for tensors of these shapes, allocated and freed.

    ``arch``, ``torch`` and ``cudnn`` of the question are not used: the device at hand answers.
    Raises :class:`MeasurementError` without CUDA, or where the tensors do not fit.
    """
    import torch

    if not torch.cuda.is_available():
        raise MeasurementError(
            "PyTorch answers about SDPA backends only where it sees a CUDA device; without one, "
            "ask the rules for an architecture (--arch sm80, or gacprof.kernels.sdpa.choose)"
        )
    try:
        tensors = _tensors(question)
    except torch.cuda.OutOfMemoryError as error:
        raise MeasurementError(f"the tensors of {question} do not fit the device") from error
    options = question.dropout, question.causal
    fused_choice: Any = torch._fused_sdp_choice
    code = int(fused_choice(*tensors, *options, scale=None, enable_gqa=question.grouped))
    make_params: Any = torch.backends.cuda.SDPAParams
    refusals = _live_refusals(make_params(*tensors, *options, question.grouped))
    backend = CODES.get(code, f"code {code}")
    listed: Any = getattr(torch._C, "_get_sdp_priority_order", lambda: [])()
    order = tuple(CODES.get(int(code), str(code)) for code in listed)
    pads_to = padded(question.q[3]) if backend == "flash" else None
    return BackendChoice(backend, refusals, order, pads_to, "live")


def _tensors(question: Question) -> list[torch.Tensor | None]:
    """q, k, v and the mask, if there is one."""
    import torch

    dtype = getattr(torch, question.dtype)
    made: list[torch.Tensor | None] = [
        torch.empty(shape, dtype=dtype, device="cuda", requires_grad=question.training)
        for shape in (question.q, question.k, question.v)
    ]
    if question.mask == "none":
        return [*made, None]
    mask_dtype = torch.bool if question.mask == "bool" else dtype
    size = question.q[2], question.k[2]
    return [*made, torch.zeros(size, dtype=mask_dtype, device="cuda")]


def _live_refusals(params: Any) -> dict[str, str]:
    """PyTorch gives the first failing reason of each backend, as Python warnings."""
    import torch

    preamble = ("kernel not used because", "attention kernel not used")
    checks = {
        "flash": torch.backends.cuda.can_use_flash_attention,
        "efficient": torch.backends.cuda.can_use_efficient_attention,
        "cudnn": torch.backends.cuda.can_use_cudnn_attention,
    }
    refusals = {}
    for name, check in checks.items():
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            usable = check(params, True)
        if not usable:
            messages = [str(warning.message).split("(Triggered")[0].strip() for warning in raised]
            reasons = [text for text in messages if not any(p in text for p in preamble)]
            refusals[name] = " ".join(reasons) or "no reason given"
    return refusals

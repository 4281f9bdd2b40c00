"""Which backend serves scaled-dot-product attention, and why the others refuse.

:func:`choose_backend` answers by rules, for any device and version, without one; :func:`ask` asks
the PyTorch at hand, on a GPU. Both give a :class:`BackendChoice`.

The rules follow ``sdp_utils.cpp`` in its order of checks, for PyTorch 2.6 to 2.13. What changed
from release to release was read out of the messages in the ``libtorch_cuda.so`` of the wheels
2.6.0, 2.8.0, 2.9.1, 2.10.0, 2.11.0, 2.12.0 and 2.13.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from gacprof.core.errors import MapError
from gacprof.core.files import Record
from gacprof.core.points import Point

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
    """One call of ``scaled_dot_product_attention`` on dense, contiguous tensors, for inference.

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

    @property
    def sm(self) -> int:
        """80 of ``sm80``. Raises :class:`MapError` for what is no CUDA architecture."""
        found = re.fullmatch(r"sm([0-9]{2,3})[af]?", self.arch)
        if found is None:
            raise MapError(f"'{self.arch}' is no CUDA architecture such as sm80 or sm90")
        return int(found[1])

    @property
    def release(self) -> tuple[int, int]:
        """(2, 9) of ``2.9.1+cu128``. Raises :class:`MapError` for what is no version."""
        found = re.match(r"([0-9]{1,4})\.([0-9]{1,4})(?![0-9])", self.torch)
        if found is None:
            raise MapError(f"'{self.torch}' is no torch version such as 2.9.1")
        return int(found[1]), int(found[2])

    @property
    def grouped(self) -> bool:
        return not self.q[1] == self.k[1] == self.v[1]


@dataclass(frozen=True)
class BackendChoice(Record):
    """``backend`` is who serves; ``refusals`` says of each other backend why it cannot.

    A backend that is neither chosen nor refused could serve but comes later in the order.
    ``pads_to`` is the head_dim that q, k and v are copied to before, and the output sliced
    from after, or None. ``basis`` is ``rules`` or ``live``; ``doubts`` what the rules could
    not know.
    """

    derived: ClassVar = ("explanation",)

    backend: str
    refusals: Mapping[str, str]
    order: tuple[str, ...]
    pads_to: int | None = None
    basis: str = "rules"
    doubts: tuple[str, ...] = ()

    @property
    def explanation(self) -> str:
        """One sentence."""
        text = f"SDPA takes {self.backend}"
        if self.pads_to:
            text += f"; q, k and v are padded to {self.pads_to} and the output is sliced"
        earlier = self.order[: self.order.index(self.backend)] if self.backend in self.order else ()
        reasons = [f"{name}: {self.refusals[name]}" for name in earlier if name in self.refusals]
        return text + (f" (refused by {'; '.join(reasons)})" if reasons else "")


def question_of(point: Point, arch: str, torch: str, cudnn: int | None = None) -> Question:
    """The question that an ``attention`` point asks. Raises :class:`MapError` for others."""
    if point.operator != "attention":
        raise MapError(f"{point} is no attention point: SDPA has no say in it")
    d, mask = point.dim, str(point.flag.get("mask", "none"))
    q = d.get("batch", 1), d["heads"], d["q_len"], d["head_dim"]
    k = q[0], d.get("kv_heads", d["heads"]), d.get("kv_len", d["q_len"]), d["head_dim"]
    causal = bool(point.flag.get("causal", False))
    return Question(arch, q, k, k, point.dtype, torch, cudnn, mask, causal)


def padded(head_dim: int) -> int | None:
    """What flash's head_dim is padded to, or None where it need not be."""
    return -(-head_dim // FLASH_QUANTUM) * FLASH_QUANTUM if head_dim % FLASH_QUANTUM else None


def choose_backend(question: Question, disabled: tuple[str, ...] = ()) -> BackendChoice:
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
        first, last = (".".join(map(str, release)) for release in (OLDEST, NEWEST))
        doubts.append(f"the rules are of torch {first} to {last}, not {q.torch}")
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


def _cudnn(q: Question) -> Iterator[str]:
    version = q.cudnn or 0
    if q.cudnn is not None and version < 8903:
        yield "cuDNN is older than 8.9.3"
    limit = 256 if q.sm == 90 and version >= 91000 else 128
    if q.sm // 10 == 10 and (q.q[3], q.v[3]) == (192, 128):  # multi-head latent attention
        limit = 192
    yield from _multiples(q, 8, limit)
    if q.k[2] == 1:
        yield "there is one key"
    if q.q[2] == 1 and q.release < (2, 9):
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
    "math": lambda question: iter(()),
    "cudnn": _cudnn,
}


def ask(question: Question) -> BackendChoice:
    """PyTorch's own choice and refusals for such a call, on the GPU at hand.

    ``arch``, ``torch`` and ``cudnn`` of the question are not used: the device answers.
    Raises :class:`MeasurementError` without CUDA, or where the tensors do not fit.
    """
    from gacprof.operators.attention import torch_choice

    q = question
    backend, order, refusals = torch_choice((q.q, q.k, q.v), q.dtype, q.mask, q.causal)
    pads_to = padded(q.q[3]) if backend == "flash" else None
    return BackendChoice(backend, refusals, order, pads_to, "live")

"""What is asked about an attention call, and what the answer holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gacprof.core.errors import MapError
from gacprof.core.points import Point

BACKENDS = ("flash", "efficient", "math", "cudnn")
CODES = {-1: "error", 0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}
"""What ``torch._fused_sdp_choice`` returns (ATen SDPBackend)."""


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
class Choice:
    """``backend`` is who serves; ``refusals`` tells of each other backend why it cannot.

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
    doubts: tuple[str, ...] = field(default=())

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
    d = point.dim

    def shape(heads: str, length: str) -> tuple[int, int, int, int]:
        count = d.get(heads, d["heads"])
        return d.get("batch", 1), count, d.get(length, d["q_len"]), d["head_dim"]

    keys = shape("kv_heads", "kv_len")
    return Question(
        arch=arch,
        q=shape("heads", "q_len"),
        k=keys,
        v=keys,
        dtype=point.dtype,
        torch=torch,
        cudnn=cudnn,
        mask=str(point.flag.get("mask", "none")),
        causal=bool(point.flag.get("causal", False)),
    )

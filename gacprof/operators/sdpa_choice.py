"""PyTorch's own choice of an SDPA backend for a call, asked on the GPU at hand."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import MeasurementError

if TYPE_CHECKING:
    import torch

CODES = {-1: "error", 0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}
"""What ``torch._fused_sdp_choice`` returns (ATen SDPBackend)."""
_BESIDE = ("kernel not used because", "attention kernel not used")
"""Parts of warnings that introduce a reason and are none."""


@dataclass(frozen=True)
class TorchChoice:
    """The backend taken, the order in which they are asked, and why others refuse."""

    backend: str
    order: tuple[str, ...]
    refusals: Mapping[str, str]


def torch_choice(
    shapes: Sequence[tuple[int, int, int, int]],
    dtype: str,
    *,
    mask: str = "none",
    causal: bool = False,
    dropout: float = 0.0,
    training: bool = False,
) -> TorchChoice:
    """What PyTorch takes for q, k and v of these shapes (batch, heads, tokens, head_dim).

    The tensors are allocated and freed. Raises :class:`MeasurementError` without CUDA, or where
    they do not fit.
    """
    import torch

    if not torch.cuda.is_available():
        raise MeasurementError(
            "PyTorch answers about SDPA backends only where it sees a CUDA device; without one, "
            "ask the rules for an architecture (--arch sm80, or gacprof.kernels.sdpa.choose)"
        )
    try:
        tensors = _tensors(shapes, dtype, mask, training)
    except torch.cuda.OutOfMemoryError as error:
        raise MeasurementError(f"tensors of {list(shapes)} do not fit the device") from error
    grouped = len({heads for _, heads, _, _ in shapes}) > 1
    fused_choice: Any = torch._fused_sdp_choice
    code = int(fused_choice(*tensors, dropout, causal, scale=None, enable_gqa=grouped))
    make_params: Any = torch.backends.cuda.SDPAParams
    listed: Any = getattr(torch._C, "_get_sdp_priority_order", lambda: [])()
    return TorchChoice(
        CODES.get(code, f"code {code}"),
        tuple(CODES.get(int(code), str(code)) for code in listed),
        _refusals(make_params(*tensors, dropout, causal, grouped)),
    )


def _tensors(
    shapes: Sequence[tuple[int, int, int, int]], dtype: str, mask: str, training: bool
) -> list[torch.Tensor | None]:
    """q, k, v and the mask, if there is one."""
    import torch

    kind = getattr(torch, dtype)
    made: list[torch.Tensor | None] = [
        torch.empty(shape, dtype=kind, device="cuda", requires_grad=training) for shape in shapes
    ]
    if mask == "none":
        return [*made, None]
    size = shapes[0][2], shapes[1][2]
    return [*made, torch.zeros(size, dtype=torch.bool if mask == "bool" else kind, device="cuda")]


def _refusals(params: Any) -> dict[str, str]:
    """PyTorch gives the first failing reason of each backend, as Python warnings."""
    import torch

    refusals = {}
    for name in ("flash", "efficient", "cudnn"):
        check = getattr(torch.backends.cuda, f"can_use_{name}_attention")
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always")
            usable = check(params, True)
        if not usable:
            messages = [str(warning.message).split("(Triggered")[0].strip() for warning in raised]
            reasons = [text for text in messages if not any(part in text for part in _BESIDE)]
            refusals[name] = " ".join(reasons) or "no reason given"
    return refusals

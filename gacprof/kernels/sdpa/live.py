"""The same question, put to the PyTorch and the GPU at hand."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import MeasurementError
from gacprof.kernels.sdpa.question import CODES, Choice, Question
from gacprof.kernels.sdpa.rules import FLASH_QUANTUM

if TYPE_CHECKING:
    import torch

NO_GPU = (
    "PyTorch answers about SDPA backends only where it sees a CUDA device; without one, ask "
    "the rules for an architecture (--arch sm80, or gacprof.kernels.sdpa.choose)"
)
_PREAMBLE = ("kernel not used because", "attention kernel not used")


def ask(question: Question) -> Choice:
    """PyTorch's own choice and refusals for tensors of these shapes, allocated and freed.

    ``arch``, ``torch`` and ``cudnn`` of the question are not used: the device at hand answers.
    Raises :class:`MeasurementError` without CUDA, or where the tensors do not fit.
    """
    import torch

    if not torch.cuda.is_available():
        raise MeasurementError(NO_GPU)
    try:
        tensors = _tensors(question)
        mask = _mask(question, tensors[0])
    except torch.cuda.OutOfMemoryError as error:
        raise MeasurementError(f"the tensors of {question} do not fit the device") from error
    grouped = question.grouped
    fused_choice: Any = torch._fused_sdp_choice
    code = fused_choice(
        *tensors, mask, question.dropout, question.causal, scale=None, enable_gqa=grouped
    )
    backend = CODES.get(int(code), f"code {int(code)}")
    make_params: Any = torch.backends.cuda.SDPAParams
    params = make_params(*tensors, mask, question.dropout, question.causal, grouped)
    head_dim = question.q[3]
    pads = backend == "flash" and head_dim % FLASH_QUANTUM != 0
    return Choice(
        backend,
        _refusals(params),
        _order(),
        -(-head_dim // FLASH_QUANTUM) * FLASH_QUANTUM if pads else None,
        "live",
    )


def _tensors(question: Question) -> list[torch.Tensor]:
    import torch

    dtype = getattr(torch, question.dtype)
    shapes = (question.q, question.k, question.v)
    return [
        torch.empty(shape, dtype=dtype, device="cuda", requires_grad=question.training)
        for shape in shapes
    ]


def _mask(question: Question, q: torch.Tensor) -> torch.Tensor | None:
    import torch

    if question.mask == "none":
        return None
    dtype = torch.bool if question.mask == "bool" else q.dtype
    return torch.zeros((question.q[2], question.k[2]), dtype=dtype, device="cuda")


def _refusals(params: Any) -> dict[str, str]:
    """PyTorch gives the first failing reason of each backend, as Python warnings."""
    import torch

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
            said = [str(warning.message).split("(Triggered")[0].strip() for warning in raised]
            reasons = [text for text in said if not any(p in text for p in _PREAMBLE)]
            refusals[name] = " ".join(reasons) or "no reason given"
    return refusals


def _order() -> tuple[str, ...]:
    import torch

    listed: Any = getattr(torch._C, "_get_sdp_priority_order", lambda: [])()
    return tuple(CODES.get(int(code), str(code)) for code in listed)

"""Scaled-dot-product attention as PyTorch dispatches it, over head_dim and sequence lengths.

The mask is a flag because it decides the backend: with an explicit mask FlashAttention is
out, and a head_dim that is no multiple of 8 then falls to the math path. A rank of a
compressed projection is never a head_dim: the width is restored before attention.

``layout`` is how operands lie in memory: ``bhsd`` as written, [batch, heads, length, head_dim];
``bshd`` as models pass them, [batch, length, heads, head_dim] from a projection, transposed to
the former as a view. Backends and their padding copies depend on these strides.

PyTorch's own choice of an SDPA backend for a call, asked on the GPU at hand.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Flag, Point
from gacprof.operators.base import Operator, Prepared, itemsize, random_tensor

if TYPE_CHECKING:
    import torch


class Attention(Operator):
    name = "attention"
    dims = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim")
    default_dims: Mapping[str, int | str] = {"batch": 1, "kv_heads": "heads", "kv_len": "q_len"}
    flags: Mapping[str, tuple[Flag, ...]] = {
        "causal": (False, True),
        "mask": ("none", "float", "bool"),
        "backend": ("auto", "flash", "efficient", "math", "cudnn"),
        "cache": ("warm", "cold"),
        "layout": ("bhsd", "bshd"),
    }
    omitted_if_default = ("layout",)
    dtypes = ("float32", "bfloat16", "float16")

    def flops(self, point: Point) -> int:
        """Both matrix products; a causal mask halves them where the lengths are equal."""
        d = point.dim
        full = 4 * d["batch"] * d["heads"] * d["q_len"] * d["kv_len"] * d["head_dim"]
        return full // 2 if point.flag["causal"] else full

    def bytes_moved(self, point: Point) -> int:
        d = point.dim
        queries = 2 * d["heads"] * d["q_len"]  # read q, write the output
        keys = 2 * d["kv_heads"] * d["kv_len"]
        return d["batch"] * (queries + keys) * d["head_dim"] * itemsize(point)

    def problem(self, point: Point) -> str | None:
        d = point.dim
        if d["heads"] % d["kv_heads"]:
            return f"heads ({d['heads']}) is not a multiple of kv_heads ({d['kv_heads']})"
        if point.flag["causal"] and point.flag["mask"] != "none":
            return "PyTorch takes either 'causal' or a mask, not both"
        return None

    def prepare(self, point: Point, device: torch.device) -> Prepared:
        from torch.nn.functional import scaled_dot_product_attention

        d = point.dim
        as_models_do = point.flag.get("layout") == "bshd"

        def operand(heads: str, length: str, seed: int) -> torch.Tensor:
            inner = (d[length], d[heads]) if as_models_do else (d[heads], d[length])
            return random_tensor((d["batch"], *inner, d["head_dim"]), point, device, seed)

        q = operand("heads", "q_len", 1)
        k, v = operand("kv_heads", "kv_len", 2), operand("kv_heads", "kv_len", 3)
        mask = self._mask(point, device)
        causal = bool(point.flag["causal"])
        grouped = d["kv_heads"] != d["heads"]

        def attend(
            q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None
        ) -> torch.Tensor:
            if as_models_do:
                q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            return scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=grouped
            )

        prepared = Prepared(attend, (q, k, v, mask), inputs=(0,), weights=(1, 2))
        backend = str(point.flag["backend"])
        if backend == "auto":
            return prepared
        prepared = replace(prepared, call=_forced(attend, backend))
        if why_not := refusal(prepared.call, prepared.operands, backend):
            raise MeasurementError(why_not)
        return prepared

    @staticmethod
    def _mask(point: Point, device: torch.device) -> torch.Tensor | None:
        """A mask that hides a random tenth of the keys from each query, never all of them."""
        import torch

        if point.flag["mask"] == "none":
            return None
        shape = (1, 1, point.dim["q_len"], point.dim["kv_len"])
        visible = random_tensor(shape, Point.of("mask", {}, "float32"), device, seed=4) < 1.28
        visible[..., 0] = True
        if point.flag["mask"] == "bool":
            return visible
        hidden = torch.zeros(shape, device=device).masked_fill(~visible, float("-inf"))
        return hidden.to(getattr(torch, point.dtype))


BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
    "cudnn": "CUDNN_ATTENTION",
}
"""Our flag's values as torch.nn.attention.SDPBackend names them."""


def _forced(attend: Callable[..., Any], backend: str) -> Callable[..., Any]:
    """``attend`` on one backend only; raises with PyTorch's reason where that refuses."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    only = getattr(SDPBackend, BACKENDS[backend])

    def call(*operands: Any) -> Any:
        with sdpa_kernel(only):
            return attend(*operands)

    return call


def refusal(forced: Callable[..., Any], operands: tuple[Any, ...], backend: str) -> str | None:
    """Why PyTorch will not serve the call on that backend; None if it does.

    It raises the same sentence whatever the cause, and warns of the causes, among them those of
    the backends that forcing this one has disabled. A lack of memory is no refusal
    and passes through.
    """
    import torch

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            forced(*operands)
            return None
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            first = str(error).strip().split("\n")[0]
    reasons = [text for text in _reasons(warned) if not text.endswith("has been runtime disabled.")]
    return f"the {backend} backend refuses: {'; '.join(dict.fromkeys(reasons)) or first}"


def _reasons(warned: Sequence[warnings.WarningMessage]) -> list[str]:
    """What PyTorch warned of, without the sentences that only introduce a reason."""
    texts = [str(warning.message).split("(Triggered")[0].strip() for warning in warned]
    return [
        t for t in texts if "not used because" not in t and "attention kernel not used" not in t
    ]


CODES = {-1: "error", 0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}
"""What ``torch._fused_sdp_choice`` returns (ATen SDPBackend)."""


def torch_choice(
    shapes: Sequence[tuple[int, int, int, int]], dtype: str, mask: str, causal: bool
) -> tuple[str, tuple[str, ...], dict[str, str]]:
    """What PyTorch takes for q, k and v of these shapes (batch, heads, tokens, head_dim), the order
    in which it asks the backends, and why others refuse.

    The tensors are allocated and freed. Raises :class:`MeasurementError` without CUDA, or where
    they do not fit.
    """
    import torch

    if not torch.cuda.is_available():
        raise MeasurementError(
            "PyTorch answers about SDPA backends only where it sees a CUDA device; without one, "
            "ask the rules for an architecture (--arch sm80, or "
            "gacprof.kernels.sdpa.choose_backend)"
        )
    kind = getattr(torch, dtype)
    masked = None
    try:
        tensors = [torch.empty(shape, dtype=kind, device="cuda") for shape in shapes]
        if mask != "none":
            size, of = (shapes[0][2], shapes[1][2]), torch.bool if mask == "bool" else kind
            masked = torch.zeros(size, dtype=of, device="cuda")
    except torch.cuda.OutOfMemoryError as error:
        raise MeasurementError(f"tensors of {list(shapes)} do not fit the device") from error
    grouped = len({heads for _, heads, _, _ in shapes}) > 1
    call = (*tensors, masked, 0.0, causal)  # without dropout
    fused_choice: Any = torch._fused_sdp_choice
    code = int(fused_choice(*call, scale=None, enable_gqa=grouped))
    make_params: Any = torch.backends.cuda.SDPAParams
    listed: Any = getattr(torch._C, "_get_sdp_priority_order", lambda: [])()
    order = tuple(CODES.get(int(one), str(one)) for one in listed)
    return CODES.get(code, f"code {code}"), order, _refusals(make_params(*call, grouped))


def _refusals(params: Any) -> dict[str, str]:
    """PyTorch gives the first failing reason of each backend, as Python warnings."""
    import torch

    refusals = {}
    for name in ("flash", "efficient", "cudnn"):
        check = getattr(torch.backends.cuda, f"can_use_{name}_attention")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            usable = check(params, True)
        if not usable:
            refusals[name] = " ".join(_reasons(warned)) or "no reason given"
    return refusals

"""Scaled-dot-product attention as PyTorch dispatches it, over head_dim and sequence lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gacprof.core.points import Flag, Point
from gacprof.operators.base import CACHE, Operand, Operator, register

if TYPE_CHECKING:
    import torch

BACKENDS = {  # members of torch.nn.attention.SDPBackend
    "flash": "FLASH_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
    "cudnn": "CUDNN_ATTENTION",
}


class Attention(Operator):
    """Attention of ``heads`` query heads over ``kv_heads`` heads of keys and values.

    ``layout`` is ``bhsd`` for operands stored as [batch, heads, length, head_dim], ``bshd`` for
    [batch, length, heads, head_dim] as models pass them, transposed as a view.
    """

    name = "attention"
    dims = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim")
    default_dims: Mapping[str, int | str] = {"batch": 1, "kv_heads": "heads", "kv_len": "q_len"}
    flags: Mapping[str, tuple[Flag, ...]] = {
        "causal": (False, True),
        "mask": ("none", "float", "bool"),  # FlashAttention takes none: 107 falls to the math path
        "backend": ("auto", *BACKENDS),  # a forced one fails where it refuses
        "cache": CACHE,
        "layout": ("bhsd", "bshd"),
    }
    dtypes = ("float32", "bfloat16", "float16")

    def flops(self, point: Point) -> int:
        d = point.dims
        full = 4 * d["batch"] * d["heads"] * d["q_len"] * d["kv_len"] * d["head_dim"]
        return full // 2 if point.flags["causal"] else full  # exact where the lengths are equal

    def result_bytes(self, point: Point) -> int:
        return self.operands(point)[0].nbytes

    def problem(self, point: Point) -> str:
        heads, kv_heads = point.dims["heads"], point.dims["kv_heads"]
        if heads % kv_heads:
            return f"heads ({heads}) is not a multiple of kv_heads ({kv_heads})"
        if point.flags["causal"] and point.flags["mask"] != "none":
            return "PyTorch takes either 'causal' or a mask, not both"
        return ""

    def operands(self, point: Point) -> tuple[Operand, ...]:
        batch, heads, kv_heads, q_len, kv_len, head_dim = (point.dims[name] for name in self.dims)
        q_shape, kv_shape = (batch, heads, q_len, head_dim), (batch, kv_heads, kv_len, head_dim)
        if point.flags["layout"] == "bshd":
            q_shape, kv_shape = (batch, q_len, heads, head_dim), (batch, kv_len, kv_heads, head_dim)
        query = Operand("input", q_shape, point.dtype)
        key_or_value = Operand("weight", kv_shape, point.dtype)
        mask_dtype = "bool" if point.flags["mask"] == "bool" else point.dtype
        mask = Operand("input", (1, 1, q_len, kv_len), mask_dtype)
        masks = () if point.flags["mask"] == "none" else (mask,)
        return query, key_or_value, key_or_value, *masks

    def call(self, point: Point, device: torch.device) -> Callable[..., Any]:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        transposed = point.flags["layout"] == "bshd"
        options: dict[str, Any] = {
            "is_causal": point.flags["causal"],
            "enable_gqa": point.dims["kv_heads"] != point.dims["heads"],
        }

        def attend(q: Any, k: Any, v: Any, mask: Any = None) -> torch.Tensor:
            if transposed:
                q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
            return scaled_dot_product_attention(q, k, v, attn_mask=mask, **options)

        if point.flags["backend"] == "auto":
            return attend
        backend = getattr(SDPBackend, BACKENDS[str(point.flags["backend"])])
        return sdpa_kernel(backend)(attend)


register(Attention())

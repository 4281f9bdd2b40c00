"""The tier of a product by the rules of the GPU's libraries, beside what the engine does with it.

Rules are of the kernels that PyTorch calls: bf16 products, FP8 with one scale, INT8. What an engine
serves by kernels of its own (blocks, 4 bits, experts) has no tier here; nor has the embedding,
which is no product, nor attention, which is judged by its heads alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from gacprof.core.errors import GacprofError
from gacprof.demands.evaluate import Judged
from gacprof.demands.targets import Gpu

TORCH = "2.11"
"""The release whose wheel the rules were read in."""
TOKENS = 1024
DTYPES = {
    "none": ("linear", "bfloat16"), "fp8_tensor": ("quantised", "float8_e4m3"),
    "fp8_channel": ("quantised", "float8_e4m3"), "int8_w8a8": ("quantised", "int8"),
}  # fmt: skip

Tiers = Callable[[Judged], "int | None"]


@cache
def tiers(gpu: Gpu) -> Tiers:
    """What gives a product's tier, 1 the best; None where the GPU or the scheme has no rules."""
    if gpu.is_open or gpu.amd:
        return lambda judged: None
    from gacprof import operators
    from gacprof.rules import serve, target

    try:
        about = target(gpu.name, TORCH)
    except GacprofError:
        return lambda judged: None

    @cache
    def tier(n: int, k: int, kind: str) -> int | None:
        operator, dtype = DTYPES[kind]
        try:
            point = operators.point(operator, {"M": TOKENS, "N": n, "K": k}, dtype)
            return serve(point, about).tier
        except GacprofError:  # no rule, or no kernel
            return None

    def of(judged: Judged) -> int | None:
        product, kind = judged.product, judged.scheme.kind
        n = judged.padded.get("N", product.n.value)
        k = judged.padded.get("K", product.k.value)
        if product.kind == "vocab" and product.n.whole:
            n = -(-judged.padded.get("global", product.n.whole) // product.n.parts)
        is_product = product.kind == "dense" or product.role == "head"
        if kind not in DTYPES or not is_product or not n or not k:
            return None
        return tier(n, k, kind)

    return of


def worst_tier(judged: Iterable[Judged], tier: Tiers) -> int | None:
    """The worst tier of a model's products; None where no layer's product has one."""
    found = [(one.product.kind, tier(one)) for one in judged]
    if not any(kind == "dense" and each for kind, each in found):
        return None
    return max(each for _, each in found if each)

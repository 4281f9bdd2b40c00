"""How the kernels of a named GPU serve what an engine takes: by the rules of alignment."""

from __future__ import annotations

from gacprof.core.sizes import Gemm, Side, Use
from gacprof.devices.datasheet import GPUS
from gacprof.extras.lint.judge import Judgement
from gacprof.extras.lint.targets import Gpu
from gacprof.kernels.rules import Rules

DTYPES = {
    "none": "bfloat16",
    "fp8_tensor": "float8_e4m3",
    "fp8_channel": "float8_e4m3",
    "int8_w8a8": "int8",
}
"""Formats whose products are the libraries': blocks, packed words and experts have kernels of the
engine's own, of which no rule says anything."""
TOKENS = 1024
"""Rows of a prefill, at which sizes are judged: with few of them nothing is safe for sure."""
BADNESS = ("", "safe", "undecided", "unknown", "misaligned")


class Alignment:
    """The rules of one GPU, where there are any."""

    def __init__(self, gpu: Gpu) -> None:
        self.rules = Rules(gpu.name) if gpu.name in GPUS else None

    def of(self, judgement: Judgement) -> str:
        """The worse verdict on N and K as the engine pads them; empty where there are no rules."""
        product = judgement.product
        dtype = DTYPES.get(judgement.storage.form, "")
        n = judgement.pads_to.get("N", product.N)
        k = judgement.pads_to.get("K", product.K)
        if product.role == "head":
            n = judgement.pads_to.get("global", product.whole) // product.ranks
        is_product = product.kind == "dense" or product.role == "head"
        if self.rules is None or dtype not in self.rules.dtypes or not is_product or not n * k:
            return ""
        gemm = Gemm(product.name, n, k)
        uses = {
            n: Use(gemm, Side(0, 1), Side(k), TOKENS, dtype),
            k: Use(gemm, Side(n), Side(0, 1), TOKENS, dtype),
        }
        verdicts = [self.rules.judge([use], [size])[0].verdict for size, use in uses.items()]
        return max(verdicts, key=BADNESS.index)

"""A source of sizes whose latencies are a formula: exact, and what is right can be enumerated."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from gacprof.core.sizes import TOLERANCE, Gemm, Interval, SizeVerdict, Use

Formula = Callable[[int, int, int], float]
"""µs of a product of M, N and K."""


def teeth_of(step: int) -> Formula:
    """Products off multiples of ``step`` work 40 % longer."""
    return lambda m, n, k: 2.0 + m * n * k / 1e6 * (1.4 if n % step or k % step else 1.0)


def stairs_of(step: int) -> Formula:
    """Work is rounded up to multiples of ``step``."""
    return lambda m, n, k: 2.0 + m * ceil(n / step) * step * ceil(k / step) * step / 1e6


@dataclass(frozen=True)
class FormulaSource:
    """Exact latencies by a formula; of the (M, N, K) ``measured`` only, where those are named."""

    formula: Formula
    measured: Collection[tuple[int, int, int]] = ()
    largest: int = 2048
    name: str = "formula"
    provenance: str = "by a formula"
    tokens: Sequence[int] = (1, 64)
    dtypes: Sequence[str] = ()

    def latency_us(self, gemm: Gemm, tokens: int, dtype: str) -> Interval | None:
        if self.measured and (tokens, gemm.N, gemm.K) not in self.measured:
            return None
        time = self.formula(tokens, gemm.N, gemm.K)
        return Interval(time, time, time)

    def time(self, uses: Sequence[Use], size: int) -> float | None:
        total = 0.0
        for use in uses:
            shape = use.at(size)
            latency = shape and self.latency_us(Gemm("", *shape), use.tokens, use.dtype)
            if latency is None:
                return None
            total += use.weight * latency.value
        return total

    def sizes(self, uses: Sequence[Use], low: int, high: int) -> list[int]:
        return [size for size in range(low, high + 1) if self.time(uses, size) is not None]

    def judge(self, uses: Sequence[Use], sizes: Sequence[int]) -> list[SizeVerdict]:
        largest = self.largest if self.measured else 2 * max(sizes) + 64
        times = {size: self.time(uses, size) for size in range(min(sizes), largest + 1)}
        verdicts = {}
        best = float("inf")
        for size, time in sorted(times.items(), reverse=True):
            if time is None:
                verdicts[size] = SizeVerdict(size, "unknown")
            else:
                best = min(best, time)
                loss = time / best - 1
                verdict = "safe" if loss <= TOLERANCE else "misaligned"
                exact = Interval(loss, loss, loss), Interval(time, time, time)
                verdicts[size] = SizeVerdict(size, verdict, *exact)  # type: ignore[arg-type]
        return [verdicts[size] for size in sizes]

    def head_dim(self, head_dim: int, heads: int, kv_heads: int, dtype: str) -> SizeVerdict:
        return SizeVerdict(head_dim, "misaligned" if head_dim % 8 else "safe")


def write_checkpoint(
    folder: Path, shapes: Mapping[str, Sequence[int]], config: Mapping[str, Any] | None = None
) -> Path:
    """A folder of a config and a safetensors file of float16 zeros."""
    entries, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2
        for size in shape:
            end = start + (end - start) * size
        entries[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    folder.mkdir(parents=True)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + end)
    (folder / "config.json").write_text(json.dumps(dict(config or {})))
    return folder

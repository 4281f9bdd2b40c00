"""A source of sizes whose latencies are a formula: exact, and what is right can be enumerated."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import ceil, inf
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
    measured: Set[tuple[int, ...]] = frozenset()
    largest: int = 1024
    name: str = "formula"
    provenance: str = "by a formula"
    tokens: Sequence[int] = (1, 64)
    dtypes: Sequence[str] = ()
    tolerance: float = TOLERANCE
    _times: dict[object, dict[int, float]] = field(default_factory=dict)
    _verdicts: dict[int, dict[int, SizeVerdict]] = field(default_factory=dict)

    def latency_us(self, gemm: Gemm, tokens: int, dtype: str) -> Interval | None:
        if self.measured and (tokens, gemm.N, gemm.K) not in self.measured:
            return None
        time = self.formula(tokens, gemm.N, gemm.K)
        return Interval(time, time, time)

    def times(self, uses: Sequence[Use]) -> dict[int, float]:
        """The time of all uses by size, where that is known."""
        key = frozenset((use.N, use.K, use.tokens, use.weight) for use in uses)
        if key not in self._times:
            times = {}
            for size in range(1, self.largest + 1):
                shapes = [(use, use.at(size)) for use in uses]
                points = {(use.tokens, *shape) for use, shape in shapes if shape}
                if (not self.measured or points <= self.measured) and all(
                    shape for _, shape in shapes
                ):
                    times[size] = sum(
                        use.weight * self.formula(use.tokens, *shape)
                        for use, shape in shapes
                        if shape
                    )
            self._times[key] = times
        return self._times[key]

    def sizes(self, uses: Sequence[Use], low: int, high: int) -> list[int]:
        return [size for size in self.times(uses) if low <= size <= high]

    def judge(self, uses: Sequence[Use], sizes: Sequence[int]) -> list[SizeVerdict]:
        times = self.times(uses)
        verdicts = self._verdicts.setdefault(id(times), {})
        best = inf
        for size in sorted(times, reverse=True) if not verdicts else ():
            best = min(best, times[size])
            exact = times[size] / best - 1, times[size]
            penalty, latency = (Interval(value, value, value) for value in exact)
            verdict = "safe" if penalty.value <= TOLERANCE else "misaligned"
            verdicts[size] = SizeVerdict(size, verdict, penalty, latency)  # type: ignore[arg-type]
        return [verdicts.get(size) or SizeVerdict(size, "unknown") for size in sizes]

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

"""One axis of an operator as others measured it: the sizes that there are, nothing between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gacprof.core.errors import MapError
from gacprof.core.files import Record
from gacprof.elsewhere.data import ABSENT, Measurements, release
from gacprof.elsewhere.levels import table_dtype


@dataclass(frozen=True)
class Source:
    """Where an operator's times are: the folder and file of its tables, the column of data types,
    our dims by the tables' columns, and what other columns are fixed ``at``."""

    folder: str
    file: str
    dtype: str
    columns: Mapping[str, str]
    at: Mapping[str, int | str] = field(default_factory=dict)


HEADS = {"heads": "num_heads", "head_dim": "head_dim"}
SOURCES: Mapping[str, Source] = {
    "linear": Source("gemm", "gemm_perf", "gemm_dtype", {"M": "m", "N": "n", "K": "k"}),
    "attention": Source(
        "attention", "context_attention_perf", "attn_dtype",
        {"batch": "batch_size", "q_len": "isl", "kv_heads": "num_key_value_heads", **HEADS},
        {"window_size": 0, "kv_cache_dtype": "bfloat16"},
    ),
    "encoder-attention": Source(
        "encoder_attention", "encoder_attention_perf", "attn_dtype",
        {"batch": "batch_size", "q_len": "isl", **HEADS},
    ),
    "experts": Source(
        "moe", "moe_perf", "moe_dtype",
        {"tokens": "num_tokens", "hidden": "hidden_size", "width": "inter_size",
         "experts": "num_experts", "topk": "topk", "tp": "moe_tp_size"},
        {"moe_ep_size": 1},
    ),
}  # fmt: skip
"""Operators that are shown; routed experts by the median routing, on one of ``tp`` ranks."""


@dataclass(frozen=True)
class Line(Record):
    """One engine's times: ``latency_us`` at each of ``sizes``; ``kernels`` are the table's words
    for what ran."""

    engine: str
    version: str
    kernels: tuple[str, ...]
    sizes: tuple[int, ...]
    latency_us: tuple[float, ...]


@dataclass(frozen=True)
class Step(Record):
    """From ``after`` to the next whole size one engine's time changes by at least the share
    ``change``: the two sizes before it beside the next two and, of a rise, all up to twice its
    size."""

    engine: str
    after: int
    change: float


@dataclass(frozen=True)
class MeasuredCurve(Record):
    """Times over one axis, by engine. ``provenance`` is always "elsewhere"."""

    derived = ("provenance", "steps")

    gpu: str
    operator: str
    axis: str
    fixed: dict[str, int]
    dtype: str
    package: str
    lines: tuple[Line, ...]

    @property
    def provenance(self) -> str:
        return "elsewhere"

    @property
    def steps(self) -> list[Step]:
        """Where a size and the next whole one were both measured, and the change holds beside their
        neighbours: one time off between equal ones is no step, nor a rise that later sizes do
        not have."""
        found = []
        for line in self.lines:
            for i in (i for i, (a, b) in enumerate(pairwise(line.sizes)) if b == a + 1):
                us = line.latency_us
                before, after = us[max(0, i - 1) : i + 1], us[i + 1 : i + 3]
                later = zip(line.sizes[i + 3 :], us[i + 3 :], strict=True)
                held = [t for d, t in later if d <= 2 * line.sizes[i + 1]]
                rise = min(*after, *held, us[i + 1]) / max(before) - 1
                fall = max(after) / min(before) - 1
                if rise > 0 or fall < 0:
                    found.append(Step(line.engine, line.sizes[i], rise if rise > 0 else fall))
        return found


def measured_curve(
    measured: Measurements,
    gpu: str,
    operator: str,
    axis: str,
    fixed: Mapping[str, int],
    *,
    dtype: str = "bfloat16",
    engine: str | None = None,
) -> MeasuredCurve:
    """The times over ``axis`` with the operator's other dims ``fixed``, of each engine's newest
    version that has them.

    Raises :class:`MapError` for an operator, a dim, a data type or sizes that were not measured,
    naming what was.
    """
    if operator not in SOURCES:
        raise MapError(f"no operator '{operator}' is read from elsewhere: {', '.join(SOURCES)} are")
    source = SOURCES[operator]
    columns = source.columns
    others = [dim for dim in columns if dim != axis]
    if axis not in columns or sorted(fixed) != sorted(others):
        asked = ",".join(f"{dim}=SIZE" for dim in others)
        raise MapError(
            f"{operator} has the dims {', '.join(columns)}: give --axis as one of them and all "
            f"others, as --fixed {asked}"
        )
    named, lines = table_dtype(dtype), dict[str, Line]()
    seen: dict[str, set[Any]] = {dim: set() for dim in others} | {"dtype": set()}
    files = measured.files(measured.gpu(gpu), source.folder)
    files = [path for path in files if path.stem == source.file]
    engines = sorted({path.parts[-3] for path in files})
    if engine is not None and engine not in engines:
        there = _listed(engines) or "none"
        raise MapError(f"no engine '{engine}' was measured: there are {there} (--engine)")
    for path in sorted(files, key=lambda path: release(path.parent.name)):
        name, version = path.parts[-3:-1]
        if engine in (None, name):
            rows = _rows(measured, path, source, seen)
            line = _line(name, version, rows, axis, {"dtype": named, **fixed})
            lines |= {name: line} if line else {}
    if not lines:
        raise MapError(_absent(operator, gpu, {"dtype": named, **fixed}, seen))
    package = f"aiconfigurator-core {measured.version}"
    chosen = tuple(lines[name] for name in sorted(lines))
    return MeasuredCurve(measured.gpu(gpu), operator, axis, dict(fixed), named, package, chosen)


def _rows(
    measured: Measurements,
    path: Path,
    source: Source,
    seen: Mapping[str, set[Any]],
) -> dict[str, np.ndarray]:
    """The table by our names of dims; what sizes it has is added to ``seen``."""
    from pyarrow import compute

    names = {"dtype": source.dtype, **source.columns, "latency": "latency"}
    names["kernel"] = "kernel_source"
    table = measured.read(path, (*names.values(), *source.at), ABSENT)
    for name in (name for name in source.at if name in table.column_names):
        table = table.filter(compute.equal(table[name], source.at[name]))
    rows = {ours: table[theirs].to_numpy(zero_copy_only=False) for ours, theirs in names.items()}
    for dim, sizes in seen.items():
        sizes |= set(np.unique(rows[dim].astype(str) if dim == "dtype" else rows[dim]).tolist())
    return rows


def _line(
    engine: str, version: str, rows: Mapping[str, np.ndarray], axis: str, at: Mapping[str, Any]
) -> Line | None:
    """Repeated sizes count by their median; None where nothing was measured there."""
    here = np.isfinite(rows["latency"]) & (rows["latency"] > 0)
    for dim, size in at.items():
        here &= rows[dim] == size
    if not here.any():
        return None
    sizes, times = rows[axis][here], rows["latency"][here] * 1e3
    listed = np.unique(sizes)
    medians = tuple(float(np.median(times[sizes == size])) for size in listed)
    kernels = tuple(sorted(set(map(str, rows["kernel"][here]))))
    return Line(engine, version, kernels, tuple(map(int, listed)), medians)


def _absent(operator: str, gpu: str, at: Mapping[str, Any], seen: Mapping[str, set[Any]]) -> str:
    for dim, size in at.items():
        if size not in seen[dim]:
            there = _listed(sorted(seen[dim])) or "nothing"
            return f"{operator} was not measured at {dim}={size} on {gpu}: there is {there}"
    return f"{operator} was not measured at these dims together on {gpu}"


def _listed(sizes: Sequence[Any]) -> str:
    return ", ".join(map(str, sizes))


def as_rows(curve: MeasuredCurve) -> Iterator[tuple[int, list[float | None]]]:
    """Each size with the engines' times, None where one has none."""
    known = [dict(zip(line.sizes, line.latency_us, strict=True)) for line in curve.lines]
    for size in sorted({size for line in curve.lines for size in line.sizes}):
        yield size, [times.get(size) for times in known]

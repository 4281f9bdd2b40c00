"""How far the rules hold beside times that others measured: the tables of reports/rules.md.

    python benchmarks/rules_by_evidence.py [--gpu h100 ...] [--vidur FOLDER]

Needs ``gacprof[elsewhere]``. Prints Markdown: for M, how often a step of more than 5 % from m to
m + 1 lies where the rules say that one is likely (before: at every multiple of 64 up to Ada, of 8
from Hopper on); for N and K, how many aligned sizes a larger one undercuts; for head_dim, what 72
costs beside 80. ``--vidur`` is a checkout of microsoft/vidur: its curves over M, at steps of 8.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from gacprof import operators
from gacprof.cliffmap import detect
from gacprof.elsewhere.data import Measurements, Surface, installed, release, short_name
from gacprof.elsewhere.levels import ROWS
from gacprof.rules import step, target
from gacprof.rules.target import Target
from gacprof.rules.waves import OLD

TORCH = "2.11"
STEP = 0.05
LEAST = 256
"""Smaller N and K are bound by their launch."""
NOISE = 0.03
GPUS = ("a100", "l40s", "h100", "h200", "b200")
Share = tuple[int, int, int]
Steps = Callable[[int, int, int], object]


def after(about: Target) -> Steps:
    """What sizes of M with the same work have in common, by the rules of now."""

    def of(m: int, n: int, k: int) -> object:
        point = operators.point("linear", {"M": m, "N": n, "K": k}, "bfloat16")
        return step(point, "M", about)

    return of


def before(about: Target) -> Steps:
    finest = 64 if about.arch in OLD else 8
    return lambda m, n, k: -(-m // finest)


def middle(measured: Measurements, gpu: str) -> Surface:
    """The median over frameworks that have all sizes, in bf16."""
    found = [s for s in measured.surfaces(gpu) if s.dtype == "bfloat16"]
    most = max(found, key=lambda s: s.latency_us.size)
    alike = [s.latency_us for s in found if s.latency_us.shape == most.latency_us.shape]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # sizes that nobody measured stay NaN
        times = np.nanmedian(alike, axis=0)
    return Surface("median", "", "bfloat16", most.m, most.n, most.k, times)


def pairs(surface: Surface, steps: Steps) -> Share:
    """(right, said, measured): steps from m to m + 1 by more than 5 %."""
    right = said = there = 0
    m = surface.m.tolist()
    for i, j in ((i, m.index(size + 1)) for i, size in enumerate(m) if size + 1 in m and size > 8):
        for column, n in enumerate(surface.n.tolist()):
            likely = n >= LEAST and steps(m[i], n, LEAST) != steps(m[j], n, LEAST)
            for row, k in enumerate(surface.k.tolist()):
                change = surface.latency_us[j, column, row] / surface.latency_us[i, column, row] - 1
                if min(n, k) < LEAST or not np.isfinite(change):
                    continue
                right += likely and change > STEP
                said += likely
                there += change > STEP
    return right, said, there


def undercut(surface: Surface, axis: int) -> list[float]:
    """By class of rows, the share of sizes of N (1) or K (2) that a larger one is more than 2 %
    faster than: by those that were measured, so at least."""
    times = surface.latency_us
    least = np.flip(np.fmin.accumulate(np.flip(times, axis), axis), axis)
    sizes = (surface.m, surface.n, surface.k)[axis]
    lost = np.take(times / least - 1, np.where(sizes[:-1] >= LEAST)[0], axis)
    bounds = zip((0, *ROWS), (*ROWS, surface.m[-1]), strict=True)
    each = (lost[(surface.m > low) & (surface.m <= high)] for low, high in bounds)
    return [float(np.mean(part[np.isfinite(part)] > 0.02)) for part in each]


def vidur(folder: Path, gpu: str) -> Iterator[tuple[int, int, dict[int, float]]]:
    """(N, K, µs by M) of each product, model and degree of tensor parallelism."""
    for path in sorted(folder.glob(f"data/profiling/compute/{gpu}/*/*/mlp.csv")):
        curves: dict[tuple[str, int, int], dict[int, list[float]]] = defaultdict(dict)
        with path.open() as file:
            for row in csv.DictReader(file):
                hidden, width, heads, kv_heads, tp = (
                    int(row[name]) for name in (
                        "n_embd", "n_expanded_embd", "n_head", "n_kv_head",
                        "num_tensor_parallel_workers",
                    )
                )  # fmt: skip
                head_dim, gates = hidden // heads, 2 if row["use_gated_mlp"] == "True" else 1
                shapes = {
                    "attn_pre_proj": ((heads + 2 * kv_heads) * head_dim // tp, hidden),
                    "attn_post_proj": (hidden, heads * head_dim // tp),
                    "mlp_up_proj": (gates * width // tp, hidden),
                    "mlp_down_proj": (hidden, width // tp),
                }
                for name, (n, k) in shapes.items():
                    if text := row[f"time_stats.{name}.median"]:
                        times = curves[name, n, k].setdefault(int(row["num_tokens"]), [])
                        times.append(float(text) * 1e3)
        for (_, n, k), found in curves.items():
            yield n, k, {m: float(np.median(times)) for m, times in sorted(found.items())}


def frontiers(curves: Sequence[tuple[int, int, dict[int, float]]], steps: Steps) -> Share:
    """(right, said, measured): M up to 1024 that no larger one undercuts; the last does not
    count."""
    right = said = there = 0
    for n, k, times in curves:
        sizes = [m for m in times if m <= 1024]
        found = set(detect.frontier(sizes, [times[m] for m in sizes], NOISE))
        widest = set({steps(m, n, k): m for m in sizes}.values())
        found, widest = found - {sizes[-1]}, widest - {sizes[-1]}
        right += len(found & widest)
        said, there = said + len(widest), there + len(found)
    return right, said, there


def both(share: Share) -> str:
    right, said, there = share
    precision = f"{100 * right / said:.0f} %" if said else "–"
    return f"{precision} / {100 * right / there:.0f} %" if there else precision


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--gpu", action="append")
    ask.add_argument("--vidur", type=Path)
    given = ask.parse_args()
    measured = installed()
    abouts = {gpu: target(gpu, TORCH) for gpu in given.gpu or GPUS}
    print("| GPU | steps | before: precision / recall | after | N undercut | K undercut |")
    print("|---|---:|---:|---:|---:|---:|")
    for gpu, about in abouts.items():
        surface = middle(measured, gpu)
        now, then = pairs(surface, after(about)), pairs(surface, before(about))
        rows = (" / ".join(f"{100 * s:.0f}" for s in undercut(surface, axis)) for axis in (1, 2))
        print(f"| {gpu} | {now[2]} | {both(then)} | {both(now)} | {' | '.join(rows)} |")
    for gpu in ("a100", "h100") if given.vidur else ():
        curves = list(vidur(given.vidur, gpu))
        shares = (both(frontiers(curves, way(target(gpu, TORCH)))) for way in (before, after))
        print(f"\nVidur, {gpu}, {len(curves)} curves, frontier: {' → '.join(shares)}")
    print("\n| GPU | " + "engine | 72 beside 80 | 64 beside 80 |\n|---|---|---:|---:|")
    for gpu in map(short_name, measured.gpus):
        for row in head_dims(measured, gpu):
            print(row)


def head_dims(measured: Measurements, gpu: str) -> Iterator[str]:
    """Of a vision tower of 16 heads, 8 images of 1024 patches; each engine's newest version."""
    at = {"attn_dtype": "bfloat16", "batch_size": 8, "isl": 1024, "num_heads": 16}
    rows = {}
    files = measured.files(measured.gpu(gpu), "encoder_attention")
    for path in sorted(files, key=lambda path: release(path.parent.name)):
        table = measured.read(path, (*at, "head_dim", "latency", "kernel_source")).to_pandas()
        here = table[(table[list(at)] == list(at.values())).all(axis=1)]
        times = here.groupby("head_dim")["latency"].median()
        if {64, 72, 80} <= set(times.index):
            engine, version = path.parts[-3:-1]
            kernels = ", ".join(sorted(set(here["kernel_source"])))
            cells = " | ".join(f"{times[d] / times[80]:.2f}" for d in (72, 64))
            rows[engine] = f"| {gpu} | {engine} {version} ({kernels}) | {cells} |"
    yield from (rows[engine] for engine in sorted(rows))


if __name__ == "__main__":
    main()

"""How far times from elsewhere are right: sizes left out, engines beside each other, and bounds.

    python benchmarks/elsewhere.py [--gpu h100 --gpu b200 ...]

Needs ``gacprof[elsewhere]``. Prints three Markdown tables.

1. Of each GPU, operator and data type: what predicting a size from its two neighbours errs by along
   the two sizes of its table (median and 90th percentile over engines; all errors are of the
   logarithm of the time); how far engines are from their median; and, with every third size taken
   away and predicted from the others by one engine, the share of times within its bounds, and of
   the gains over the next smaller size that are claimed (bounds without zero) the share with the
   wrong sign.
2. Times beside the least that the data sheet allows: FLOPs over peak rate, bytes over bandwidth.
3. The paper's end-to-end prefills of Llama-3-8B beside what the chain predicts of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

import gacprof
from gacprof.cliffmap.estimate import Interval
from gacprof.devices.datasheet import sheet
from gacprof.elsewhere.data import PRODUCTS, Measurements, Query, Surface, installed, short_name
from gacprof.elsewhere.levels import ROWS, Level, Levels, apart, differences, left_out
from gacprof.elsewhere.needs import QUERIES

SAMPLE = 1500
"""Left-out sizes that are predicted, of each GPU, operator and data type."""
LLAMA_3_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip
PRUNED = {"intermediate_size": 10752, "num_attention_heads": 24, "num_key_value_heads": 6}
"""A quarter of the width and of the heads in 27 layers: LLM-Pruner's ratio of 0.25 over layers 3 to
30, with round_to=8, as the paper's script asks."""
PUBLISHED = {  # ms at 128, 256, 512 and 1024 tokens: arXiv 2604.09595, figure 14 (H100, float16)
    "dense": (25.98, 25.93, 26.17, 34.31), "pruned to multiples of 8": (26.74, 26.94, 27.09, 32.31),
    "pruned": (27.07, 30.88, 50.89, 89.73),
}  # fmt: skip
ATTENTION = [
    {"heads": 1, "kv_heads": kv, "head_dim": d} for kv in (1, 4, 8) for d in (64, 128)
]  # fmt: skip
EXPERTS = [
    {"hidden": 4096, "width": 32, "experts": 8, "topk": 2},  # Mixtral-8x7B
    {"hidden": 2048, "width": 32, "experts": 128, "topk": 8},  # Qwen3-30B-A3B
    {"hidden": 7168, "width": 32, "experts": 256, "topk": 8},  # DeepSeek-V3
]


@dataclass(frozen=True)
class Table:
    """One operator: the queries of its table, and what its first two sizes are."""

    name: str
    queries: tuple[Query, ...]
    axes: tuple[int, int]
    sizes: str


def tables() -> Iterator[Table]:
    def queries(kind: str, shapes: Sequence[dict[str, int]], tokens: int) -> tuple[Query, ...]:
        return tuple(QUERIES[kind](shape, tokens).query for shape in shapes)

    yield Table("products", (PRODUCTS,), (1, 2), "N, K")
    yield Table("prefill attention", queries("attention", ATTENTION, 2), (0, 1), "length, heads")
    yield Table("decode attention", queries("attention", ATTENTION, 1), (0, 1), "length, heads")
    yield Table("experts", queries("experts", EXPERTS, 1), (0, 1), "tokens, width")


def rows(there: Measurements, gpu: str, table: Table) -> Iterator[str]:
    repeated = apart([s for s in there.surfaces(gpu) if s.dtype == "bfloat16"])
    found = [there.surfaces(gpu, query) for query in table.queries]
    for dtype in sorted({s.dtype for surfaces in found for s in surfaces}):
        groups = [[s for s in surfaces if s.dtype == dtype] for surfaces in found]
        classes = range(len(ROWS) + 1)
        cells = []
        for axis in table.axes:
            each = [left_out(s, axis, c)[0] for held in groups for s in held for c in classes]
            cells.append(_both(np.concatenate(each)))
        shared = [differences(held, c) for held in groups if len(held) > 1 for c in classes]
        cells.append(_both(np.concatenate(shared)) if shared else "one alone")
        checks = [
            check for held in groups for check in _checked(held, dtype, table.axes[0], repeated)
        ]
        within = [inside for inside, _ in checks]
        claims = [right for _, right in checks if right is not None]
        cells.append(f"{100 * np.mean(within):.0f} %" if within else "–")
        wrong = 100 * (1 - np.mean(claims)) if claims else 0.0
        cells.append(f"{wrong:.1f} % of {len(claims) / max(1, len(checks)):.0%}")
        yield f"| {gpu} | {table.name} ({table.sizes}) | {dtype} | {' | '.join(cells)} |"


def _checked(
    held: Sequence[Surface], dtype: str, axis: int, repeated: Sequence[float]
) -> Iterator[tuple[bool, bool | None]]:
    """Of sizes that were taken away: whether their times are within bounds, and whether the gain
    over the next smaller size has the sign that is claimed (None: none is)."""
    rng = np.random.default_rng(0)
    for whole in held:
        grids = [whole.m, whole.n, whole.k]
        gone = np.arange(2, len(grids[axis]) - 1, 3)
        kept = np.setdiff1d(np.arange(len(grids[axis])), gone)
        if not gone.size or len(kept) < 3:
            continue
        fewer = replace(
            whole, **{"mnk"[axis]: grids[axis][kept]},
            latency_us=np.take(whole.latency_us, kept, axis),
        )  # fmt: skip
        others = [s for s in held if s is not whole]
        levels = Levels([fewer, *others], dtype, whole.framework, repeated)
        for _ in range(SAMPLE // len(held)):
            place = [int(rng.integers(len(grid))) for grid in grids]
            place[axis] = int(rng.choice(gone))
            smaller = list(place)
            smaller[axis] -= 1
            at, below = (
                levels.at(*(int(grid[i]) for grid, i in zip(grids, where, strict=True)))
                for where in (place, smaller)
            )
            time, less = whole.latency_us[tuple(place)], whole.latency_us[tuple(smaller)]
            if not isinstance(at, Level) or not isinstance(below, Level):
                continue
            if not np.isfinite(time) or not np.isfinite(less):
                continue
            saved = at.estimate.saved(below.estimate)
            claimed = saved is not None and not saved.low <= 0 <= saved.high
            right = bool((time - less) * saved.value > 0) if claimed else None
            yield bool(at.time.low <= time <= at.time.high), right


def _both(errors: np.ndarray) -> str:
    if not errors.size:
        return "too few"
    return f"{100 * np.median(errors):.0f} / {100 * np.percentile(errors, 90):.0f} %"


def against_the_sheet(gpu: str, surfaces: Sequence[Surface]) -> str:
    """How many times in bf16 are below the least that the data sheet allows, and the median."""
    about = sheet(gpu)
    peak, gb_s = about.rates.get("bfloat16"), about.values.get("gb_s")
    if not peak or not gb_s:
        return f"| {gpu} | – | – | – |"
    ratios = []
    for one in (s for s in surfaces if s.dtype == "bfloat16"):
        m, n, k = np.meshgrid(one.m, one.n, one.k, indexing="ij")
        weights = 2.0 * n * k
        cold = np.where(weights > 2 * (about.values.get("l2_mib") or 128) * 2**20, weights, 0.0)
        least = np.maximum(2.0 * m * n * k / (peak * 1e6), cold / (gb_s * 1e3))
        ratios.append((one.latency_us / least)[np.isfinite(one.latency_us)])
    found = np.concatenate(ratios)
    return (
        f"| {gpu} | {np.mean(found < 1):.2%} | {found.min():.2f} | "
        f"{np.median(found[found < np.percentile(found, 10)]):.2f} |"
    )


def _sum(times: list[Interval]) -> Interval:
    return Interval(*(sum(getattr(t, end) for t in times) for end in ("low", "value", "high")))


def end_to_end() -> Iterator[str]:
    """Figure 14's prefills, products and attention by the chain."""
    source = gacprof.open_source(gpu="h100")
    tokens = (128, 256, 512, 1024)

    def steps(layers: int, **sizes: int) -> list[Interval]:
        config = LLAMA_3_8B | {"num_hidden_layers": layers, "head_dim": 128} | sizes
        times = gacprof.diagnose(config, source, tokens=tokens).times
        assert times is not None
        timed = [[part.costs[i].good for part in times.parts] for i in range(len(tokens))]
        return [_sum([one for one in step if one]) for step in timed]  # the head has no time

    dense = steps(32)
    parts = zip(steps(5), steps(27, **PRUNED), strict=True)
    rounded = [Interval(a.low + b.low, a.value + b.value, a.high + b.high) for a, b in parts]
    for name, found in (("dense", dense), ("pruned to multiples of 8", rounded)):
        for m, one, whole in zip(tokens, found, PUBLISHED[name], strict=True):
            low, value, high = (each / 1e3 for each in (one.low, one.value, one.high))
            ours = f"{value:.1f} ({low:.1f} to {high:.1f}) | {whole - value:.1f}"
            yield f"| {name} | {m} | {whole:.1f} | {ours} |"
    for m, whole in zip(tokens, PUBLISHED["pruned"], strict=True):
        yield f"| pruned | {m} | {whole:.1f} | its sizes were not published | – |"


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--gpu", action="append")
    asked = ask.parse_args().gpu
    there = installed()
    gpus = asked or [short_name(gpu) for gpu in there.gpus if there.files(gpu, "gemm")]
    print("| GPU | operator (sizes) | dtype | first left out | second | engines | within | wrong |")
    print("|---|---|---|---|---|---|---|---|")
    for gpu in gpus:
        for table in tables():
            for row in rows(there, gpu, table):
                print(row, flush=True)
    print("\n| GPU | below the sheet | least ratio | fastest tenth |\n|---|---|---|---|")
    for gpu in gpus:
        if gpu != "b60":
            print(against_the_sheet(gpu, there.surfaces(gpu)), flush=True)
    print("\n| Llama-3-8B on H100 | tokens | published, ms | products and attention | rest |")
    print("|---|---|---|---|---|")
    for row in end_to_end():
        print(row)


if __name__ == "__main__":
    main()

"""How far times from elsewhere are right: sizes left out, engines beside each other, and bounds.

    python benchmarks/elsewhere.py [--gpu h100 --gpu b200 ...]

Needs ``gacprof[elsewhere]``. For each GPU and data type, prints a Markdown row: what predicting a
size from its two neighbours along N and K errs by (median and 90th percentile over engines), how
far engines are from their median, and the share of sizes within their bounds when every third N is
taken away and predicted from the others. All errors are of the logarithm of the time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log

import numpy as np

import gacprof
from gacprof.elsewhere.data import Surface, installed, short_name
from gacprof.elsewhere.levels import ROWS, Level, Levels, differences, left_out

SAMPLE = 2000
"""Left-out sizes that are predicted, of each GPU and data type."""
LLAMA_3_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "torch_dtype": "bfloat16",
}  # fmt: skip


def within_bounds(surfaces: Sequence[Surface], dtype: str) -> float:
    """The share of left-out times that lie within the bounds of their engine."""
    rng = np.random.default_rng(0)
    inside: list[bool] = []
    held = [s for s in surfaces if s.dtype == dtype]
    for whole in held:
        gone = np.arange(2, len(whole.n) - 1, 3)
        if not gone.size:
            continue
        kept = np.setdiff1d(np.arange(len(whole.n)), gone)
        fewer = replace(whole, n=whole.n[kept], latency_us=whole.latency_us[:, kept])
        levels = Levels([fewer, *(s for s in held if s is not whole)], dtype, whole.framework)
        for _ in range(SAMPLE // len(held)):
            i, j, o = rng.integers(len(whole.m)), rng.choice(gone), rng.integers(len(whole.k))
            found = levels.at(int(whole.m[i]), int(whole.n[j]), int(whole.k[o]))
            time = whole.latency_us[i, j, o]
            if isinstance(found, Level) and np.isfinite(time):
                inside.append(bool(found.time.low <= time <= found.time.high))
    return float(np.mean(inside)) if inside else float("nan")


def rows(gpu: str) -> Iterator[str]:
    surfaces = installed().surfaces(gpu)
    for dtype in sorted({s.dtype for s in surfaces}):
        held = [s for s in surfaces if s.dtype == dtype]
        classes = range(len(ROWS) + 1)
        cells = []
        for axis in (1, 2):
            errors = np.concatenate([left_out(s, axis, c)[0] for s in held for c in classes])
            cells.append(_both(errors))
        apart = [differences(held, c) for c in classes] if len(held) > 1 else []
        shared = np.concatenate(apart) if apart else np.array([])
        cells.append(_both(shared) if shared.size else "nothing shared")
        cells.append(f"{100 * within_bounds(surfaces, dtype):.0f} %")
        yield f"| {gpu} | {dtype} | {' | '.join(cells)} |"


def _both(errors: np.ndarray) -> str:
    return f"{100 * np.median(errors):.0f} / {100 * np.percentile(errors, 90):.0f} %"


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ask.add_argument("--gpu", action="append")
    asked = ask.parse_args().gpu
    there = installed()
    gpus = asked or [short_name(gpu) for gpu in there.gpus if there.files(gpu, "gemm")]
    print("| GPU | dtype | N left out | K left out | engines | within bounds |")
    print("|---|---|---|---|---|---|")
    for gpu in gpus:
        for row in rows(gpu):
            print(row, flush=True)
    source = gacprof.open_source(gpu="h100")
    prefill = gacprof.diagnose(LLAMA_3_8B, source, tokens=[1024]).times.totals[0].good
    low, value, high = (each / 1e3 for each in (prefill.low, prefill.value, prefill.high))
    print(
        f"\nLlama-3-8B on H100, prefill of 1024: products {value:.1f} ms ({low:.1f} to "
        f"{high:.1f}); published whole 34.3 ms, ln ratio {log(34.3 / value):.2f}"
    )


if __name__ == "__main__":
    main()

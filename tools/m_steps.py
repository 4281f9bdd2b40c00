"""Score rules on the rows M of products against public records, and write ``reports/m-steps.md``.

    python tools/m_steps.py FOLDER

FOLDER holds the unpacked wheels of ``aiconfigurator-core`` 0.12.0 (latencies at M and M + 1) and
``mmaemu`` 0.1.0 (what cuBLASLt chose, at every M), and NVIDIA's ``cublasLt.h`` (names of tiles).

A rule names the M after which one row more costs a step. It is scored on two records: whether the
latency rises by more than 5 %, and whether the recorded kernel takes one wave of tiles more.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd

PAGE = Path(__file__).parents[1] / "reports" / "m-steps.md"
STEP = 0.05
SMS = {
    "a100_sxm": 108,
    "h100_sxm": 132,
    "h200_sxm": 132,
    "b200_sxm": 148,
    "l40s": 142,
    "rtx_pro_6000_server": 188,
    "h100pcie": 114,
    "rtx4060": 24,
}
"""Streaming multiprocessors, by the data sheets."""
TILES = ((128, 128), (256, 128), (128, 256), (64, 128), (128, 64), (64, 64))
BFLOAT16_OUT, WORKSPACE_32MIB = 1, 3
"""Codes of mmaemu's columns ``out`` and ``ws``: as PyTorch asks."""

HEADER = """# Does one row of x more cost a step?

Rules that name the M after which one row more takes a wave of tiles more, scored against public
records of others by `tools/m_steps.py`: latencies at M and M + 1 (aiconfigurator-core 0.12.0,
Apache-2.0; a step is more than 5 %), and what cuBLASLt 12.8.3 chose at every M for fp8 products
(mmaemu 0.1.0, Apache-2.0; a step is a wave of the chosen tiles more). In a cell *precision /
recall*: of the M that a rule names, those with a step; of the steps, those that it names.

**No rule holds on both records, so gacprof claims nothing about M.** Waves of 128 × 128 tell
fp8 steps of Hopper (90 % right, 40 % found) and no others: in bfloat16 on the same GPUs a third is
right. cuBLASLt itself shows why: for fp8 on an H100 it takes another tile after every ninth row
below M = 1024, and so stays within its wave. In every record with many pairs steps follow multiples
of 64 at least twice as often as other M, and most M have none. Measure the token counts you serve.
"""
Rule = Callable[[pd.DataFrame, int], "pd.Series[bool]"]
"""From products with columns m, n and the SMs: whether a step follows each."""


def waves(m: pd.Series, n: pd.Series, sms: int, rows: object = 128, columns: object = 128):
    """Rounds in which the tiles of y [m, n] fill all SMs."""
    tiles = -(-m // rows) * -(-n // columns)
    return -(-tiles // sms)


def wave_of(rows: int, columns: int) -> Rule:
    def ends(pairs: pd.DataFrame, sms: int) -> pd.Series[bool]:
        after = waves(pairs.m + 1, pairs.n, sms, rows, columns)
        return after > waves(pairs.m, pairs.n, sms, rows, columns)

    return ends


def best_wave(pairs: pd.DataFrame, sms: int) -> pd.Series[bool]:
    """The end of a wave of the tile that does the least work, padding and idle SMs included."""
    costs = [
        [waves(m, pairs.n, sms, *tile) * tile[0] * tile[1] for tile in TILES]
        for m in (pairs.m, pairs.m + 1)
    ]
    before, after = (np.min(cost, axis=0) for cost in costs)
    return pd.Series(after > before, pairs.index)


RULES: dict[str, Rule] = {
    "any M": lambda pairs, sms: pairs.m > 0,
    "multiples of 64": lambda pairs, sms: pairs.m % 64 == 0,
    "multiples of 128": lambda pairs, sms: pairs.m % 128 == 0,
    "ends of 128 × 128 waves": wave_of(128, 128),
    "ends of 256 × 128 waves": wave_of(256, 128),
    "ends of the best tile's waves": best_wave,
}


def latency_steps(folder: Path) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """Pairs M, M + 1 of equal products, and whether the second is a step slower."""
    for path in sorted(folder.glob("**/gemm/vllm/*/gemm_perf.parquet")):
        gpu = path.parents[3].name
        rows = pd.read_parquet(path)
        if gpu not in SMS:
            continue
        for dtype in ("bfloat16", "fp8"):
            times = rows[rows.gemm_dtype == dtype].groupby(["m", "n", "k"]).latency.median()
            times = times.reset_index()
            later = times.assign(m=times.m - 1)
            pairs = times.merge(later, on=["m", "n", "k"], suffixes=("", "_after"))
            pairs["step"] = pairs.latency_after > pairs.latency * (1 + STEP)
            if len(pairs) > 100:
                yield f"{gpu}, {dtype}, latency (vLLM {path.parent.name})", SMS[gpu], pairs


def tile_sizes(header: str) -> dict[int, tuple[int, int]]:
    """Rows and columns of y in a tile by cuBLASLt's number: it multiplies Wᵀ by xᵀ."""
    found = re.findall(r"CUBLASLT_MATMUL_TILE_(\d+)x(\d+)\s*=\s*(\d+)", header)
    return {int(number): (int(m), int(n)) for n, m, number in found}


def chosen_steps(folder: Path) -> Iterator[tuple[str, int, pd.DataFrame]]:
    """Consecutive M of equal products, and whether the kernels that cuBLASLt chose take a wave
    more."""
    tiles = tile_sizes(next(folder.glob("**/cublasLt.h")).read_text("utf-8"))
    for path in sorted(folder.glob("**/heur_*.npz")):
        gpu = path.name.split("_")[1]
        rows = pd.DataFrame(dict(np.load(path)))
        rows = rows[(rows.out == BFLOAT16_OUT) & (rows.ws == WORKSPACE_32MIB)]
        rows = rows[
            (rows.fa == 0) & (rows.fb == 0) & (rows.fast == 1) & rows.tile.isin(list(tiles))
        ]
        rows = rows.rename(columns=str.lower).drop_duplicates(["m", "n", "k"])
        extent = np.array([tiles[number] for number in rows.tile])
        count = waves(rows.m, rows.n, 1, extent[:, 0], extent[:, 1]) * rows.splitk
        rows["waves"] = -(-count // SMS[gpu])
        later = rows[["m", "n", "k", "waves", "tile"]].assign(m=rows.m - 1)
        pairs = rows.merge(later, on=["m", "n", "k"], suffixes=("", "_after"))
        pairs["step"] = pairs.waves_after > pairs.waves
        changed = (pairs.tile != pairs.tile_after).mean()
        name = f"{gpu}, fp8, waves of the chosen tile, another one after {changed:.0%}"
        yield f"{name} (cuBLASLt 12.8.3)", SMS[gpu], pairs


def table(folder: Path) -> Iterator[str]:
    yield "| record | pairs | steps | " + " | ".join(RULES) + " |"
    yield "|---" * (3 + len(RULES)) + "|"
    for name, sms, pairs in (*latency_steps(folder), *chosen_steps(folder)):
        cells = []
        for rule in RULES.values():
            named = rule(pairs, sms)
            right = (named & pairs.step).sum()
            precision, recall = right / max(named.sum(), 1), right / max(pairs.step.sum(), 1)
            cells.append(f"{precision:.0%} / {recall:.0%}")
        yield f"| {name} | {len(pairs):,} | {pairs.step.mean():.1%} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    lines = "\n".join(table(parser.parse_args().folder))
    PAGE.write_text(f"{HEADER}\n{lines}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Which estimator gets the most out of the same blocks? The A/A floor of several, on real noise.

    python benchmarks/estimators.py

For each state of a machine that ``tests/fixtures/blocks`` has recorded: the 95 % quantile of
|log ratio| between points and their hidden A/A replicates, each pair weighed by its latency, and
in brackets their median. ``ours`` is what :mod:`gacprof.stats.fit` does.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from gacprof.stats.fit import two_way
from gacprof.stats.noise import aa_floor
from tests.support.recorded_noise import FOLDER, matrices

Estimator = Callable[[np.ndarray], np.ndarray]


def polish(q: float, sweeps: int = 10) -> Estimator:
    """Polishing of rows and columns with one quantile."""

    def estimate(log_us: np.ndarray) -> np.ndarray:
        rest = log_us.copy()
        slot = np.zeros(log_us.shape[1])
        for _ in range(sweeps):
            rest -= np.nanquantile(rest, q, axis=1)[:, None]
            step = np.nanquantile(rest, q, axis=0)
            rest -= step
            slot += step
        return slot

    return estimate


def hodges_lehmann(log_us: np.ndarray) -> np.ndarray:
    """The median of pairwise means of each slot's times over the block's median."""
    ratio = log_us - np.nanmedian(log_us, axis=1)[:, None]
    found = []
    for column in ratio.T:
        known = column[~np.isnan(column)]
        i, j = np.triu_indices(len(known))
        found.append(np.median((known[i] + known[j]) / 2))
    return np.array(found)


ESTIMATORS: dict[str, Estimator] = {
    "ours": lambda log_us: two_way(log_us)[0],
    "median polish": polish(0.5),
    "10 % polish": polish(0.1),
    "Hodges-Lehmann": hodges_lehmann,
    "median": lambda log_us: np.nanmedian(log_us, axis=0),
    "minimum": lambda log_us: np.nanmin(log_us, axis=0),
}


def main() -> None:
    warnings.simplefilter("ignore", RuntimeWarning)
    states = sorted(file.stem for file in FOLDER.glob("*.parquet"))
    print(f"{'':28s}" + "".join(f"{name:>18s}" for name in ESTIMATORS))
    for state in states:
        curves = [(log_us, pairs) for log_us, pairs in matrices(state) if pairs]
        cells = []
        for estimate in ESTIMATORS.values():
            size, weight = [], []
            for log_us, pairs in curves:
                effect = estimate(log_us)
                size += [abs(effect[i] - effect[j]) for i, j in pairs]
                weight += [float(np.exp(np.nanmedian(log_us)))] * len(pairs)
            floor = np.expm1(aa_floor(size, np.array(weight)))
            cells.append(f"{floor:9.1%} ({np.expm1(np.median(size)):5.1%})")
        print(f"{state:28s}" + "".join(f"{cell:>18s}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()

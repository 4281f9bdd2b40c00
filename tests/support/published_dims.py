"""The head dims that a paper's compressor chose for Llama-3-8B (``fixtures/published_dims``), and
the planted device's map of such ranks."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from planted import FEW, swept_map

from gacprof.cliffmap import CliffMap
from gacprof.sweeping.suite import parse_suite

FILE = Path(__file__).parents[1] / "fixtures" / "published_dims" / "llama3_8b_head_dims.csv"
Row = dict[str, str]
T = TypeVar("T")


def rows_of(of: Callable[[Row], T]) -> dict[tuple[str, str], list[T]]:
    """(score, ratio) → what ``of`` makes of each projection's row, in the order of the file."""
    found: dict[tuple[str, str], list[T]] = defaultdict(list)
    with FILE.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row["method"], row["retain_ratio"]].append(of(row))
    return found


def ranks_map(most: int) -> CliffMap:
    """Every rank up to ``most`` of Llama-3-8B's projections, for one token."""
    sizes = [{"from": 1, "to": most}]
    common = {"operator": "linear", "dtype": "float16", "flags": {"bias": False}, "values": sizes}
    sweeps = [common | {"axis": "N", "dims": {"M": 1, "K": 4096}}]
    sweeps += [common | {"axis": "K", "dims": {"M": 1, "N": wide}} for wide in (4096, 1024)]
    return swept_map(parse_suite({"name": "ranks", "timing": FEW, "sweep": sweeps}, "ranks"))

"""Each group's number of ``penalties.toml`` beside the interval of the other groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from statistics import geometric_mean

from gacprof.kernels.penalties import MEASURED, interval_of, peak_of


@dataclass(frozen=True)
class LeftOut:
    """A group's number; ``bounds`` are None where fewer than two other groups measured such GPUs.
    ``outlies`` is the row's reason to be outside."""

    gpu: str
    parity: str
    quantity: str
    group: str
    number: float
    bounds: tuple[float, float] | None
    outlies: str

    @property
    def is_within(self) -> bool:
        return self.bounds is not None and self.bounds[0] <= self.number <= self.bounds[1]


def groups_left_out() -> Iterator[LeftOut]:
    for parity, quantity in product(("odd", "even"), ("ratio", "tflops")):
        rows = [row for row in MEASURED[parity] if quantity in row]
        for row in rows:
            others = []
            for other in rows:
                if other is not row and peak_of(other["gpu"]) == peak_of(row["gpu"]):
                    others.append(geometric_mean(other[quantity]))
            bounds = interval_of(others) if len(others) > 1 else None
            number = geometric_mean(row[quantity])
            outlies = row.get("outlies", "")
            yield LeftOut(row["gpu"], parity, quantity, row["group"], number, bounds, outlies)

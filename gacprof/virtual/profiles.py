"""GPUs that a virtual GPU can answer as; ``profiles.toml`` holds the numbers and their sources."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gacprof.core.errors import GacprofError

ATTRIBUTES = {
    "clock_khz": 13,
    "sms": 16,
    "memory_khz": 36,
    "bus_bits": 37,
    "l2_bytes": 38,
    "threads_per_sm": 39,
    "shared_bytes_per_sm": 81,
    "shared_bytes_per_block": 97,
    "blocks_per_sm": 106,
    "clusters": 120,
    "code": 255,
}
"""Numbers of ``CUdevice_attribute`` in cuda.h; ``code`` is the stand-in's own."""
CAPABILITY_MAJOR = 75
CAPABILITY_MINOR = 76


@dataclass(frozen=True)
class Profile:
    """What a driver says of a GPU.

    ``values`` are whole numbers by the names of ``profiles.toml``; ``sources`` says for each where
    it was published, "unsourced" where nowhere that was found.
    """

    gpu: str
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    values: dict[str, int]
    sources: dict[str, str]

    def device_text(self) -> str:
        """Return the device as the stand-in driver reads it from the environment."""
        numbers = {ATTRIBUTES[name]: value for name, value in self.values.items()}
        numbers[CAPABILITY_MAJOR], numbers[CAPABILITY_MINOR] = self.capability
        attributes = ",".join(f"{number}={value}" for number, value in sorted(numbers.items()))
        return f"{self.name};{self.memory_bytes};{attributes}"


@cache
def _table() -> dict[str, dict]:
    return tomllib.loads(Path(__file__).with_name("profiles.toml").read_text(encoding="utf-8"))


def gpus() -> list[str]:
    """Return the GPUs that can be answered as."""
    return list(_table()["gpu"])


def profile(gpu: str) -> Profile:
    """Return the profile of a GPU, as ``h100``.

    Raises GacprofError for an unknown one.
    """
    table = _table()
    if gpu not in table["gpu"]:
        raise GacprofError(f"no virtual GPU {gpu!r}; there are {', '.join(gpus())}")
    row = table["gpu"][gpu]
    row = row | table["capability"][row["capability"][0]]
    major, minor = map(int, row["capability"][0].split("."))
    return Profile(
        gpu=gpu,
        name=row["name"][0],
        capability=(major, minor),
        memory_bytes=row["memory_bytes"][0],
        values={name: row[name][0] for name in ATTRIBUTES},
        sources={name: table["sources"].get(source, source) for name, (_, source) in row.items()},
    )

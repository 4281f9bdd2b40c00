"""GPUs that a virtual GPU can answer as: those of the data sheet with a ``virtual`` part."""

from __future__ import annotations

from dataclasses import dataclass

from gacprof.core.errors import GacprofError
from gacprof.gpus.architectures import ARCHITECTURE_TABLES
from gacprof.gpus.datasheet import GPU_TABLES, GPUS, gpu_row

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

    ``values`` are whole numbers by the names of :data:`ATTRIBUTES`.
    """

    gpu: str
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    values: dict[str, int]

    def device_text(self) -> str:
        """Return the device as the stand-in driver reads it from the environment."""
        numbers = {ATTRIBUTES[name]: value for name, value in self.values.items()}
        numbers[CAPABILITY_MAJOR], numbers[CAPABILITY_MINOR] = self.capability
        attributes = ",".join(f"{number}={value}" for number, value in sorted(numbers.items()))
        return f"{self.name};{self.memory_bytes};{attributes}"


def _keys() -> dict[str, str]:
    """Keys of the data sheet by the names of virtual GPUs, which have no hyphens."""
    rows = GPU_TABLES["gpus"]
    return {key.replace("-", ""): key for key, row in rows.items() if "virtual" in row}


def gpus() -> list[str]:
    """Return the GPUs that can be answered as."""
    return list(_keys())


def profile(gpu: str) -> Profile:
    """Return the profile of a GPU, as ``h100``.

    Raises GacprofError for an unknown one.
    """
    if gpu not in _keys():
        raise GacprofError(f"no virtual GPU {gpu!r}; there are {', '.join(gpus())}")
    key = _keys()[gpu]
    facts, row = GPUS[key], gpu_row(key)
    architecture = ARCHITECTURE_TABLES["architectures"][facts.arch]
    numbers = architecture["virtual"] | row["virtual"]
    if "sms" not in numbers:
        sms, source = row["sms"]
        numbers["sms"] = int(sms), source
    if "l2_bytes" not in numbers:
        l2_mib, source = row["l2_mib"]
        numbers["l2_bytes"] = int(l2_mib * 2**20), source
    return Profile(
        gpu=gpu,
        name=facts.drivers[0],
        capability=divmod(facts.architecture.capability or 0, 10),
        memory_bytes=numbers["memory_bytes"][0],
        values={name: numbers[name][0] for name in ATTRIBUTES},
    )

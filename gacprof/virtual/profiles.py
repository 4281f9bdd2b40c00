"""GPUs that a virtual GPU can answer as: those of the data sheet with a ``virtual`` part."""

from dataclasses import dataclass
from typing import Any

from gacprof.core.errors import GacprofError
from gacprof.hardware.architectures import ARCHITECTURE_TABLES
from gacprof.hardware.datasheet import GPU_TABLES, GPUS, gpu_row
from gacprof.kernels.dispatch import plain_name

ATTRIBUTES: dict[str, int] = GPU_TABLES["attributes"]
CAPABILITY_ATTRIBUTES = (75, 76)
KEYS: dict[str, str] = {
    key.replace("-", ""): key for key, row in GPU_TABLES["gpus"].items() if "virtual" in row
}
"""Keys of the data sheet by the names of virtual GPUs, which have no hyphens."""


@dataclass(frozen=True)
class Profile:
    """What a driver says of a GPU, a key of :data:`KEYS`: ``values`` by the names of
    :data:`ATTRIBUTES`, and ``device_text``, which the stand-in driver reads from the environment.
    """

    gpu: str
    name: str
    capability: tuple[int, int]
    memory_bytes: int
    values: dict[str, int]
    device_text: str


def gpus() -> list[str]:
    """Return the GPUs that can be answered as."""
    return list(KEYS)


def profile(gpu: str) -> Profile:
    """Return the profile of a GPU, as ``h100``. Raises GacprofError for an unknown one."""
    key = plain_name(gpu)
    if key not in KEYS:
        raise GacprofError(f"no virtual GPU {gpu!r}; there are {', '.join(KEYS)}")
    facts = GPUS[KEYS[key]]
    architecture = ARCHITECTURE_TABLES["architectures"][facts.arch]
    sourced = architecture["virtual"] | gpu_row(facts.key)["virtual"]
    numbers: dict[str, Any] = {"sms": facts.sms, "l2_bytes": int((facts.l2_mib or 0) * 2**20)}
    numbers |= {name: number for name, (number, _) in sourced.items()}
    values = {name: numbers[name] for name in ATTRIBUTES}
    attributes = {ATTRIBUTES[name]: value for name, value in values.items()}
    capability = divmod(facts.architecture.capability or 0, 10)
    attributes |= dict(zip(CAPABILITY_ATTRIBUTES, capability, strict=True))
    text = ",".join(f"{number}={value}" for number, value in sorted(attributes.items()))
    name = facts.drivers[0]
    memory_bytes = numbers["memory_bytes"]
    return Profile(key, name, capability, memory_bytes, values, f"{name};{memory_bytes};{text}")

"""The GPUs of this machine and those that something is published about."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from gacprof.core.errors import ConfigError
from gacprof.devices.datasheet import GPUS, gpu_facts


@dataclass(frozen=True)
class Gpu:
    """A GPU. ``key`` names it as a source of rules, empty without; ``device`` is how this machine
    calls it (``cuda:0``), empty for one that is not at hand. ``sms`` is None where not known."""

    key: str
    name: str
    arch: str
    memory_gib: float
    sms: int | None
    device: str = ""


def gpus() -> list[Gpu]:
    """GPUs at hand, then all GPUs whose kernels' rules take a map's place.

    Returns
    -------
    list of Gpu
        Those of this machine first; without torch they are not seen.
    """
    listed = [
        Gpu(facts.key, facts.name, facts.arch, facts.memory_gib, facts.sms)
        for facts in GPUS.values()
    ]
    return gpus_at_hand() + listed


def gpus_at_hand() -> list[Gpu]:
    """The CUDA GPUs that torch sees."""
    if find_spec("torch") is None:
        return []
    import torch

    at_hand = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        try:
            key = gpu_facts(properties.name).key
        except ConfigError:
            key = ""
        arch = f"sm{properties.major}{properties.minor}"
        memory_gib = round(properties.total_memory / 2**30, 1)
        sms = properties.multi_processor_count
        at_hand.append(Gpu(key, properties.name, arch, memory_gib, sms, f"cuda:{index}"))
    return at_hand

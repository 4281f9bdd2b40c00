"""The GPUs of this machine and those that something is published about."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from gacprof.devices.datasheet import GPUS


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
    published = [Gpu(f.key, f.name, f.arch, f.memory_gib, f.sms) for f in GPUS.values()]
    return gpus_at_hand() + published


def gpus_at_hand() -> list[Gpu]:
    """The CUDA GPUs that torch sees."""
    if find_spec("torch") is None:
        return []
    import torch

    at_hand = []
    for index in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(index)
        keys = [facts.key for facts in GPUS.values() if p.name in facts.drivers]
        arch, memory_gib = f"sm{p.major}{p.minor}", round(p.total_memory / 2**30, 1)
        key = "".join(keys)
        at_hand.append(Gpu(key, p.name, arch, memory_gib, p.multi_processor_count, f"cuda:{index}"))
    return at_hand

"""The GPUs of this machine and those that something is published about."""

from __future__ import annotations

from importlib.util import find_spec

from gacprof.devices.datasheet import GPUS, GpuFacts


def gpus() -> list[GpuFacts]:
    """List the GPUs at hand, and those whose name can take a map's place.

    Returns
    -------
    list of GpuFacts
        The key of a GPU at hand is its device (``cuda:0``); without torch none is seen. The others'
        keys are their names as a source.
    """
    return [*gpus_at_hand(), *GPUS.values()]


def gpus_at_hand() -> list[GpuFacts]:
    """The CUDA GPUs that torch sees."""
    if find_spec("torch") is None:
        return []
    import torch

    at_hand = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        arch = f"sm{properties.major}{properties.minor}"
        memory_gib = round(properties.total_memory / 2**30, 1)
        sms, l2_mib = properties.multi_processor_count, properties.L2_cache_size / 2**20
        at_hand.append(GpuFacts(f"cuda:{index}", properties.name, arch, memory_gib, sms, l2_mib))
    return at_hand

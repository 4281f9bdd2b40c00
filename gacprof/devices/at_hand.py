"""List the GPUs at hand, beside those of the data sheet."""

from importlib.util import find_spec

from gacprof.hardware.datasheet import GPUS, GpuFacts


def gpus() -> list[GpuFacts]:
    """List the GPUs of this machine, and those whose rules are built in, by the name for --gpu.

    Returns
    -------
    list of GpuFacts
        The key of a GPU at hand is its device (``cuda:0``); without torch none is seen. The others'
        keys are their names as a source.

    Examples
    --------
    >>> {gpu.key: gpu.memory_gib for gpu in gacprof.gpus()}["h100"]
    80
    """
    if find_spec("torch") is None:
        return [*GPUS.values()]
    import torch

    at_hand = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        facts = GpuFacts(
            key=f"cuda:{index}",
            name=properties.name,
            arch=f"sm{properties.major}{properties.minor}",
            memory_gib=round(properties.total_memory / 2**30, 1),
            sms=properties.multi_processor_count,
            l2_mib=properties.L2_cache_size / 2**20,
        )
        at_hand.append(facts)
    return [*at_hand, *GPUS.values()]

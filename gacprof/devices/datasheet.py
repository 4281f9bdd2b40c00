"""Published facts of GPUs, each with its source in ``datasheet.toml``. A value that no source was
found for is missing, not guessed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from importlib.util import find_spec
from itertools import combinations

from gacprof.core.errors import ConfigError
from gacprof.core.points import DTYPES


@dataclass(frozen=True)
class GpuFacts:
    """A GPU. ``drivers`` are the names that a driver gives the chip; ``tflops`` are dense rates by
    compute dtype (TOPS for int8). None where no source agrees."""

    key: str
    name: str
    arch: str
    memory_gib: float
    sms: int | None = None
    l2_mib: float | None = None
    gb_s: float | None = None
    drivers: tuple[str, ...] = ()
    tflops: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Architecture:
    """What engines ask of a GPU: ``sm`` is the compute capability times ten; 0 for AMD's GPUs, CPUs
    and an open GPU."""

    name: str
    sm: int = 0
    is_amd: bool = False

    @property
    def is_open(self) -> bool:
        return self.name == "any"


def _read() -> tuple[dict[str, GpuFacts], dict[str, str]]:
    """The GPUs, and the architectures of those that the sheet has no numbers of too."""
    text = resources.files("gacprof.devices").joinpath("datasheet.toml").read_text("utf-8")
    tables = tomllib.loads(text)
    others = {name: arch for name, (arch, _memory_gib) in tables.pop("no-sheet").items()}
    gpus = {}
    for key, table in tables.items():
        if "name" in table:
            table = tables.get(table.pop("like", ""), {}) | table
            drivers = tuple(table.pop("drivers"))
            name, arch = table.pop("name"), table.pop("arch")
            numbers = {number: value for number, (value, _source) in table.items()}
            tflops = {dtype: numbers.pop(dtype) for dtype in DTYPES if dtype in numbers}
            gpus[key] = GpuFacts(key, name, arch, drivers=drivers, tflops=tflops, **numbers)
    return gpus, {facts.key: facts.arch for facts in gpus.values()} | others


GPUS: Mapping[str, GpuFacts]
"""The GPUs of the data sheet by short name."""
GPUS, _ARCHITECTURES = _read()


def gpu_facts(name: str) -> GpuFacts:
    """The GPU of that name: ``h100-pcie``, ``H100 PCIe``, or the driver's name of the chip.

    Raises
    ------
    ConfigError
        For a GPU that the data sheet lacks; lists those it has.
    """
    plain_name = _plain(name)
    for facts in GPUS.values():
        if plain_name in [_plain(n) for n in (facts.key, facts.name, *facts.drivers)]:
            return facts
    raise ConfigError(
        f"'{name}' is no map and no GPU of the data sheet: name a map's file, a shipped map, "
        f"or one of {', '.join(GPUS)}"
    )


def _plain(name: str) -> str:
    short = name.lower().replace("nvidia", "").replace("geforce", "").replace("sxm", "")
    return "".join(letter for letter in short if letter.isalnum())


def architecture(text: str) -> Architecture:
    """The architecture that a GPU's name means: ``h100``, ``RTX PRO 6000``, ``NVIDIA
    A100-SXM4-80GB``, ``sm90``, or ``any`` for an open one. Raises :class:`ConfigError` for one that
    isn't known."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    plain = "".join(words)
    if plain in ("any", "cpu", "cpuamx"):
        return Architecture({"cpuamx": "cpu-amx"}.get(plain, plain))
    capability = re.fullmatch(r"sm(\d{2,3})a?", plain)
    if capability:
        return Architecture(plain, int(capability[1]))
    names = {name.replace("-", ""): name for name in _ARCHITECTURES}
    runs = sorted(combinations(range(len(words) + 1), 2), key=lambda run: run[0] - run[1])
    candidates = ["".join(words[first:end]) for first, end in runs]  # the most words first
    for short in candidates:
        name = names.get(short) or names.get(f"rtx{short}")
        if name:
            arch = _ARCHITECTURES[name]
            is_amd = arch == "amd"
            return Architecture(name, 0 if is_amd else int(arch[2:]), is_amd)
    raise ConfigError(f"no GPU '{text}' is known: use one of {', '.join(_ARCHITECTURES)}, any")


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

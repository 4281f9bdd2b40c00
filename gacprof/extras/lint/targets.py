"""The GPU that a product is judged on, by its compute capability."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from gacprof.core.errors import ConfigError
from gacprof.devices.datasheet import GPUS

CAPABILITIES = (75, 80, 86, 89, 90, 100, 103, 120)
"""Compute capabilities, times ten, that an open GPU may have: Turing to Blackwell, for which
engines still build."""


@dataclass(frozen=True)
class Gpu:
    """``sm`` is the compute capability times ten; 0 for AMD's GPUs, CPUs and an open GPU."""

    name: str
    sm: int = 0
    is_amd: bool = False

    @property
    def is_open(self) -> bool:
        return self.name == "any"


@cache
def _architectures() -> Mapping[str, str]:
    """Architectures by short name, of GPUs that the data sheet has no numbers of too."""
    text = files("gacprof.devices").joinpath("datasheet.toml").read_text("utf-8")
    others = {name: arch for name, (arch, _) in tomllib.loads(text)["no-sheet"].items()}
    return {facts.key: facts.arch for facts in GPUS.values()} | others


def gpu_named(text: str) -> Gpu:
    """The GPU that a name means: ``h100``, ``RTX PRO 6000``, ``NVIDIA A100-SXM4-80GB``, ``sm90``,
    or ``any`` for an open one. Raises :class:`ConfigError` for one that isn't known."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    plain = "".join(words)
    if plain in ("any", "cpu", "cpuamx"):
        return Gpu("cpu-amx" if "amx" in plain else plain)
    capability = re.fullmatch(r"sm(\d{2,3})a?", plain)
    if capability:
        return Gpu(plain, int(capability[1]))
    by_plain_name = {name.replace("-", ""): name for name in _architectures()}
    for length in (len(words), 3, 2, 1):
        for first in range(len(words)):
            short = "".join(words[first : first + length])
            for candidate in (short, f"rtx{short}"):
                if candidate in by_plain_name:
                    return _gpu(by_plain_name[candidate])
    raise ConfigError(f"no GPU '{text}' is known: use one of {', '.join(_architectures())}, any")


def _gpu(name: str) -> Gpu:
    arch = _architectures()[name]
    return Gpu(name, is_amd=True) if arch == "amd" else Gpu(name, int(arch[2:]))

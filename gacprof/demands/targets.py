"""What a demand depends on besides a size: the GPU's compute capability, and the engine's version.

GPUs are those of the data sheets (``devices/datasheet.toml``); ``any`` leaves the GPU open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from gacprof.core.errors import LintError, MapError
from gacprof.devices.datasheet import chips, sheet

CAPABILITIES = (75, 80, 86, 89, 90, 100, 103, 120)
"""What an open GPU may be: Turing to Blackwell, as engines still build for them."""


@dataclass(frozen=True)
class Gpu:
    """``sm`` is the compute capability times ten; None for an open GPU and for AMD's."""

    name: str
    sm: int | None
    memory_gib: int | None
    amd: bool = False

    @property
    def is_open(self) -> bool:
        return self.name == "any"


ANY_GPU = Gpu("any", None, None)


@cache
def _known() -> Mapping[str, Gpu]:
    return {
        name.replace("-", ""): Gpu(
            name, int(arch[2:]) if arch.startswith("sm") else None, memory, arch == "amd"
        )
        for name, (arch, memory) in chips().items()
    }


def gpu(name: str) -> Gpu:
    """A GPU by a short name (``h100``, ``RTX PRO 6000``, ``NVIDIA A100-SXM4-80GB``) or by its
    compute capability (``sm90``). Raises :class:`LintError` naming those that there are."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    plain = "".join(words)
    if plain in ("", "any"):
        return ANY_GPU
    if plain in ("cpu", "cpuamx"):
        return Gpu("cpu-amx" if "amx" in plain else "cpu", None, None)
    own = re.fullmatch(r"sm(\d{2,3})a?", plain)
    if own and int(own[1]) in {chip.sm for chip in _known().values()} | set(CAPABILITIES):
        return Gpu(plain, int(own[1]), None)
    with suppress(MapError):
        return _known()[sheet(name).key.replace("-", "")]
    for length in (3, 2, 1):  # NVIDIA RTX PRO 6000, RTX 4090, H100
        for first in range(len(words)):
            found = "".join(words[first : first + length])
            for known in (found, f"rtx{found}"):
                if known in _known():
                    return _known()[known]
    raise LintError(f"no GPU '{name}' is known: there are {', '.join(chips())}, any")


Version = tuple[int, ...]
LATEST = ("", "latest", "current", "main", "master", "nightly", "dev")


def version(text: str) -> Version | None:
    """``0.8.5``, ``v1.2rc1`` or ``b10000+`` as numbers; None for the newest that was read.

    Raises :class:`LintError` for what names no version.
    """
    plain = text.strip().lower().removeprefix("=")
    if plain in LATEST:
        return None
    found = re.match(r"[vb]?(\d{1,9}(\.\d{1,9}){0,4})", plain)
    if found is None:
        raise LintError(f"no version '{text}': write one such as 0.32.0, or latest")
    return tuple(map(int, found[1].split(".")))


@dataclass(frozen=True)
class NumberRange:
    """Numbers between bounds: ``>=0.23,<0.29`` of versions, ``>=89`` of capabilities, ``all``."""

    text: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "_bounds", tuple(self._read()))

    def _read(self) -> list[tuple[str, Version]]:
        if self.text == "all":
            return []
        parts = [re.fullmatch(r"(>=|<|==|>)(\d+(?:\.\d+)*)", p) for p in self.text.split(",")]
        if not all(parts):
            raise LintError(f"'{self.text}' is no range: write one such as >=0.23,<0.29, or all")
        return [(p[1], tuple(map(int, p[2].split(".")))) for p in parts if p]

    def holds(self, value: Version | int) -> bool:
        given = (value,) if isinstance(value, int) else value
        return all(self._compare(given, sign, bound) for sign, bound in self._bounds)  # type: ignore[attr-defined]

    @staticmethod
    def _compare(given: Version, sign: str, bound: Version) -> bool:
        length = max(len(given), len(bound))
        a, b = (v + (0,) * (length - len(v)) for v in (given, bound))
        return {">=": a >= b, "<": a < b, "==": a == b, ">": a > b}[sign]

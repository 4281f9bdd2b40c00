"""What a demand depends on besides a size: the GPU's compute capability, and the engine's version.

GPUs are known by name for their compute capability and memory in GiB (B200 and B300: the data
sheet's 192 and 288 GB converted) (NVIDIA's CUDA GPU table and data
sheets; ``mi300x`` from AMD's, without a compute capability). ``any`` leaves the GPU open.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gacprof.core.errors import LintError

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

_GPUS = {
    "v100": (70, 32), "t4": (75, 16), "a100": (80, 80), "a800": (80, 80), "a30": (80, 24),
    "a10": (86, 24), "a10g": (86, 24), "a40": (86, 48), "a6000": (86, 48), "rtx3090": (86, 24),
    "l4": (89, 24), "l20": (89, 48), "l40": (89, 48), "l40s": (89, 48), "rtx4090": (89, 24),
    "rtx6000ada": (89, 48), "h20": (90, 96), "h100": (90, 80), "h800": (90, 80),
    "h200": (90, 141), "gh200": (90, 96), "b200": (100, 178), "gb200": (100, 178),
    "b300": (103, 268), "gb300": (103, 268), "rtx5090": (120, 32), "rtxpro6000": (120, 96),
}  # fmt: skip


def gpu(name: str) -> Gpu:
    """A GPU by a short name (``h100``, ``RTX PRO 6000``, ``NVIDIA A100-SXM4-80GB``) or by its
    compute capability (``sm90``). Raises :class:`LintError` naming those that there are."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    plain = "".join(words)
    if plain in ("", "any"):
        return ANY_GPU
    if plain in ("mi300x", "mi300"):
        return Gpu("mi300x", None, 192, amd=True)
    if plain in ("cpu", "cpuamx"):
        return Gpu("cpu-amx" if "amx" in plain else "cpu", None, None)
    own = re.fullmatch(r"sm(\d{2,3})a?", plain)
    if own and int(own[1]) in {sm for sm, _ in _GPUS.values()} | set(CAPABILITIES):
        return Gpu(plain, int(own[1]), None)
    for length in (3, 2, 1):  # NVIDIA RTX PRO 6000, RTX 4090, H100
        for first in range(len(words)):
            found = "".join(words[first : first + length])
            for known in (found, f"rtx{found}"):
                if known in _GPUS:
                    return Gpu(known, *_GPUS[known])
    raise LintError(f"no GPU '{name}' is known: there are {', '.join(_GPUS)}, mi300x, any")


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
class Range:
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

"""Published facts of GPUs, each with its source in ``gpus.toml``. A value that no source was found
for is missing, not guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from gacprof.core.dtypes import DTYPES
from gacprof.core.errors import ConfigError
from gacprof.core.files import shipped_table
from gacprof.hardware.architectures import Architecture, architecture_named

SHEET = Path(__file__).with_name("gpus.toml")
NO_GPUS = ("any", "cpu", "cpu-amx")  # stand in place of a GPU: an open one, and CPUs
GPU_TABLES = shipped_table(SHEET, dict[str, Any])


@dataclass(frozen=True)
class GpuFacts:
    """A GPU. ``drivers`` are the names that a driver gives the chip; ``tflops`` are dense rates by
    compute dtype (TOPS for int8). None where no source agrees."""

    key: str
    name: str
    arch: str
    memory_gib: float | None = None
    sms: int | None = None
    l2_mib: float | None = None
    gb_s: float | None = None
    drivers: tuple[str, ...] = ()
    tflops: Mapping[str, float] = field(default_factory=dict)

    @property
    def architecture(self) -> Architecture:
        """What its kernels are compiled for."""
        return architecture_named(self.arch)


def gpu_row(key: str) -> dict[str, Any]:
    """Return a row of the data sheet, with what it leaves to the GPU that it is ``like``."""
    rows = GPU_TABLES["gpus"]
    return {**rows.get(rows[key].get("like", ""), {}), **rows[key]}


def _facts(key: str) -> GpuFacts:
    row = gpu_row(key)
    sourced = {name: pair[0] for name, pair in row.items() if isinstance(pair, list)}
    numbers = {name: sourced.get(name) for name in ("memory_gib", "sms", "l2_mib", "gb_s")}
    tflops = {dtype: sourced[dtype] for dtype in DTYPES if dtype in sourced}
    return GpuFacts(
        key, row["name"], row["arch"], drivers=tuple(row["drivers"]), tflops=tflops, **numbers
    )


GPUS: Mapping[str, GpuFacts] = {key: _facts(key) for key in GPU_TABLES["gpus"]}
"""The GPUs of the data sheet by short name."""
NO_SHEET = {key: GpuFacts(key, key, arch) for key, arch in GPU_TABLES["no_sheet"].items()}
"""Those of which only the architecture is known."""


def gpu_facts(name: str) -> GpuFacts:
    """Return the GPU of that name: ``h100-pcie``, ``H100 PCIe``, or the driver's name of the chip.
    Of one without a data sheet (``Tesla T4``) only the architecture is known. Raises
    :class:`ConfigError` for all others, with those of the data sheet."""
    for facts in GPUS.values():
        if _plain(name) in map(_plain, (facts.key, facts.name, *facts.drivers)):
            return facts
    key = _key_within(name)
    if key in NO_SHEET:
        return NO_SHEET[key]
    raise ConfigError(
        f"'{name}' is no map and no GPU of the data sheet: name a map's file, a shipped map, "
        f"or one of {', '.join(GPUS)}"
    )


def _plain(name: str) -> str:
    return re.sub(r"nvidia|geforce|sxm|[\W_]", "", name.lower())


def _key_within(text: str) -> str:
    """Return the key of the GPU that a text names, the one of most words; empty for none."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    keys = {key.replace("-", ""): key for key in (*GPUS, *NO_SHEET)}
    runs = sorted(combinations(range(len(words) + 1), 2), key=lambda run: run[0] - run[1])
    for first, end in runs:
        short = "".join(words[first:end])
        key = keys.get(short) or keys.get(f"rtx{short}")
        if key:
            return key
    return ""


def find_gpu(text: str) -> GpuFacts:
    """Return the GPU that a text means, also one without a data sheet: ``h100``, ``RTX PRO 6000``,
    ``NVIDIA A100-SXM4-80GB``, ``sm90``, or ``any`` for an open one. Of several names in it the one
    of most words counts. Raises :class:`ConfigError` for none."""
    plain = "".join(re.findall(r"[a-z0-9]+", text.lower()))
    for name in NO_GPUS:
        if plain == name.replace("-", ""):
            return GpuFacts(name, name, name)
    if architecture_named(plain).capability:
        return GpuFacts(plain, plain, plain)
    key = _key_within(text)
    if key:
        return GPUS.get(key) or NO_SHEET[key]
    raise ConfigError(f"no GPU '{text}' is known: use one of {', '.join((*GPUS, *NO_SHEET))}, any")

"""Does a map hold for the device and software at hand? (``gacprof map check``)"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from gacprof.cliffmap.map import CliffMap
from gacprof.core.points import Environment

DECISIVE = ("torch", "cuda", "cublas", "cudnn", "mkl", "onednn")
"""Components that choose kernels: another major or minor version makes a map stale."""

REPORTED = ("driver", "triton", "gacprof", "python")
"""Components whose change is worth knowing, but does not choose a kernel of the map."""


@dataclass(frozen=True)
class Mismatch:
    """One thing that differs. ``decisive`` ones make the map stale."""

    what: str
    map: str | None
    here: str | None
    decisive: bool


@dataclass(frozen=True)
class Fit:
    map: str
    provenance: str
    mismatches: list[Mismatch]

    @property
    def stale(self) -> bool:
        return any(m.decisive for m in self.mismatches)

    @property
    def lines(self) -> list[str]:
        """One sentence a mismatch, the decisive ones first."""
        ordered = sorted(self.mismatches, key=lambda m: not m.decisive)
        return [
            f"{m.what}: the map is of {m.map or 'none'}, here is {m.here or 'none'}"
            + ("" if m.decisive else " (does not choose kernels)")
            for m in ordered
        ]

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "stale": self.stale}


def check(cliff_map: CliffMap, here: Environment) -> Fit:
    """Compare the map's device and stack with an environment. A component that the map does
    not name (a published one names few) cannot mismatch."""
    there = cliff_map.environment
    found = [
        Mismatch(what, of_map, at_hand, True)
        for what, of_map, at_hand in (
            ("kind of device", there.kind, here.kind),
            ("device", there.name, here.name),
            ("architecture", there.arch, here.arch),
        )
        if of_map != at_hand
    ]
    for names, decisive in ((DECISIVE, True), (REPORTED, False)):
        for name in names:
            of_map, at_hand = there.stack.get(name), here.stack.get(name)
            if of_map and _release(name, of_map) != _release(name, at_hand):
                found.append(Mismatch(name, of_map, at_hand, decisive))
    return Fit(cliff_map.name, cliff_map.file.provenance.kind, found)


def _release(component: str, version: str | None) -> tuple[int, ...] | None:
    """Major and minor. cuDNN's number is one integer: 91002 is 9.10.2, 8907 is 8.9.7."""
    numbers = [int(n) for n in re.findall(r"\d+", version or "")]
    if component == "cudnn" and len(numbers) == 1:
        major_unit, minor_unit = (10000, 100) if numbers[0] >= 90000 else (1000, 100)
        return numbers[0] // major_unit, numbers[0] % major_unit // minor_unit
    return tuple(numbers[:2]) or None

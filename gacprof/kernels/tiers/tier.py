"""What a tier is: rows of a given alignment, the loads they allow, the kernels that use them.

A GPU loads a matrix in units: 16 bytes through TMA or a 128-bit ``cp.async``, 4 bytes through
the narrowest ``cp.async``, anything narrower through registers. A kernel is compiled for one
unit, and a matrix fits it only if every row starts on such a boundary: if the leading
dimension, in bytes, is a multiple of it. Hence tiers. They are rules, read out of library
binaries and NVIDIA's documents: they explain what was measured and predict what was not, and
never stand in for a measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gacprof.core.points import BYTES_PER_ELEMENT


@dataclass(frozen=True)
class Tier:
    """Kernels that ask for rows of a multiple of ``bytes``.

    ``basis`` says how it is known: ``binary`` (kernels of that alignment are in the library),
    ``document`` (NVIDIA says so) or ``expected`` (it follows from the mechanism; unmeasured).
    """

    bytes: int
    load: str
    kernels: str
    why: str
    basis: str

    def elements(self, dtype: str) -> int:
        """What a row must be a multiple of, in elements of ``dtype``. Raises KeyError."""
        return max(1, self.bytes // BYTES_PER_ELEMENT[dtype])


@dataclass(frozen=True)
class Architecture:
    """One chip family's tiers by data type, widest alignment first."""

    name: str
    chips: str
    tiers: Mapping[str, Sequence[Tier]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Prediction:
    """Which tier a GEMM's row lengths put it in, and which dimension holds it there.

    ``tier`` is None where the library has no kernel for such rows; ``needs`` is the multiple,
    in elements, that ``limiting`` fails.
    """

    arch: str
    dtype: str
    tier: Tier | None
    limiting: str | None
    needs: int | None
    basis: str = "rules"

    @property
    def sentence(self) -> str:
        if self.tier is None:
            return f"{self.limiting} is no multiple of {self.needs}: no kernel is known for it"
        served = f"{self.tier.load} ({self.tier.kernels})"
        if self.limiting is None:
            return f"all rows are multiples of {self.tier.elements(self.dtype)}: {served}"
        return f"{self.limiting} is no multiple of {self.needs}: {served}; {self.tier.why}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"sentence": self.sentence}

"""Alignment tiers of GEMM kernels: one file a GPU generation, one function to ask them all.

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
from functools import cache
from typing import Any

from gacprof.core.errors import MapError
from gacprof.core.points import BYTES_PER_ELEMENT

_SAME_AS = {"sm87": "sm86", "sm103": "sm100", "sm121": "sm120"}


@dataclass(frozen=True)
class AlignmentTier:
    """Kernels that ask for rows of a multiple of ``bytes``.

    ``basis`` says how it is known: ``binary`` (kernels of that alignment are in the library),
    ``document`` (NVIDIA says so) or ``expected`` (it follows from the mechanism; unmeasured).
    """

    bytes: int
    load: str
    kernels: str
    why: str
    basis: str = "binary"

    def elements(self, dtype: str) -> int:
        """What a row must be a multiple of, in elements of ``dtype``. Raises KeyError."""
        return max(1, self.bytes // BYTES_PER_ELEMENT[dtype])


@dataclass(frozen=True)
class Architecture:
    """One chip family's tiers by data type, widest alignment first."""

    name: str
    chips: str
    tiers: Mapping[str, Sequence[AlignmentTier]]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Prediction:
    """Which tier a GEMM's row lengths put it in, and which dimension holds it there.

    ``tier`` is None where the library has no kernel for such rows; ``needs`` is the multiple,
    in elements, that ``limiting`` fails.
    """

    arch: str
    dtype: str
    tier: AlignmentTier | None
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


@cache
def architectures() -> Mapping[str, Architecture]:
    """All that there are rules for, by name."""
    from gacprof.kernels.tiers.sm80 import SM80
    from gacprof.kernels.tiers.sm86 import SM86, SM89
    from gacprof.kernels.tiers.sm90 import SM90
    from gacprof.kernels.tiers.sm100 import SM100
    from gacprof.kernels.tiers.sm120 import SM120

    return {chip.name: chip for chip in (SM80, SM86, SM89, SM90, SM100, SM120)}


def architecture(name: str) -> Architecture:
    """The rules for ``sm80``, ``sm90a`` and so on. Raises :class:`MapError` for others."""
    plain = name.rstrip("af")
    known = architectures()
    chip = known.get(_SAME_AS.get(plain, plain))
    if chip is None:
        raise MapError(
            f"there are no alignment rules for '{name}' (there are {', '.join(known)}): "
            "measure it, or add a file to kernels/tiers"
        )
    return chip


def predict(arch: str, dtype: str, rows: Mapping[str, int]) -> Prediction:
    """The tier of a GEMM whose operands' rows have these lengths in elements.

    ``rows`` maps a dimension's name to its size: for ``y = x Wᵀ`` that is K, the row of x and
    of W, and N, the row of y; the token count is no row length. Raises :class:`MapError` for
    an architecture or a data type without rules, or a size that is not positive.
    """
    chip = architecture(arch)
    tiers = chip.tiers.get(dtype)
    if not tiers:
        raise MapError(
            f"there are no alignment rules for {dtype} on {chip.name} "
            f"(there are {', '.join(chip.tiers)})"
        )
    if not rows or any(size <= 0 for size in rows.values()):
        raise MapError(f"rows must be positive sizes by name, not {dict(rows)}")
    reach = {name: _first_fitting(tiers, size, dtype) for name, size in rows.items()}
    limiting = max(reach, key=lambda name: reach[name])
    index = reach[limiting]
    tier = tiers[index] if index < len(tiers) else None
    if index == 0:
        return Prediction(chip.name, dtype, tier, None, None)
    return Prediction(chip.name, dtype, tier, limiting, tiers[index - 1].elements(dtype))


def _first_fitting(tiers: Sequence[AlignmentTier], row: int, dtype: str) -> int:
    """Index of the first tier whose alignment divides the row; past the end if none does."""
    row_bytes = row * BYTES_PER_ELEMENT[dtype]
    return next((i for i, tier in enumerate(tiers) if row_bytes % tier.bytes == 0), len(tiers))

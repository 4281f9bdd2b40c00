"""Alignment tiers of GEMM kernels: one file a GPU generation, one function to ask them all.

A GPU loads a matrix in units: 16 bytes through TMA or a 128-bit ``cp.async``, 4 bytes through
the narrowest ``cp.async``, anything narrower through registers. A kernel is compiled for one
unit, and a matrix fits it only if every row starts on such a boundary: if the leading
dimension, in bytes, is a multiple of it. Hence tiers. They are rules, read out of library
binaries and NVIDIA's documents: they explain what was measured and predict what was not, and
never stand in for a measurement. Each file of this folder gives the ``CHIPS`` of a generation.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

from gacprof.core.errors import MapError
from gacprof.core.files import Record
from gacprof.core.plugins import brought
from gacprof.core.points import BYTES_PER_ELEMENT


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
    """One chip family's tiers by data type, widest alignment first.

    ``serves`` are other architectures that these rules hold for.
    """

    name: str
    chips: str
    tiers: Mapping[str, Sequence[AlignmentTier]]
    notes: Sequence[str] = ()
    serves: Sequence[str] = ()

    def tiers_for(self, dtype: str) -> Sequence[AlignmentTier]:
        """The tiers of a data type. Raises :class:`MapError` for one without rules."""
        if dtype not in self.tiers:
            raise MapError(
                f"there are no alignment rules for {dtype} on {self.name} "
                f"(there are {', '.join(self.tiers)})"
            )
        return self.tiers[dtype]


@dataclass(frozen=True)
class Prediction(Record):
    """Which tier a GEMM's row lengths put it in, and which dimension holds it there.

    ``tier`` is None where the library has no kernel for such rows; ``needs`` is the multiple,
    in elements, that ``limiting`` fails.
    """

    derived: ClassVar = ("sentence",)

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


@cache
def architectures() -> Mapping[str, Architecture]:
    """All that there are rules for, by name, oldest first; other packages' modules with ``CHIPS``
    too."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    modules += brought("tiers").values()
    found = {chip.name: chip for module in modules for chip in module.CHIPS}
    return dict(sorted(found.items(), key=lambda item: (len(item[0]), item[0])))


def architecture(name: str) -> Architecture:
    """The rules for ``sm80``, ``sm90a`` and so on. Raises :class:`MapError` for others."""
    plain = name.rstrip("af")
    for chip in architectures().values():
        if plain in (chip.name, *chip.serves):
            return chip
    raise MapError(
        f"there are no alignment rules for '{name}' (there are {', '.join(architectures())}): "
        "measure it, or bring a file as kernels/tiers has them (docs/extending.md)"
    )


def predict(arch: str, dtype: str, rows: Mapping[str, int]) -> Prediction:
    """The tier of a GEMM whose operands' rows have these lengths in elements.

    ``rows`` maps a dimension's name to its size: for ``y = x Wᵀ`` that is K, the row of x and
    of W, and N, the row of y; the token count is no row length. Raises :class:`MapError` for
    an architecture or a data type without rules, or a size that is not positive.
    """
    chip = architecture(arch)
    tiers = chip.tiers_for(dtype)
    if not rows or any(size <= 0 for size in rows.values()):
        raise MapError(f"rows must be positive sizes by name, not {dict(rows)}")

    def first_fitting(name: str) -> int:  # past the end if none does
        row = rows[name] * BYTES_PER_ELEMENT[dtype]
        return next((i for i, tier in enumerate(tiers) if row % tier.bytes == 0), len(tiers))

    limiting = max(rows, key=first_fitting)
    index = first_fitting(limiting)
    tier = tiers[index] if index < len(tiers) else None
    if index == 0:
        return Prediction(chip.name, dtype, tier, None, None)
    return Prediction(chip.name, dtype, tier, limiting, tiers[index - 1].elements(dtype))

"""Alignment tiers: one file an architecture, one function to ask them all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gacprof.core.errors import MapError
from gacprof.core.points import BYTES_PER_ELEMENT
from gacprof.kernels.tiers.sm80 import SM80
from gacprof.kernels.tiers.sm86 import SM86, SM89
from gacprof.kernels.tiers.sm90 import SM90
from gacprof.kernels.tiers.sm100 import SM100
from gacprof.kernels.tiers.sm120 import SM120
from gacprof.kernels.tiers.tier import Architecture, Prediction, Tier

ARCHITECTURES: Mapping[str, Architecture] = {
    a.name: a for a in (SM80, SM86, SM89, SM90, SM100, SM120)
}
_SAME_AS = {"sm87": "sm86", "sm103": "sm100", "sm121": "sm120"}


def architecture(name: str) -> Architecture:
    """The rules for ``sm80``, ``sm90a`` and so on. Raises :class:`MapError` for others."""
    plain = name.rstrip("af")
    plain = _SAME_AS.get(plain, plain)
    if plain not in ARCHITECTURES:
        raise MapError(
            f"there are no alignment rules for '{name}' (there are "
            f"{', '.join(ARCHITECTURES)}): measure it, or add a file to kernels/tiers"
        )
    return ARCHITECTURES[plain]


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
    size = BYTES_PER_ELEMENT[dtype]
    reach = {name: _first_fitting(tiers, length * size) for name, length in rows.items()}
    limiting = max(reach, key=lambda name: reach[name])
    index = reach[limiting]
    tier = tiers[index] if index < len(tiers) else None
    if index == 0:
        return Prediction(chip.name, dtype, tier, None, None)
    return Prediction(chip.name, dtype, tier, limiting, tiers[index - 1].elements(dtype))


def _first_fitting(tiers: Sequence[Tier], row_bytes: int) -> int:
    """Index of the first tier whose alignment divides the row; past the end if none does."""
    fitting = (i for i, tier in enumerate(tiers) if row_bytes % tier.bytes == 0)
    return next(fitting, len(tiers))


__all__ = ["ARCHITECTURES", "Architecture", "Prediction", "Tier", "architecture", "predict"]

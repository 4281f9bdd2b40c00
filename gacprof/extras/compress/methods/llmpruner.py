"""LLM-Pruner (arXiv 2305.11627): what depends on each other is pruned together, a hidden unit of an
MLP (a row of gate and up, a column of down) or a head with its keys and values; the importance of
such a unit is the sum over its weights of |w · ∂L/∂w| (Taylor, first order). Locally every layer
loses the same share, globally the least important units of the whole model go. The first and the
last layers stay whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from gacprof.core.errors import CompressionError

SCOPES = ("local", "global")

LEAST_KEPT = 0.1
"""Of every layer's units global pruning leaves at least this share, and one."""


@dataclass(frozen=True)
class Units:
    """Units of one kind in one layer that are pruned one by one: ``count`` of them, each of
    ``parameters`` weights, with an ``importance`` each. ``dim`` is the dim's name."""

    dim: str
    count: int
    parameters: int
    importance: Sequence[float]
    is_heads: bool = False

    @property
    def least(self) -> int:
        return max(1, ceil(self.count * LEAST_KEPT))


class TaylorPruning:
    """``scope`` is ``local`` or ``global``."""

    name = "llm-pruner"

    def __init__(self, scope: str = "local") -> None:
        if scope not in SCOPES:
            raise CompressionError(f"the scope is '{scope}': it must be local or global")
        self.scope = scope

    def layers(self, count: int) -> range:
        """The layers that are pruned: of 32 the publication's command leaves four and two."""
        return range(count // 8, count - count // 16)

    def sizes(self, units: Sequence[Units], removed: int) -> dict[str, int]:
        """How many units of each dim to keep, so that ``removed`` parameters or more are gone.

        Raises :class:`CompressionError` where the units have not that many.
        """
        found = _local(units, removed) if self.scope == "local" else _global(units, removed)
        gone = sum((u.count - found[u.dim]) * u.parameters for u in units)
        if gone < removed:
            raise CompressionError(
                f"the ratio cannot be met: {removed:,} parameters were to be removed, and the "
                f"layers that are pruned have {gone:,} to give"
            )
        return found

    def rounded(self, size: int, multiple: int, dense: int) -> int:
        """``round_to`` rounds the number that is pruned down."""
        return dense - (dense - size) // multiple * multiple


def _local(units: Sequence[Units], removed: int) -> dict[str, int]:
    """Whole heads by the share, rounded to fewer pruned; the MLPs' widths give the rest alike."""
    total = sum(unit.count * unit.parameters for unit in units)
    found = {
        unit.dim: max(1, unit.count - int(unit.count * removed / total))
        for unit in units
        if unit.is_heads
    }
    gone = sum((u.count - found[u.dim]) * u.parameters for u in units if u.is_heads)
    widths = [unit for unit in units if not unit.is_heads]
    wide = sum(unit.count * unit.parameters for unit in widths)
    kept = 1 - (removed - gone) / wide if wide else 1.0
    return found | {unit.dim: max(unit.least, int(unit.count * kept)) for unit in widths}


def _global(units: Sequence[Units], removed: int) -> dict[str, int]:
    """The units with the least importance for each parameter go first."""
    order = sorted(
        (value / unit.parameters, n) for n, unit in enumerate(units) for value in unit.importance
    )
    found = {unit.dim: unit.count for unit in units}
    gone = 0
    for _, n in order:
        unit = units[n]
        if gone >= removed:
            break
        if found[unit.dim] > unit.least:
            found[unit.dim] -= 1
            gone += unit.parameters
    return found


def strongest_first(importance: Sequence[float]) -> list[int]:
    """The indices of the units, the most important first; the earlier of equals."""
    return sorted(range(len(importance)), key=lambda i: (-importance[i], i))


def strongest(importance: Sequence[float], keep: int) -> list[int]:
    """The indices of the ``keep`` most important units, ascending."""
    return sorted(strongest_first(importance)[:keep])

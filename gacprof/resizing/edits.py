"""From dims to tensors: what every tensor of the checkpoint becomes.

Shapes follow from the sizes alone, so headers can be written before any data is read; which
entries a cut keeps is found only when the first tensor that needs it is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gacprof.checkpoint.inventory import Dim, Inventory, Place, TensorInfo
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.core.factors import Method
from gacprof.core.points import MAX_DIM

Action = Literal["pad", "truncate"]

Sizes = Mapping[str, int | None]
"""New sizes by dim name; None for a rank whose factors are to be multiplied out."""


@dataclass(frozen=True)
class Change:
    """One dim and the size it gets.

    ``how`` is ``zeros`` for padding, ``residual`` for padding with what the original weights
    say (``informed``), else how it is cut.
    """

    dim: Dim
    after: int
    informed: bool = False

    @property
    def action(self) -> Action:
        return "pad" if self.after > self.dim.size else "truncate"

    @property
    def how(self) -> Literal["zeros", "residual"] | Method:
        if self.action == "pad":
            return "residual" if self.informed else "zeros"
        if self.dim.ordered:
            return "order"
        return "svd" if self.dim.kind == "rank" else "magnitude"


@dataclass(frozen=True)
class Edit:
    """One tensor and, by axis, the changes that it takes part in with their places."""

    info: TensorInfo
    places: Mapping[int, tuple[tuple[Change, Place], ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def dtype(self) -> str:
        return self.info.dtype

    @property
    def sources(self) -> tuple[TensorInfo, ...]:
        """The stored tensors that it is made of."""
        return (self.info,)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape after all changes."""
        grown = {
            axis: sum(change.after - change.dim.size for change, _ in entries)
            for axis, entries in self.places.items()
        }
        return tuple(n + grown.get(axis, 0) for axis, n in enumerate(self.info.shape))


def changes_of(inventory: Inventory, sizes: Sizes) -> tuple[Change, ...]:
    """The changes that ``sizes`` ask for, in the inventory's order; fused dims are left out.

    Raises :class:`PlanError` for a dim that the checkpoint does not have or a size below 1,
    :class:`CheckpointError` for a dim that may not be changed, with the reason.
    """
    unknown = sorted(sizes.keys() - {dim.name for dim in inventory.dims})
    if unknown:
        raise PlanError(
            f"{inventory.path} has no dim '{unknown[0]}'"
            + (f" (and {len(unknown) - 1} more of the plan's)" if len(unknown) > 1 else "")
            + "; make the plan from this checkpoint"
        )
    changes = []
    for dim in inventory.dims:
        after = sizes.get(dim.name, dim.size)
        if after is None:
            continue
        if isinstance(after, bool) or not isinstance(after, int):
            raise PlanError(f"'{dim.name}' cannot have size {after!r}: sizes are whole numbers")
        if not 1 <= after <= MAX_DIM:
            raise PlanError(f"'{dim.name}' cannot have size {after}: it must be 1 to {MAX_DIM}")
        if after != dim.size:
            changes.append(_checked(Change(dim, after)))
    return tuple(changes)


def _checked(change: Change) -> Change:
    dim = change.dim
    if dim.padding == "refused":
        raise CheckpointError(
            f"'{dim.name}' cannot be changed from {dim.size} to {change.after}: "
            f"{dim.why or 'zero padding would change what the model computes'}"
        )
    if change.how == "magnitude" and dim.kind == "hidden":
        raise CheckpointError(
            f"'{dim.name}' cannot be cut from {dim.size} to {change.after}: its entries have no "
            "order, and every layer reads them; it can only be padded"
        )
    if change.how == "svd" and {p.axis for p in dim.places} != {0, 1}:
        raise CheckpointError(
            f"'{dim.name}' cannot be cut from {dim.size} to {change.after}: it is not written in "
            "one pair of factors"
        )
    return change


def edits_of(inventory: Inventory, changes: tuple[Change, ...]) -> dict[str, Edit]:
    """What becomes of every tensor, by name."""
    places: dict[str, dict[int, list[tuple[Change, Place]]]] = {}
    for change in changes:
        for place in change.dim.places:
            places.setdefault(place.tensor, {}).setdefault(place.axis, []).append((change, place))
    return {
        name: Edit(info, {axis: tuple(e) for axis, e in places.get(name, {}).items()})
        for name, info in inventory.tensors.items()
    }

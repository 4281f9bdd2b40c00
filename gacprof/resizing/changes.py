"""From dims to tensors: what every tensor of the checkpoint becomes.

Shapes follow from the sizes alone, so headers can be written before any data is read; which
entries a cut keeps is found only when the first tensor that needs it is written.

A module whose factors are merged gets the dense tensors of a plain model: the weight outer·inner,
group by group for grouped factors, and the groups' biases one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

from gacprof.checkpoint.inventory import (
    ROTARY_TABLE,
    Dim,
    Inventory,
    Module,
    NewSizes,
    Place,
    TensorInfo,
)
from gacprof.checkpoint.layouts.declared import width_keys
from gacprof.checkpoint.layouts.widths import STACKED
from gacprof.core.dtypes import element_type
from gacprof.core.errors import CheckpointError, PlanError, short
from gacprof.core.factors import Method
from gacprof.core.points import MAX_DIM


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
    def pads(self) -> bool:
        return self.after > self.dim.size

    @property
    def how(self) -> Literal["zeros", "residual"] | Method:
        if self.pads:
            return "residual" if self.informed else "zeros"
        if self.dim.ordered:
            return "order"
        return "svd" if self.dim.kind == "rank" else "magnitude"


@dataclass(frozen=True)
class Edit:
    """A stored tensor, its shape after all changes, and by axis the changes with their places."""

    info: TensorInfo
    shape: tuple[int, ...]
    places: Mapping[int, Sequence[tuple[Change, Place]]]


@dataclass(frozen=True)
class NewTensor:
    """One tensor of the new checkpoint: its parts, joined along axis 0.

    With ``inner`` (of merged factors) each part is multiplied by its section of it, which is the
    next as many rows as the part has columns.
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[Edit, ...]
    inner: Edit | None = None

    @property
    def dtype(self) -> str:
        return self.parts[0].info.dtype

    @property
    def sources(self) -> tuple[TensorInfo, ...]:
        """The stored tensors that it is made of."""
        inner = () if self.inner is None else (self.inner.info,)
        return (*(part.info for part in self.parts), *inner)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * element_type(self.dtype).itemsize

    @property
    def unchanged(self) -> bool:
        return len(self.sources) == 1 and not self.parts[0].places


@dataclass(frozen=True)
class NewCheckpoint:
    """What ``sizes`` make of a checkpoint: the ``changes`` of dims in the inventory's order, the
    ``merged`` modules, whose factors are multiplied out, and the new ``tensors`` by name."""

    inventory: Inventory
    sizes: NewSizes
    changes: tuple[Change, ...]
    merged: tuple[Module, ...]
    tensors: Mapping[str, NewTensor]

    @property
    def parameters(self) -> int:
        """Counted as :attr:`Inventory.parameters` does."""
        counted = (t for n, t in self.tensors.items() if not n.endswith(ROTARY_TABLE))
        return sum({t.sources[0].stored_at: prod(t.shape) for t in counted}.values())


def new_checkpoint(
    inventory: Inventory, sizes: NewSizes, *, informed: bool = False
) -> NewCheckpoint:
    """What ``sizes`` make of a checkpoint; ``informed``: raised ranks are filled from the original
    weights.

    Raises :class:`PlanError` for sizes that do not fit, :class:`CheckpointError` for a dim that may
    not change, with the reason.
    """
    changes = _changes(inventory, sizes, informed)
    merged = _merged(inventory, sizes)
    return NewCheckpoint(inventory, sizes, changes, merged, _tensors(inventory, changes, merged))


def _changes(inventory: Inventory, sizes: NewSizes, informed: bool) -> tuple[Change, ...]:
    """Those that ``sizes`` ask for; merged ranks are left out.

    Raises :class:`PlanError` for a dim that the checkpoint does not have or a size below 1.
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
            raise PlanError(
                f"'{dim.name}' cannot have size {short(after)}: it must be 1 to {MAX_DIM}"
            )
        if after != dim.size:
            raised = dim.kind == "rank" and after > dim.size
            changes.append(Change(dim, after, informed and raised))
            _refuse(changes[-1])
    _refuse_unsayable(inventory, sizes)
    return tuple(changes)


def _refuse_unsayable(inventory: Inventory, sizes: NewSizes) -> None:
    """Raise where experts in one tensor would get a width that the config cannot say: no model
    could be built for them."""
    for key in width_keys(inventory.config, inventory.dims):
        stacked = [d.name for dims in key.dims.values() for d in dims if d.role == STACKED]
        if sizes.keys() & set(stacked) and key.value_with(sizes) is None:
            widths = ", ".join(str(size) for size in sorted(key.widths(sizes))[:6])
            raise CheckpointError(
                f"{inventory.path}: '{stacked[0]}' and all else that the config's {key.name} says "
                f"would have the widths {widths}: give them one"
            )


def _refuse(change: Change) -> None:
    dim, reason = change.dim, ""
    if dim.padding == "refused":
        reason = dim.why or "zero padding would change what the model computes"
    elif change.how == "magnitude" and dim.kind == "hidden":
        reason = "its entries have no order, and every layer reads them; it can only be padded"
    elif change.how == "magnitude" and dim.role == STACKED:
        reason = "all experts share it in one tensor; it can only be padded"
    elif change.how == "svd" and {p.axis for p in dim.places} != {0, 1}:
        reason = "it is not written in one pair of factors"
    if reason:
        verb = "changed" if dim.padding == "refused" else "cut"
        raise CheckpointError(
            f"'{dim.name}' cannot be {verb} from {dim.size} to {change.after}: {reason}"
        )


def _merged(inventory: Inventory, sizes: NewSizes) -> tuple[Module, ...]:
    """The modules whose ranks ``sizes`` gives up (None).

    Raises :class:`PlanError` where only some of a module's ranks are, :class:`CheckpointError`
    where one may not change.
    """
    gone = {name for name, size in sizes.items() if size is None}
    found = []
    for module in inventory.modules:
        ranks = {rank.name: rank for rank in inventory.ranks_of(module)}
        if not ranks.keys() & gone:
            continue
        if not ranks.keys() <= gone:
            raise PlanError(f"'{module.name}' can be fused with all its ranks or not at all")
        _refuse_merge(inventory, module, [ranks[name] for name in sorted(ranks)])
        gone -= ranks.keys()
        found.append(module)
    if gone:
        raise PlanError(f"{inventory.path}: '{min(gone)}' is no rank and cannot be fused")
    return tuple(found)


def _refuse_merge(inventory: Inventory, module: Module, ranks: Sequence[Dim]) -> None:
    reasons = [rank.why for rank in ranks if rank.padding == "refused"]
    inner = (p for rank in ranks for p in rank.places if p.tensor == module.gemms[0].weight)
    if any(place.axis != 0 for place in inner):
        reasons.append("it is stored transposed")
    if f"{module.name}.weight" in inventory.tensors:
        reasons.append("it has a dense weight beside")
    if reasons:
        raise CheckpointError(f"'{module.name}' cannot be fused: {reasons[0]}")


def _tensors(
    inventory: Inventory, changes: Iterable[Change], merged: Sequence[Module]
) -> dict[str, NewTensor]:
    places: dict[str, dict[int, list[tuple[Change, Place]]]] = {}
    for change in changes:
        for place in change.dim.places:
            places.setdefault(place.tensor, {}).setdefault(place.axis, []).append((change, place))
    edits = {name: _edit(info, places.get(name, {})) for name, info in inventory.tensors.items()}
    tensors = {name: NewTensor(name, edit.shape, (edit,)) for name, edit in edits.items()}
    for module in merged:
        inner, *outer = (edits[gemm.weight] for gemm in module.gemms)
        names = [edit.info.name.removesuffix(".weight") + ".bias" for edit in outer]
        biases = tuple(edits[name] for name in names if name in edits)
        shape = (sum(edit.shape[0] for edit in outer), inner.shape[1])
        made = [NewTensor(f"{module.name}.weight", shape, tuple(outer), inner)]
        if biases:
            made.append(NewTensor(f"{module.name}.bias", shape[:1], biases))
        for tensor in made:
            for info in tensor.sources:
                del tensors[info.name]
            tensors[tensor.name] = tensor
    return tensors


def _edit(info: TensorInfo, places: Mapping[int, Sequence[tuple[Change, Place]]]) -> Edit:
    shape = list(info.shape)
    for axis, entries in places.items():
        shape[axis] += sum((c.after - c.dim.size) * place.per for c, place in entries)
    return Edit(info, tuple(shape), places)

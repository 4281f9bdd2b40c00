"""From sizes to tensors: the change of every dim, and the stored tensors each new one is made of.

A module whose factors are merged gets the dense tensors of a plain model: the weight outer·inner,
group by group, and the groups' biases in a row.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gacprof.checkpoint.config import sizes_refusal
from gacprof.checkpoint.inventory import Dim, Inventory, Module, NewSizes, Place
from gacprof.core.errors import CheckpointError, PlanError

Method = Literal["zeros", "order", "svd", "magnitude"]
"""``zeros`` pads. A cut drops trailing entries where they are the least important (``order``),
takes the best factors of the smaller rank (``svd``), or keeps the entries with the largest product
of norms (``magnitude``; a stand-in where no importance is stored)."""


@dataclass(frozen=True)
class Change:
    """A change of a dim to a new size."""

    dim: Dim
    size: int

    @property
    def method(self) -> Method:
        if self.size > self.dim.size:
            return "zeros"
        if self.dim.ordered:
            return "order"
        return "svd" if self.dim.kind == "rank" else "magnitude"


@dataclass(frozen=True)
class NewTensor:
    """A new tensor: stored ``parts`` joined along axis 0, outer factors times an ``inner`` one."""

    name: str
    parts: tuple[str, ...]
    inner: str = ""


@dataclass(frozen=True)
class NewCheckpoint:
    """A checkpoint at new ``sizes``: changes of dims, merged modules, new tensors; or with its
    quantised weights in groups of ``group_size`` inputs."""

    inventory: Inventory
    sizes: NewSizes
    changes: tuple[Change, ...]
    merged: tuple[Module, ...]
    tensors: tuple[NewTensor, ...]
    group_size: int | None = None

    @cached_property
    def edits(self) -> dict[str, list[tuple[Change, Place]]]:
        """The changes of each stored tensor, with the places in it, ascending."""
        edits: dict[str, list[tuple[Change, Place]]] = {}
        for change in self.changes:
            for place in change.dim.places:
                edits.setdefault(place.tensor, []).append((change, place))
        for of_tensor in edits.values():
            of_tensor.sort(key=lambda edit: edit[1].start)
        return edits

    @cached_property
    def split_groups(self) -> dict[str, Place]:
        """The place of groups that are split in each stored tensor that has one."""
        groups = self.inventory.groups if self.group_size else None
        return {place.tensor: place for place in groups.places} if groups else {}

    @property
    def parts_of_group(self) -> int:
        """How many new groups a stored one becomes."""
        groups = self.inventory.groups
        return groups.size // self.group_size if groups and self.group_size else 1

    def shape(self, new: NewTensor) -> tuple[int, ...]:
        """Return the shape of a new tensor, as headers and changes say it."""
        if len(new.parts) == 1 and not new.inner:
            return self._resized(new.parts[0])
        rows = sum(self._resized(part)[0] for part in new.parts)
        return (rows, *self._resized(new.inner or new.parts[0])[1:])

    def _resized(self, name: str) -> tuple[int, ...]:
        shape = list(self.inventory.shape(name))
        for change, place in self.edits.get(name, ()):
            shape[place.axis] += place.growth(change.dim.size, change.size)
        split = self.split_groups.get(name)
        if split is not None and split.fill != "group":
            shape[split.axis] *= self.parts_of_group
        return tuple(shape)


def new_checkpoint(inventory: Inventory, sizes: NewSizes) -> NewCheckpoint:
    """Return the changes and tensors of new sizes. Raises :class:`PlanError` for ranks that cannot
    be merged, :class:`CheckpointError` for a dim that may not take its size."""
    refusal = sizes_refusal(inventory, sizes)
    if refusal:
        raise CheckpointError(f"{inventory.path} cannot have these sizes: {refusal}")
    changes = []
    for name, size in sizes.items():
        dim = inventory.dim(name)
        if size is not None and size != dim.size:
            changes.append(Change(dim, size))
    merged = merged_modules(inventory, {name for name, size in sizes.items() if size is None})
    return NewCheckpoint(inventory, sizes, tuple(changes), merged, new_tensors(inventory, merged))


def split_groups(inventory: Inventory, size: int) -> NewCheckpoint:
    """Return the checkpoint with groups of ``size`` inputs, each with the scale and zero point of
    the larger group that it was part of. Raises :class:`CheckpointError` where it can have none."""
    refusal = "no quantised weights share scales in groups of a length that its config says"
    if inventory.groups is not None:
        refusal = inventory.groups.refusal(size)
    if refusal:
        raise CheckpointError(f"{inventory.path} cannot have groups of {size}: {refusal}")
    return NewCheckpoint(inventory, {}, (), (), new_tensors(inventory, ()), size)


def merged_modules(inventory: Inventory, ranks: set[str]) -> tuple[Module, ...]:
    """Return the modules whose ``ranks`` are given up. Raises :class:`PlanError` for a refusal."""
    modules = []
    for name in sorted(ranks):
        if inventory.dim(name).kind != "rank":
            raise PlanError(f"'{name}' cannot be merged: it is no rank")
    for module in inventory.modules:
        names = {rank.name for rank in inventory.ranks_of(module)}
        if names & ranks:
            refusal = inventory.merge_refusal(module)
            if not names <= ranks:
                refusal = "all ranks of a module are, or none"
            if refusal:
                raise PlanError(f"'{min(names & ranks)}' cannot be merged: {refusal}")
            modules.append(module)
    return tuple(modules)


def new_tensors(inventory: Inventory, merged: Iterable[Module]) -> tuple[NewTensor, ...]:
    """Return the tensors of the new checkpoint: stored ones by name, merged factors as one."""
    tensors = {name: NewTensor(name, (name,)) for name in inventory.tensors}
    for module in merged:
        weights, biases = module.weights, module.biases
        for name in module.parameters:
            del tensors[name]
        # The first factor that runs is the inner one
        weight = f"{module.name}.weight"
        tensors[weight] = NewTensor(weight, tuple(weights[1:]), weights[0])
        if biases:
            tensors[f"{module.name}.bias"] = NewTensor(f"{module.name}.bias", tuple(biases))
    return tuple(tensors.values())

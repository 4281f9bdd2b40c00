"""Same weights? The tensors of two checkpoints, compared entry by entry.

Three things leave a model's function as it is, whatever the model reads: equal values; zeros where
a dim has grown in all of its places; and factors multiplied out, rounded once. What differs in any
other way is left for the function itself to tell. Files are mapped: no more than one layer is in
memory at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gacprof.checkpoint.inventory import Inventory, Module
from gacprof.checkpoint.load import COMPUTED_IN, DERIVED
from gacprof.checkpoint.tensors import read_tensor

WHOLE_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By size in bytes, the types that bits are compared as: NaN is not equal to itself."""

ROWS_AT_ONCE = 4096
"""Rows that are widened at a time where two files store a tensor in two types."""


@dataclass(frozen=True)
class WeightComparison:
    """How the tensors of two checkpoints compare.

    Attributes
    ----------
    equal
        How many have the same values in both.
    padded
        How many are the same but for zeros where dims are larger.
    merged
        The stored types of layers that are factored in one checkpoint and multiplied out in the
        other.
    differing
        Names of all other tensors, of either checkpoint.
    """

    equal: int
    padded: int
    merged: tuple[str, ...]
    differing: tuple[str, ...]


def compare_weights(inventory: Inventory, other: Inventory) -> WeightComparison:
    """Compare all tensors of two checkpoints but those that a model makes for itself."""
    sides = Unpadded(inventory, other), Unpadded(other, inventory)
    merged = []
    explained: set[str] = set()
    for module, match in modules_of_two_kinds(inventory, other):
        if are_multiplied_out(sides, module, match):
            merged.append(module.dtype if module.kind == "dense" else match.dtype)
            explained.update(stored_names(module), stored_names(match))
    equal = 0
    padded = 0
    differing = []
    for name in sorted(inventory.tensors.keys() | other.tensors.keys()):
        if name in explained or DERIVED.fullmatch(name):
            continue
        in_both = name in inventory.tensors and name in other.tensors
        if not in_both or not same_values(*(side.read(name) for side in sides)):
            differing.append(name)
        elif inventory.shape(name) == other.shape(name):
            equal += 1
        else:
            padded += 1
    return WeightComparison(equal, padded, tuple(merged), tuple(differing))


class Unpadded:
    """The tensors of a checkpoint without the zeros that another one does not have.

    A dim that is larger than the other checkpoint's has its further entries at the end of each of
    its places. They go where they are zero; else the tensor stays as it is.
    """

    def __init__(self, inventory: Inventory, other: Inventory) -> None:
        self.inventory = inventory
        sizes = {dim.name: dim.size for dim in other.dims}
        self.stretches: dict[str, list[tuple[int, int, int]]] = {}
        for dim in inventory.dims:
            size = sizes.get(dim.name, dim.size)
            if size < dim.size and dim.adjustable:
                for place in dim.places:
                    start, end = (place.start + units * place.per for units in (size, dim.size))
                    self.stretches.setdefault(place.tensor, []).append((place.axis, start, end))

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor in its stored type."""
        tensor = read_tensor(self.inventory, name)
        short = tensor
        # The last stretch first: those before it stay where they are
        for axis, start, end in sorted(self.stretches.get(name, ()), reverse=True):
            length = short.shape[axis]
            parts = short.narrow(axis, 0, start), short.narrow(axis, end, length - end)
            short = torch.cat(parts, dim=axis)
        if short is not tensor and bits(short).count_nonzero() < bits(tensor).count_nonzero():
            return tensor
        return short


def same_values(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors are equal: by bits, or by value where their types are two."""
    if tensor.shape != other.shape:
        return False
    if tensor.dtype == other.dtype:
        return torch.equal(bits(tensor), bits(other))
    if not tensor.is_floating_point() or not other.is_floating_point():
        return False
    rows = zip(
        torch.atleast_1d(tensor).split(ROWS_AT_ONCE),
        torch.atleast_1d(other).split(ROWS_AT_ONCE),
        strict=True,
    )
    return all(torch.equal(part.double(), match.double()) for part, match in rows)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(WHOLE_NUMBERS[tensor.itemsize])


def modules_of_two_kinds(inventory: Inventory, other: Inventory) -> list[tuple[Module, Module]]:
    """Return the layers that one checkpoint stores as factors and the other as one weight."""
    matches = {module.name: module for module in other.modules}
    pairs = [(m, matches[m.name]) for m in inventory.modules if m.name in matches]
    return [
        (module, match)
        for module, match in pairs
        if (module.kind == "dense") != (match.kind == "dense")
        and {module.dtype, match.dtype} <= set(COMPUTED_IN)
    ]


def are_multiplied_out(sides: tuple[Unpadded, Unpadded], module: Module, match: Module) -> bool:
    """Tell whether a weight is the product of factors, rounded once to its type."""
    weight = multiplied(sides[0], module)
    product = multiplied(sides[1], match)
    types = [torch.finfo(getattr(torch, m.dtype)) for m in (module, match)]
    rounding = max(limits.eps for limits in types)
    # Below the normal numbers of a type the spacing is fixed; sums in float64 have any order
    spacing = max(limits.eps * limits.smallest_normal for limits in types)
    summing = torch.finfo(torch.float64).eps * len(product) * float(product.abs().max())
    return weight.shape == product.shape and torch.allclose(
        weight, product, rtol=rounding, atol=spacing + summing
    )


def multiplied(side: Unpadded, module: Module) -> torch.Tensor:
    """Return a layer's weight with its bias as a last column, multiplied out in float64."""
    weights = [side.read(gemm.weight).double() for gemm in module.gemms]
    if len(weights) > 1:
        inner, *outer = weights
        sections = inner.split([part.shape[1] for part in outer])
        weights = [part @ rows for part, rows in zip(outer, sections, strict=True)]
    biases = [side.read(name).double() for name in bias_names(module)]
    if biases:
        weights = [torch.cat([torch.cat(weights), torch.cat(biases)[:, None]], dim=1)]
    return torch.cat(weights)


def stored_names(module: Module) -> list[str]:
    return [*(gemm.weight for gemm in module.gemms), *bias_names(module)]


def bias_names(module: Module) -> list[str]:
    """Return the names of a layer's biases, which belong to the factors that write its output."""
    return [gemm.weight.removesuffix("weight") + "bias" for gemm in module.gemms if gemm.bias]

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
from gacprof.checkpoint.load import DERIVED
from gacprof.checkpoint.tensors import read_tensor

WHOLE_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By size in bytes, the types that bits are compared as: NaN is not equal to itself."""


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
    names = inventory.tensors.keys() | other.tensors.keys()
    names -= {name for name in names if DERIVED.fullmatch(name)}
    modules = {module.name: module for module in other.modules}
    merged = []
    for module in inventory.modules:
        forms = zip(sides, (module, modules.get(module.name, module)), strict=True)
        dense, factored = sorted(forms, key=lambda form: len(form[1].gemms))
        if len(dense[1].gemms) == 1 < len(factored[1].gemms) and is_product(dense, factored):
            merged.append(dense[1].dtype)
            names -= {*stored_names(dense[1]), *stored_names(factored[1])}
    in_both = names & inventory.tensors.keys() & other.tensors.keys()
    same = {name for name in in_both if same_values(sides[0].read(name), sides[1].read(name))}
    equal = sum(inventory.shape(name) == other.shape(name) for name in same)
    return WeightComparison(equal, len(same) - equal, tuple(merged), tuple(sorted(names - same)))


class Unpadded:
    """The tensors of a checkpoint without the zeros that another one does not have.

    A dim that is larger than the other checkpoint's has its further entries at the end of each of
    its places.
    """

    def __init__(self, inventory: Inventory, other: Inventory) -> None:
        self.inventory = inventory
        sizes = {dim.name: dim.size for dim in other.dims}
        self.stretches: dict[str, list[tuple[int, int, int]]] = {}
        for dim in inventory.dims:
            growth = dim.size - sizes.get(dim.name, dim.size)
            if growth > 0 and dim.adjustable:
                for place in dim.places:
                    end = place.start + dim.size * place.per
                    stretch = place.axis, end - growth * place.per, end
                    self.stretches.setdefault(place.tensor, []).append(stretch)

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor in its stored type; all of it where an entry to leave out is not zero."""
        tensor = read_tensor(self.inventory, name)
        short = tensor
        # The last stretch first: those before it stay where they are
        for axis, start, end in sorted(self.stretches.get(name, ()), reverse=True):
            before, zeros, after = short.tensor_split((start, end), dim=axis)
            if bits(zeros).any():
                return tensor
            short = torch.cat((before, after), dim=axis)
        return short


def same_values(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors are equal: by bits, or by value where their types are two."""
    if tensor.dtype == other.dtype:
        return torch.equal(bits(tensor), bits(other))
    return torch.equal(tensor.double(), other.double())


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(WHOLE_NUMBERS[tensor.itemsize])


def is_product(dense: tuple[Unpadded, Module], factored: tuple[Unpadded, Module]) -> bool:
    """Tell whether a weight and its bias are factors multiplied out, rounded once to its type."""
    weight = multiplied(*dense)
    product = multiplied(*factored)
    if weight.shape != product.shape:
        return False
    dtype = dense[0].read(dense[1].gemms[0].weight).dtype
    # Sums in float64 have any order. Rounding keeps order: it is asked of both ends.
    summing = torch.finfo(torch.float64).eps * sum(gemm.N for gemm in factored[1].gemms)
    margin = summing * product.abs().max()
    low, high = (product - margin).to(dtype), (product + margin).to(dtype)
    return bool(((low <= weight) & (weight <= high)).all())


def multiplied(side: Unpadded, module: Module) -> torch.Tensor:
    """Return a layer's weight [out, in] and bias in a row, its factors multiplied in float64."""
    tensors = [side.read(name).double() for name in stored_names(module)]
    weight = tensors.pop(0)
    outer = tensors[: len(module.gemms) - 1]
    if outer:  # each reads its own part of what the inner factor gives
        weight = torch.block_diag(*outer) @ weight
    return torch.cat([weight.flatten(), *tensors[len(outer) :]])


def stored_names(module: Module) -> list[str]:
    """Return the names of a layer's weights, then of its biases: those of the outer factors."""
    weights = [gemm.weight for gemm in module.gemms]
    biases = [gemm.weight.removesuffix("weight") + "bias" for gemm in module.gemms if gemm.bias]
    return weights + biases

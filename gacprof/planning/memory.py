"""What a checkpoint of other sizes holds: parameters, and bytes as stored.

Bytes are those of the weights, on disk and in memory alike; headers, the tokenizer, the cache
of keys and values and the activations are not in them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from gacprof.checkpoint.inventory import Dim, Inventory, Module, TensorInfo
from gacprof.core.points import BYTES_PER_ELEMENT

Sizes = Mapping[str, int | None]
"""Dim name → new size; None where a factor pair is multiplied out and its rank with it."""


@dataclass(frozen=True)
class Footprint:
    """Over a whole checkpoint."""

    parameters: int
    nbytes: int


def footprint(inventory: Inventory, changes: Sizes) -> Footprint:
    """Parameters and bytes with these dims resized, all together and exactly: where two dims
    share a tensor (a rank and a width), the product of both counts.

    A tensor stored once under two names counts once; rotary tables count as bytes only, as in
    :attr:`Inventory.parameters`.
    """
    grown = _grown(inventory, changes)
    dropped: set[str] = set()
    parameters = nbytes = 0
    for module in inventory.modules:
        if any(changes.get(name, 0) is None for name in module.dims):
            dropped |= {gemm.weight for gemm in module.gemms}
            dense = _dense(module, grown)
            parameters += dense
            nbytes += dense * _bytes_per_parameter(inventory, module)
    seen: set[object] = set()
    for tensor in inventory.tensors.values():
        key = (tensor.file, tensor.offset, tensor.shape, tensor.stride)
        stored = key if tensor.offset is not None else tensor.name
        if tensor.name in dropped or stored in seen:
            continue
        seen.add(stored)
        numel = prod(n + grown.get((tensor.name, axis), 0) for axis, n in enumerate(tensor.shape))
        nbytes += numel * (tensor.nbytes // max(tensor.numel, 1))
        if not tensor.name.endswith("rotary_emb.inv_freq"):
            parameters += numel
    return Footprint(parameters, nbytes)


def planned(inventory: Inventory, dims: Iterable[Dim], without: Collection[str] = ()) -> Footprint:
    """All weights that these dims are written in, as they are, but for those ``without``.

    Each tensor counts once: a sum over dims would count a weight that two of them share (a width
    and a rank) twice.
    """
    names = {place.tensor for dim in dims for place in dim.places}.difference(without)
    stored: dict[object, TensorInfo] = {}
    for name in sorted(names):
        tensor = inventory.tensors[name]
        key = (tensor.file, tensor.offset, tensor.shape, tensor.stride)
        stored[key if tensor.offset is not None else name] = tensor
    return Footprint(
        sum(tensor.numel for tensor in stored.values()),
        sum(tensor.nbytes for tensor in stored.values()),
    )


def _grown(inventory: Inventory, changes: Sizes) -> dict[tuple[str, int], int]:
    grown: dict[tuple[str, int], int] = defaultdict(int)
    for dim in inventory.dims:
        after = changes.get(dim.name, dim.size)
        if after is not None and after != dim.size:
            for place in dim.places:
                grown[place.tensor, place.axis] += after - dim.size
    return grown


def _dense(module: Module, grown: Mapping[tuple[str, int], int]) -> int:
    """Parameters of the product of the module's factors: the first's columns, the last's rows."""
    first, last = module.gemms[0].weight, module.gemms[-1].weight
    rows = module.out_features + grown.get((last, 0), 0)
    return rows * (module.in_features + grown.get((first, 1), 0))


def bytes_per_unit(inventory: Inventory, dim: Dim) -> int:
    """What one more unit of ``dim`` takes over all of its places, each at its own dtype."""
    total = 0
    for place in dim.places:
        info = inventory.tensors[place.tensor]
        total += info.nbytes // max(info.shape[place.axis], 1)
    return total


def dense_bytes(inventory: Inventory, module: Module) -> int:
    """What the module takes once its factors are multiplied out."""
    return module.out_features * module.in_features * _bytes_per_parameter(inventory, module)


def _bytes_per_parameter(inventory: Inventory, module: Module) -> int:
    """The product is stored in the dtype of the factor that gives its rows."""
    last = inventory.tensors.get(module.gemms[-1].weight)
    if last is None or not last.numel:
        return BYTES_PER_ELEMENT.get(module.dtype, 4)
    return last.nbytes // last.numel

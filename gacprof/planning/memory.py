"""What a checkpoint of other sizes takes, in parameters and in bytes as stored.

Bytes are those of the weights, on disk and in memory alike; headers, the tokenizer, the cache
of keys and values and the activations are not in them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from gacprof.checkpoint.inventory import Dim, Inventory, Module, NewSizes
from gacprof.core.points import BYTES_PER_ELEMENT


@dataclass(frozen=True)
class Footprint:
    """Over a whole checkpoint."""

    parameters: int
    nbytes: int


def footprint(inventory: Inventory, changes: NewSizes) -> Footprint:
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
            nbytes += dense * bytes_per_parameter(inventory, module)
    seen: set[object] = set()
    for tensor in inventory.tensors.values():
        if tensor.name in dropped or tensor.stored_at in seen:
            continue
        seen.add(tensor.stored_at)
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
    tensors = [inventory.tensors[name] for name in sorted(names)]
    stored = {tensor.stored_at: tensor for tensor in tensors}
    return Footprint(
        sum(tensor.numel for tensor in stored.values()),
        sum(tensor.nbytes for tensor in stored.values()),
    )


def _grown(inventory: Inventory, changes: NewSizes) -> dict[tuple[str, int], int]:
    grown: dict[tuple[str, int], int] = defaultdict(int)
    for dim in inventory.dims:
        after = changes.get(dim.name, dim.size)
        if after is not None and after != dim.size:
            for place in dim.places:
                grown[place.tensor, place.axis] += (after - dim.size) * place.per
    return grown


def _dense(module: Module, grown: Mapping[tuple[str, int], int]) -> int:
    """Parameters of the product of the module's factors: the first's columns, the last's rows."""
    first, last = module.gemms[0].weight, module.gemms[-1].weight
    rows = module.out_features + grown.get((last, 0), 0)
    return rows * (module.in_features + grown.get((first, 1), 0))


def bytes_per_parameter(inventory: Inventory, module: Module) -> int:
    """The product is stored in the dtype of the factor that gives its rows."""
    last = inventory.tensors.get(module.gemms[-1].weight)
    if last is None or not last.numel:
        return BYTES_PER_ELEMENT.get(module.dtype, 4)
    return last.nbytes // last.numel


def human_bytes(count: int) -> str:
    """``6.13 MB``, decimal, as ``--memory`` reads it back; never less than there is."""
    for size, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= size:
            return f"{-(-count * 1000 // size) / 1000:.7g} {unit}"
    return f"{count} B"


def dense_parameters(inventory: Inventory) -> int:
    """Parameters of the planned weights were they dense: in × out for a factored weight.

    Each weight counts once, whatever dims it is written in. The width of a pruned layer is
    counted as it is.
    """
    dims = [dim for dim in inventory.dims if dim.adjustable]
    ranks = {dim.name for dim in dims if dim.kind == "rank"}
    factored = [module for module in inventory.modules if ranks & set(module.dims)]
    factors = {gemm.weight for module in factored for gemm in module.gemms}
    dense = sum(module.in_features * module.out_features for module in factored)
    return dense + planned(inventory, dims, without=factors).parameters

"""Multiplying factors out: where two small products are slower than one dense one.

A fused module's weight is outer·inner, group by group for grouped factors, and its bias is the
groups' biases one after the other. The dense tensors get the names that a plain model has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gacprof.checkpoint.inventory import Inventory, Module, TensorInfo
from gacprof.checkpoint.tensors import TensorReader
from gacprof.core import factors
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.resizing.edits import Edit, Sizes
from gacprof.resizing.pieces import Array
from gacprof.resizing.resolve import Resolver
from gacprof.resizing.rows import CHUNK_BYTES, rows


@dataclass(frozen=True)
class Product:
    """A new tensor: its parts' rows one after the other, each part's multiplied by its section
    of ``inner`` (the next as many rows as the part has columns); without inner just joined."""

    name: str
    parts: tuple[Edit, ...]
    inner: Edit | None = None

    @property
    def dtype(self) -> str:
        return self.parts[0].dtype

    @property
    def sources(self) -> tuple[TensorInfo, ...]:
        inner = () if self.inner is None else (self.inner.info,)
        return (*(part.info for part in self.parts), *inner)

    @property
    def shape(self) -> tuple[int, ...]:
        height = sum(part.shape[0] for part in self.parts)
        return (height,) if self.inner is None else (height, self.inner.shape[1])


Output = Edit | Product
"""One tensor of the new checkpoint."""


def fusing(inventory: Inventory, modules: Sequence[str] | None) -> dict[str, int | None]:
    """The sizes that give up the ranks of ``modules``, or of all factored modules."""
    ranks = {
        module.name: [dim for dim in module.dims if inventory.dim(dim).kind == "rank"]
        for module in inventory.modules
        if module.kind in ("factored", "grouped")
    }
    unknown = sorted(set(modules or ()) - ranks.keys())
    if unknown:
        raise PlanError(f"{inventory.path}: '{unknown[0]}' is not a factored module")
    if not ranks:
        raise PlanError(f"{inventory.path} has no factored modules to fuse")
    chosen = ranks if modules is None else {name: ranks[name] for name in modules}
    return {dim: None for dims in chosen.values() for dim in dims}


def fused_modules(inventory: Inventory, sizes: Sizes) -> tuple[Module, ...]:
    """The modules whose ranks ``sizes`` gives up.

    Raises :class:`PlanError` where only some of a module's ranks are, :class:`CheckpointError`
    where one may not change.
    """
    gone = {name for name, size in sizes.items() if size is None}
    found = []
    for module in inventory.modules:
        ranks = {name for name in module.dims if inventory.dim(name).kind == "rank"}
        given_up = ranks & gone
        if not given_up:
            continue
        if given_up != ranks:
            raise PlanError(f"'{module.name}' can be fused with all its ranks or not at all")
        _check(inventory, module, sorted(ranks))
        gone -= ranks
        found.append(module)
    if gone:
        raise PlanError(f"{inventory.path}: '{min(gone)}' is no rank and cannot be fused")
    return tuple(found)


def _check(inventory: Inventory, module: Module, ranks: Sequence[str]) -> None:
    for name in ranks:
        dim = inventory.dim(name)
        inner = next(p for p in dim.places if p.tensor == module.gemms[0].weight)
        if dim.padding == "refused":
            raise CheckpointError(f"'{module.name}' cannot be fused: {dim.why}")
        if inner.axis != 0:
            raise CheckpointError(f"'{module.name}' cannot be fused: it is stored transposed")
    if f"{module.name}.weight" in inventory.tensors:
        raise CheckpointError(f"'{module.name}' cannot be fused: it has a dense weight beside")


def outputs_of(
    inventory: Inventory, edits: Mapping[str, Edit], fused: Sequence[Module]
) -> dict[str, Output]:
    """The tensors of the new checkpoint by name: edits, with products in their factors' place."""
    outputs: dict[str, Output] = dict(edits)
    for module in fused:
        inner, *outer = (edits[gemm.weight] for gemm in module.gemms)
        weight = Product(f"{module.name}.weight", tuple(outer), inner)
        biases = tuple(
            edits[name]
            for name in (_bias(edit.name) for edit in outer)
            if name in inventory.tensors
        )
        made = [weight, *([Product(f"{module.name}.bias", biases)] if biases else [])]
        for product in made:
            for info in product.sources:
                del outputs[info.name]
            outputs[product.name] = product
    return outputs


def _bias(weight: str) -> str:
    return weight.removesuffix(".weight") + ".bias"


def blocks(output: Output, reader: TensorReader, resolver: Resolver) -> Iterator[Array]:
    """The tensor's new elements as consecutive C-contiguous blocks along axis 0."""
    if isinstance(output, Edit):
        for block in rows(resolver.source(output), resolver.axes(output), output.dtype):
            resolver.look_at(output, block)
            yield block
        return
    start = 0
    inner = None if output.inner is None else _whole(output.inner, reader, resolver)
    for part in output.parts:
        for block in blocks(part, reader, resolver):
            if inner is None:
                yield block
                continue
            section = inner[start : start + part.shape[1]]
            step = max(1, CHUNK_BYTES // (8 * section.shape[1]))
            for at in range(0, len(block), step):
                product = factors.widen(block[at : at + step], part.dtype) @ section
                yield factors.narrow(product, output.dtype)
        start += part.shape[1] if inner is not None else 0


def _whole(edit: Edit, reader: TensorReader, resolver: Resolver) -> Array:
    """A tensor in float64, all of it."""
    parts = [factors.widen(block, edit.dtype) for block in blocks(edit, reader, resolver)]
    return np.concatenate(parts)

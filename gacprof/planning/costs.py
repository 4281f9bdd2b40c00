"""What sizes take: parameters, bytes and time, of one choice of sizes or of all joint choices.

Bytes are those of the weights, on disk and in memory alike; headers, the tokenizer, the cache of
keys and values and the activations are not in them. Where a dim's size is an array, so is what it
takes: the tables of coupled dims have one dimension an axis, and a product counts once, at its true
sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import nan, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gacprof.checkpoint.inventory import (
    ROTARY_TABLE,
    Dim,
    Gemm,
    Inventory,
    Module,
    NewSizes,
    TensorInfo,
)
from gacprof.core.points import BYTES_PER_ELEMENT
from gacprof.diagnosing.predict import Predictor
from gacprof.planning.axes import Size, SizeAxis

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Kept = Mapping[str, Sequence[float]]
"""By dim name: the share of energy kept at each size from 0 to the dim's own, or to the original
weight's where that is at hand."""
Growth = Mapping[tuple[str, int | str], Any]
"""What is added to an axis of a tensor (a number) or to a side of a product (N or K)."""


@dataclass(frozen=True)
class Footprint:
    parameters: int
    nbytes: int


def growth(sizes: Iterable[tuple[Dim, Any]]) -> Growth:
    """What dims of these sizes, each a number or an array, add to tensors and products."""
    grown: dict[tuple[str, int | str], Any] = defaultdict(int)
    for dim, size in sizes:
        for place in dim.places:
            key = place.tensor, place.axis
            grown[key] = grown[key] + (size - dim.size) * place.per
        for feed in dim.feeds:
            grown[feed.weight, feed.axis] = grown[feed.weight, feed.axis] + size - dim.size
    return grown


def stored(
    inventory: Inventory,
    modules: Iterable[Module],
    tensors: Iterable[TensorInfo],
    more: Callable[[str, int | str], Any],
    out: Mapping[str, Any],
) -> Footprint:
    """What tensors take whose axes have so much ``more``, or arrays of it. ``out`` is 1 where a
    module's factors are multiplied out, by its name. Rotary tables count as bytes only, as in
    :attr:`Inventory.parameters`."""
    parameters: Any = 0
    nbytes: Any = 0
    gone: dict[str, Any] = {}
    for module in modules:
        if module.name in out:
            rows = module.out_features + more(module.gemms[-1].weight, "N")
            columns = module.in_features + more(module.gemms[0].weight, "K")
            numel = out[module.name] * rows * columns
            parameters = parameters + numel
            nbytes = nbytes + numel * _bytes_per_parameter(inventory, module)
            gone |= dict.fromkeys((gemm.weight for gemm in module.gemms), out[module.name])
    for tensor in tensors:
        numel = prod(size + more(tensor.name, axis) for axis, size in enumerate(tensor.shape))
        numel = numel * (1 - gone.get(tensor.name, 0))
        nbytes = nbytes + numel * (tensor.nbytes // max(tensor.numel, 1))
        if not tensor.name.endswith(ROTARY_TABLE):
            parameters = parameters + numel
    return Footprint(parameters, nbytes)


def footprint(inventory: Inventory, changes: NewSizes) -> Footprint:
    """Parameters and bytes of the checkpoint with these dims resized, all together and exactly:
    where two dims share a tensor (a rank and a width), the product of both counts. A tensor stored
    once under two names counts once."""
    resized = ((d, changes.get(d.name, d.size)) for d in inventory.dims)
    grown = growth((dim, size) for dim, size in resized if size is not None and size != dim.size)
    fused = {name for name, size in changes.items() if size is None}
    out = {m.name: 1 for m in inventory.modules if fused.intersection(m.dims)}
    tensors = _once(inventory.tensors.values())

    def more(name: str, side: int | str) -> int:
        return int(grown.get((name, side), 0))

    return stored(inventory, inventory.modules, tensors, more, out)


def planned(inventory: Inventory, dims: Iterable[Dim], without: Collection[str] = ()) -> Footprint:
    """All weights that these dims are written in, as they are, each once, but for those
    ``without``."""
    names = {place.tensor for dim in dims for place in dim.places}.difference(without)
    tensors = _once(inventory.tensors[name] for name in sorted(names))
    return Footprint(sum(t.numel for t in tensors), sum(t.nbytes for t in tensors))


def _once(tensors: Iterable[TensorInfo]) -> Collection[TensorInfo]:
    found: dict[object, TensorInfo] = {}
    for tensor in tensors:
        found.setdefault(tensor.stored_at, tensor)
    return found.values()


def _bytes_per_parameter(inventory: Inventory, module: Module) -> int:
    """The product is stored in the dtype of the factor that gives its rows."""
    last = inventory.tensors.get(module.gemms[-1].weight)
    if last is None or not last.numel:
        return BYTES_PER_ELEMENT.get(module.dtype, 4)
    return last.nbytes // last.numel


def dense_parameters(inventory: Inventory) -> int:
    """Parameters of the planned weights were they dense: in × out for a factored weight. The width
    of a pruned layer is counted as it is."""
    dims = [dim for dim in inventory.dims if dim.adjustable]
    ranks = {dim.name for dim in dims if dim.kind == "rank"}
    factored = [module for module in inventory.modules if ranks & set(module.dims)]
    factors = {gemm.weight for module in factored for gemm in module.gemms}
    dense = sum(module.in_features * module.out_features for module in factored)
    return dense + planned(inventory, dims, without=factors).parameters


def human_bytes(count: int) -> str:
    """``6.13 MB``, decimal, as ``--memory`` reads it back; never less than there is."""
    for size, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= size:
            return f"{-(-count * 1000 // size) / 1000:.7g} {unit}"
    return f"{count} B"


def share_kept(dim: Dim, size: Size, kept: Kept) -> float | None:
    """The share of energy that a size keeps (None: multiplied out). Padding keeps everything; a
    cut keeps what its spectrum says, None where there is none. A spectrum that reaches beyond the
    dim's size is the original weight's: there a raised size keeps more, not all."""
    shares = kept.get(dim.name)
    known = dim.size if shares is None else max(dim.size, len(shares) - 1)
    if size is None or size >= known:
        return 1.0
    return shares[size] if shares is not None else None


@dataclass(frozen=True)
class CoupledAxes:
    """Axes that are coupled, and what is theirs alone: modules and tensors."""

    axes: tuple[SizeAxis, ...]
    modules: tuple[Module, ...]
    tensors: tuple[TensorInfo, ...]


@dataclass(frozen=True)
class Tables:
    """What every joint choice of a component's sizes takes: arrays with one dimension an axis.
    ``fixed`` is what axes of one size add."""

    predictor: Predictor
    component: CoupledAxes
    fixed: Growth
    kept_of: Kept
    _timed: dict[Predictor, Floats] = field(default_factory=dict)

    @property
    def axes(self) -> tuple[SizeAxis, ...]:
        return self.component.axes

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis.sizes) for axis in self.axes)

    @cached_property
    def sizes(self) -> list[Ints]:
        """Per axis; where it is multiplied out, the size that it has stands there."""
        return [
            np.array([axis.now if size is None else size for size in axis.sizes], np.int64)
            for axis in self.axes
        ]

    def on_axis(self, i: int, values: Iterable[Any], kind: Any = np.float64) -> NDArray[Any]:
        """Values of one axis, to be added to tables."""
        return np.array(list(values), kind).reshape(
            [-1 if j == i else 1 for j in range(len(self.axes))]
        )

    @cached_property
    def _grown(self) -> Growth:
        return growth(
            (dim, self.on_axis(i, self.sizes[i], np.int64))
            for i, axis in enumerate(self.axes)
            for dim in (axis.members if axis.free else ())
        )

    def _more(self, name: str, side: int | str) -> Any:
        return self.fixed.get((name, side), 0) + self._grown.get((name, side), 0)

    @cached_property
    def _out(self) -> dict[str, NDArray[Any]]:
        """By name of each module that may be multiplied out: 1 where it is."""
        found: dict[str, NDArray[Any]] = {}
        for i, axis in enumerate(self.axes):
            if axis.sizes and axis.sizes[-1] is None:
                out = self.on_axis(i, (size is None for size in axis.sizes), np.int64)
                name = axis.members[0].name
                found |= {m.name: out for m in self.component.modules if name in m.dims}
        return found

    @cached_property
    def costs(self) -> tuple[Ints, Ints]:
        """Parameters and bytes of all tensors that the dims are written in."""
        found = stored(
            self.predictor.inventory, self.component.modules, self.component.tensors,
            self._more, self._out,
        )  # fmt: skip
        zeros = np.zeros(self.shape, np.int64)
        return zeros + found.parameters, zeros + found.nbytes

    @property
    def latency_us(self) -> Floats:
        return self.times_by(self.predictor)[0]

    def times_by(self, by: Predictor) -> Floats:
        """Of all products at a predictor's workload [3, …]: µs, NaN where the map lacks one of
        them; their variance, 0 where the map gives no error; and variance² over degrees of freedom,
        which adds up as both do (Welch and Satterthwaite)."""
        if by not in self._timed:
            self._timed[by] = self._times(by)
        return self._timed[by]

    def _times(self, by: Predictor) -> Floats:
        total = np.zeros((*self.shape, 3))
        for module in self.component.modules:
            first, last = module.gemms[0], module.gemms[-1]
            each = sum(self._product(by, gemm, gemm, gemm) for gemm in module.gemms)
            if module.name in self._out:
                bias = any(gemm.bias for gemm in module.gemms)
                dense = Gemm(module.name, module.out_features, module.in_features, bias)
                one = self._product(by, dense, last, first)
                each = np.where(self._out[module.name][..., None], one, each)
            total = total + each
        return np.moveaxis(total, -1, 0)

    def _product(self, by: Predictor, gemm: Gemm, on_n: Gemm, on_k: Gemm) -> Floats:
        """The product's times as :meth:`times_by`, [..., 3]; its sides grow as those of two factors
        do."""
        pairs = np.broadcast_arrays(
            gemm.N + self._more(on_n.weight, "N"), gemm.K + self._more(on_k.weight, "K")
        )
        each, place = np.unique(pairs[0] * (1 << 31) + pairs[1], return_inverse=True)
        place = place.reshape(pairs[0].shape)
        shapes = [divmod(key, 1 << 31) for key in each.tolist()]
        found = [by.gemms([Gemm(gemm.weight, n, k, gemm.bias)]) for n, k in shapes]
        # No plan rests on what was not measured, unless nothing was: a bias apart.
        plain = [by.gemms([Gemm(gemm.weight, n, k)]).scaled for n, k in shapes]
        some = not all(plain)
        latency = [
            nan if e.latency_us is None or (scaled and some) else e.latency_us
            for e, scaled in zip(found, plain, strict=True)
        ]
        variance = np.array([e.variance or 0.0 for e in found])
        degrees = np.array([e.degrees for e in found])
        return np.stack([latency, variance, variance**2 / degrees], -1)[place]

    def kept(self, unknown: float = nan) -> Floats:
        """The share of energy kept, summed over all dims; one that is not known counts so much."""
        total = np.zeros(self.shape)
        for i, axis in enumerate(self.axes):
            for dim in axis.members:
                shares = (share_kept(dim, size, self.kept_of) for size in axis.sizes)
                total = total + self.on_axis(i, (unknown if s is None else s for s in shares))
        return total

    def unchanged(self) -> tuple[int, ...] | None:
        """Where all sizes are as they are, if that is on offer."""
        try:
            return tuple(axis.sizes.index(axis.now) for axis in self.axes)
        except ValueError:
            return None

"""Dims that meet are one choice: which of them meet, and what every joint choice of sizes costs.

Dims that take one common size (a common width for a plain config) are one *axis*. Axes whose dims
meet in a product, or are written in one tensor, are *coupled*: what one costs depends on the
others. So the tables here have one dimension an axis, and hold for every joint choice what the
weights of all these dims take together: a product counts once, at its true sizes. Coupled dims
share nothing with others, so that costs and times of several such groups add up exactly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import nan

import numpy as np
from numpy.typing import NDArray

from gacprof.checkpoint.inventory import Dim, Gemm, Inventory, Module, TensorInfo
from gacprof.diagnosing.predict import Predictor
from gacprof.planning.bounds import Bounds
from gacprof.planning.memory import bytes_per_parameter

Dims = tuple[Dim, ...]
Kept = Mapping[str, Sequence[float]]
"""By dim name: the share of energy kept at each size from 0 to the dim's own, or to the original
weight's where that is at hand."""
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Size = int | None
"""None: the factor pair is multiplied out to one dense weight, and its rank is gone."""


@dataclass(frozen=True)
class Axis:
    """Dims that take one size. ``sizes`` are on offer, ascending, and None last; ``held`` says why
    there is no choice (a pin, or nothing safe is known)."""

    members: Dims
    bounds: Bounds
    sizes: tuple[Size, ...] = ()
    held: str = ""

    @property
    def name(self) -> str:
        first = self.members[0].name
        return first if len(self.members) == 1 else f"{first} and {len(self.members) - 1} more"

    @property
    def now(self) -> int:
        """The largest of their sizes."""
        return max(dim.size for dim in self.members)

    @property
    def alike(self) -> bool:
        return all(dim.size == self.now for dim in self.members)

    @property
    def free(self) -> bool:
        """Whether it decides anything."""
        return len(self.sizes) > 1 or None in self.sizes

    @property
    def may_stay(self) -> bool:
        """Whether the size that they have is allowed."""
        return self.alike and self.bounds.allow(self.now)


@dataclass(frozen=True)
class Component:
    """Axes that are coupled, and what is theirs alone: modules and tensors."""

    axes: tuple[Axis, ...]
    modules: tuple[Module, ...]
    tensors: tuple[TensorInfo, ...]


def components(inventory: Inventory, axes: Sequence[Axis]) -> list[Component]:
    """The axes in groups that are coupled. One of a single size decides nothing, so that it couples
    no others; every weight belongs to one group."""
    touched = [_touched(inventory, axis) for axis in axes]
    leader = list(range(len(axes)))

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    owner: dict[object, int] = {}
    for i in sorted(range(len(axes)), key=lambda i: not axes[i].free):
        for key in touched[i]:
            first = owner.setdefault(key, i)
            if axes[first].free and axes[i].free:
                leader[find(i)] = find(first)
    own: dict[int, tuple[list[Axis], list[Module], list[TensorInfo]]] = {}
    for i, axis in enumerate(axes):
        own.setdefault(find(i), ([], [], []))[0].append(axis)
    for key, i in owner.items():
        _, modules, tensors = own[find(i)]
        what = touched[i][key]
        if isinstance(what, Module):
            modules.append(what)
        else:
            tensors.append(what)
    return [Component(tuple(a), tuple(m), tuple(t)) for a, m, t in own.values()]


def _touched(inventory: Inventory, axis: Axis) -> dict[object, Module | TensorInfo]:
    """The modules that the dims of an axis take part in, and the tensors that they are written in,
    each stored one once."""
    found: dict[object, Module | TensorInfo] = {}
    for dim in axis.members:
        for module in inventory.modules_of(dim.name):
            found["module", module.name] = module
        for place in dim.places:
            info = inventory.tensors[place.tensor]
            found.setdefault(info.stored_at, info)
    return found


Growth = Mapping[int, tuple[int, int]]
"""By axis: a size s of it adds ``times · s − now`` to one side of a product or tensor."""


class Grown:
    """What dims of one size each, given here, add to the sides of products and tensors."""

    def __init__(self, axes: Iterable[Axis] = ()) -> None:
        self.by: dict[tuple[str, int | str], int] = defaultdict(int)
        for axis in axes:
            for dim in () if axis.free else axis.members:
                more = axis.sizes[0] - dim.size  # type: ignore[operator]
                for place in dim.places if more else ():
                    self.by[place.tensor, place.axis] += more * place.per
                for feed in dim.feeds if more else ():
                    self.by[feed.weight, feed.axis] += more

    def side(self, name: str, side: int | str) -> int:
        return self.by.get((name, side), 0)


@dataclass(frozen=True)
class Tables:
    """What every joint choice of a component's sizes takes: arrays with one dimension an axis, of
    its modules and tensors. Axes of one size have been ``grown`` already; ``limited`` tells the
    times of the workloads that are limited."""

    predictor: Predictor
    component: Component
    grown: Grown
    kept_of: Kept = field(default_factory=dict)
    limited: tuple[Predictor, ...] = ()

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.component.axes

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis.sizes) for axis in self.axes)

    @cached_property
    def sizes(self) -> list[Ints]:
        """Per axis; where it is multiplied out, the size that it has stands there."""
        own = (axis.now for axis in self.axes)
        pairs = zip(self.axes, own, strict=True)
        return [np.array([now if s is None else s for s in a.sizes], np.int64) for a, now in pairs]

    def along(self, i: int, values: Iterable[float]) -> NDArray[np.float64]:
        """Values of one axis, to be added to tables."""
        flat = np.array(list(values), np.float64)
        return flat.reshape([-1 if j == i else 1 for j in range(len(self.axes))])

    def _sizes(self, name: str, side: int | str, size: int) -> Ints:
        """One side of a tensor (a number) or of a product (N or K), which is ``size`` now."""
        total = np.full((1,) * len(self.axes), size + self.grown.side(name, side), np.int64)
        for i, (times, now) in self._growth.get((name, side), {}).items():
            shape = [-1 if j == i else 1 for j in range(len(self.axes))]
            total = total + (times * self.sizes[i] - now).reshape(shape)
        return total

    @cached_property
    def _growth(self) -> Mapping[tuple[str, int | str], Growth]:
        """How each side of a tensor or product grows with the axes that have a choice."""
        found: dict[tuple[str, int | str], dict[int, tuple[int, int]]] = defaultdict(dict)
        for i, axis in enumerate(self.axes):
            for dim in axis.members if axis.free else ():
                sides: list[tuple[str, int | str, int]]
                sides = [(place.tensor, place.axis, place.per) for place in dim.places]
                for name, side, per in [*sides, *((f.weight, f.axis, 1) for f in dim.feeds)]:
                    times, now = found[name, side].get(i, (0, 0))
                    found[name, side][i] = times + per, now + per * dim.size
        return found

    def _out(self, module: Module) -> NDArray[np.bool_] | None:
        """Where the module is multiplied out; None where it never is."""
        for i, axis in enumerate(self.axes):
            if axis.sizes and axis.sizes[-1] is None and axis.members[0].name in module.dims:
                return self.along(i, [size is None for size in axis.sizes]) > 0
        return None

    @cached_property
    def times(self) -> tuple[Floats, Floats]:
        """µs of all products and their variance (0 where the map gives no error); NaN where the map
        lacks one of them."""
        return self._times(self.predictor)

    @cached_property
    def limited_us(self) -> list[Floats]:
        """µs of all products at every workload that is limited."""
        own = self.predictor
        return [self.times[0] if each is own else self._times(each)[0] for each in self.limited]

    def _times(self, by: Predictor) -> tuple[Floats, Floats]:
        total, variance = np.zeros(self.shape), np.zeros(self.shape)
        for module in self.component.modules:
            sides = [(g, self._side(g, "N"), self._side(g, "K")) for g in module.gemms]
            here = [self._product(by, *each) for each in sides]
            latency, spread = sum(h[0] for h in here), sum(h[1] for h in here)
            out = self._out(module)
            if out is not None:
                first, last = module.gemms[0], module.gemms[-1]
                dense = Gemm(
                    module.name, module.out_features, module.in_features,
                    any(gemm.bias for gemm in module.gemms),
                )  # fmt: skip
                wide = self._side(last, "N") - last.N + dense.N
                deep = self._side(first, "K") - first.K + dense.K
                one = self._product(by, dense, wide, deep)
                latency, spread = np.where(out, one[0], latency), np.where(out, one[1], spread)
            total, variance = total + latency, variance + spread
        return total, variance

    @property
    def latency_us(self) -> Floats:
        return self.times[0]

    def _side(self, gemm: Gemm, axis: str) -> Ints:
        return self._sizes(gemm.weight, axis, gemm.N if axis == "N" else gemm.K)

    def _product(self, by: Predictor, gemm: Gemm, wide: Ints, deep: Ints) -> tuple[Floats, Floats]:
        pairs = np.broadcast_arrays(wide, deep)
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
        return np.array(latency)[place], np.array([e.variance or 0.0 for e in found])[place]

    @cached_property
    def costs(self) -> tuple[Ints, Ints]:
        """Parameters and bytes of all tensors that the dims are written in."""
        parameters, nbytes = np.zeros(self.shape, np.int64), np.zeros(self.shape, np.int64)
        outs = {
            gemm.weight: out
            for module in self.component.modules
            if (out := self._out(module)) is not None
            for gemm in module.gemms
        }
        for info in self.component.tensors:
            numel = np.ones((1,) * len(self.axes), np.int64)
            for side, size in enumerate(info.shape):
                numel = numel * self._sizes(info.name, side, size)
            if info.name in outs:
                numel = np.where(outs[info.name], 0, numel)
            parameters = parameters + numel
            nbytes = nbytes + numel * (info.nbytes // max(info.numel, 1))
        for module in self.component.modules:
            out = self._out(module)
            if out is not None:
                first, last = module.gemms[0], module.gemms[-1]
                wide = self._side(last, "N") - last.N + module.out_features
                dense = np.where(
                    out, wide * (self._side(first, "K") - first.K + module.in_features), 0
                )
                parameters = parameters + dense
                nbytes = nbytes + dense * bytes_per_parameter(self.predictor.inventory, module)
        return parameters, nbytes

    def kept(self, unknown: float = nan) -> Floats:
        """The share of energy kept, summed over all dims; one that is not known counts so much."""
        total = np.zeros(self.shape)
        for i, axis in enumerate(self.axes):
            for dim in axis.members:
                shares = (share_kept(dim, size, self.kept_of) for size in axis.sizes)
                total = total + self.along(i, (unknown if s is None else s for s in shares))
        return total

    def unchanged(self) -> tuple[int, ...] | None:
        """Where all sizes are as they are, if that is on offer."""
        try:
            return tuple(axis.sizes.index(axis.now) for axis in self.axes)
        except ValueError:
            return None


def share_kept(dim: Dim, size: Size, kept: Kept) -> float | None:
    """The share of energy that a size keeps (None: multiplied out). Padding keeps everything; a
    cut keeps what its spectrum says, None where there is none. A spectrum that reaches beyond the
    dim's size is the original weight's: there a raised size keeps more, not all."""
    shares = kept.get(dim.name)
    known = dim.size if shares is None else max(dim.size, len(shares) - 1)
    if size is None or size >= known:
        return 1.0
    return shares[size] if shares is not None else None

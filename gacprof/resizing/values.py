"""The new elements of every tensor: here, and only here, decompositions read the data.

The result of a cut, or of what the original weights add, is needed by every tensor of its dim.
It is kept on disk while the checkpoint is being written: a run that was killed goes on with the
very same one, so that the factors of a pair never come from two decompositions that differ by a
sign.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gacprof.checkpoint import Module, Place, TensorReader
from gacprof.core import factors
from gacprof.core.errors import CheckpointError
from gacprof.core.files import replacing
from gacprof.resizing.changes import Change, Edit, NewCheckpoint, NewTensor
from gacprof.resizing.request import Resized
from gacprof.resizing.segments import (
    CHUNK_BYTES,
    Array,
    Mix,
    Segment,
    Stretch,
    Take,
    Zeros,
    compose,
    stream,
)
from gacprof.resizing.workspace import CUTS, finish

Decomposition = dict[str, Array]
"""What was computed for a change: ``left`` and ``right`` (new or added factor entries), or
``indices`` to keep; ``loss`` or ``residual``."""


class Resizer:
    """The new tensors' elements, block by block.

    ``originals`` are the weights of ``base``, from which raised ranks are filled. ``not_finite``
    collects the changed tensors in which NaN or infinity were met. Raises :class:`CheckpointError`
    for a ``base`` that is not what the factors came from.
    """

    def __init__(
        self, reader: TensorReader, new: NewCheckpoint, base: TensorReader | None = None
    ) -> None:
        self.reader, self.new = reader, new
        self.originals = None if base is None else BaseWeights(base, new)
        self.not_finite: list[str] = []
        self._kept: dict[str, Decomposition] = {}
        self._folder: Path | None = None
        self._places = {change.dim.name: i for i, change in enumerate(new.changes)}

    def work_in(self, folder: Path) -> None:
        """Keep decompositions as files of a workspace, the latest in memory too."""
        self._folder = folder

    def blocks(self, tensor: NewTensor) -> Iterator[Array]:
        """The new elements as consecutive C-contiguous blocks along axis 0."""
        if tensor.inner is None:
            for part in tensor.parts:
                yield from self._edited(part, look=not tensor.unchanged)
            return
        dtype = tensor.inner.info.dtype
        inner = np.concatenate([factors.widen(b, dtype) for b in self._edited(tensor.inner)])
        start = 0
        for part in tensor.parts:
            section = inner[start : start + part.shape[1]]
            start += part.shape[1]
            step = max(1, CHUNK_BYTES // (8 * section.shape[1]))
            for block in self._edited(part):
                for at in range(0, len(block), step):
                    product = factors.widen(block[at : at + step], part.info.dtype) @ section
                    yield factors.narrow(product, tensor.dtype)

    def resized(self, change: Change) -> Resized:
        """What became of the dim, with what was lost (see ``cut.py``) or gained."""
        dim, loss, residual = change.dim, None, None
        if not change.pads:
            loss = float(self._decomposition(change)["loss"])
        elif change.informed:
            before, after = self._decomposition(change)["residual"]
            residual = float(before), float(after)
        return Resized(dim.name, dim.kind, dim.size, change.after, change.how, loss, residual)

    def _edited(self, edit: Edit, look: bool = True) -> Iterator[Array]:
        info = edit.info
        for block in stream(self._source(edit), self._axes(edit), info.dtype):
            if look and not factors.all_finite(block, info.dtype):
                look = False
                self.not_finite.append(info.name)
            yield block

    def _source(self, edit: Edit) -> Array:
        """The stored tensor; behind its own entries, those that the original weights add."""
        stored = self.reader.read(edit.info.name)
        for axis, entries in edit.places.items():
            side = "left" if axis == 1 else "right"
            informed = [change for change, _ in entries if change.how == "residual"]
            if informed:
                added = [self._decomposition(change)[side] for change in informed]
                return np.concatenate([stored, *added], axis=axis)
        return stored

    def _axes(self, edit: Edit) -> dict[int, tuple[Segment, ...]]:
        """The segments of every axis that changes; positions are those of :meth:`_source`."""
        axes = {}
        for axis, entries in edit.places.items():
            length = end = edit.info.shape[axis]
            stretches = []
            for change, place in entries:
                segments = self._segments(change, axis, place)
                if change.how == "residual":
                    more = change.after - change.dim.size
                    segments = (*segments, Take(range(end, end + more)))
                    end += more
                stretches.append(Stretch(place.start, change.dim.size * place.per, segments))
            axes[axis] = compose(length, stretches)
        return axes

    def _segments(self, change: Change, axis: int, place: Place) -> tuple[Segment, ...]:
        start = place.start
        stored = Take(range(start, start + change.dim.size * place.per))
        if change.how == "zeros":
            return stored, Zeros((change.after - change.dim.size) * place.per)
        if change.how == "residual":
            return (stored,)
        if change.how == "order":
            return (stored.section(0, change.after),)
        found = self._decomposition(change)
        if change.how == "magnitude":
            return (Take(tuple(int(start + i) for i in found["indices"])),)
        return (Mix(start, found["left"] if axis == 1 else found["right"].T),)

    def _decomposition(self, change: Change) -> Decomposition:
        name = change.dim.name
        if name not in self._kept:
            if self._folder is not None:
                self._kept = {name: self._stored(self._folder, change)}
            else:
                self._kept[name] = self._decompose(change)
        return self._kept[name]

    def _stored(self, folder: Path, change: Change) -> Decomposition:
        """The decomposition from its file, which is made first unless a killed run left it."""
        path = folder / CUTS / f"{self._places[change.dim.name]}.npz"
        if not path.exists():
            with replacing(path) as temporary, temporary.open("wb") as file:
                np.savez(file, allow_pickle=False, **self._decompose(change))
            finish(folder, path)
        with np.load(path, allow_pickle=False) as stored:
            return dict(stored)

    def _decompose(self, change: Change) -> Decomposition:
        matrices = self._matrices(change)
        if change.how == "magnitude":
            kept = factors.by_magnitude([(m, axis) for axis, m in matrices], change.after)
            return {"indices": np.asarray(kept.indices), "loss": np.asarray(kept.loss)}
        pair = dict(matrices)
        if change.how == "residual":
            return self._complete(change, pair[1], pair[0])
        if change.how == "order":
            known = pair.keys() == {0, 1}
            loss = factors.loss_of_tail(pair[1], pair[0], change.after) if known else np.nan
            return {"loss": np.asarray(loss)}
        new = factors.redistribute(pair[1], pair[0], change.after)
        return {"left": new.left, "right": new.right, "loss": np.asarray(new.loss)}

    def _complete(self, change: Change, u: factors.Stored, v: factors.Stored) -> Decomposition:
        assert self.originals is not None  # it informed the change
        found = factors.complete(
            self.originals.weight(change), u, v, change.after - change.dim.size
        )
        if not np.isfinite(found.before) or found.before >= 1:  # no nearer than zeros are
            raise CheckpointError(
                f"'{change.dim.name}': its factors have nothing in common with the weight in "
                f"{self.originals.inventory.path} (‖W − u·v‖ / ‖W‖ = {found.before:.3g}): was it "
                "compressed from another model?"
            )
        return {
            "left": factors.narrow(found.left, u.dtype),
            "right": factors.narrow(found.right, v.dtype),
            "residual": np.asarray([found.before, found.after]),
        }

    def _matrices(self, change: Change) -> list[tuple[int, factors.Stored]]:
        """The dim's stretch of every matrix that it is written in, with its axis there.

        Biases are left out: their size says nothing about a width's importance.
        """
        found = []
        for place in change.dim.places:
            info = self.reader.info(place.tensor)
            if len(info.shape) != 2:
                continue
            stretch = slice(place.start, place.start + change.dim.size)
            values = self.reader.read(place.tensor)
            values = values[stretch] if place.axis == 0 else values[:, stretch]
            found.append((place.axis, factors.Stored(values, info.dtype)))
        return found


class BaseWeights:
    """The dense weights that the factors of ``new.inventory`` came from, by dim. Raises
    :class:`CheckpointError` where one has no original, before anything is written."""

    def __init__(self, reader: TensorReader, new: NewCheckpoint) -> None:
        self.inventory = reader.inventory
        self._reader = reader
        self._modules = {dim: module for module in new.inventory.modules for dim in module.dims}
        self._dense = {m.name: m for m in self.inventory.modules if m.kind == "dense"}
        for change in new.changes:
            if change.informed:
                self._check(change)

    def weight(self, change: Change) -> factors.Stored:
        """The original [out, in] of the dim's factors; of a group its own rows."""
        module = self._modules[change.dim.name]
        name = self._dense[module.name].gemms[0].weight
        values = self._reader.read(name)[_rows(module, change)]
        return factors.Stored(values, self._reader.info(name).dtype)

    def _check(self, change: Change) -> None:
        module = self._modules[change.dim.name]
        original = self._dense.get(module.name)
        where = f"{self.inventory.path} has no original for '{module.name}'"
        if original is None:
            raise CheckpointError(f"{where}: no dense layer of that name; give another base")
        info = self._reader.info(original.gemms[0].weight)
        wanted = (module.out_features, module.in_features)
        if info.shape != wanted:
            raise CheckpointError(
                f"{where}: its {info.name} is {list(info.shape)}, {list(wanted)} is needed"
            )
        if info.dtype not in factors.COMPUTABLE:
            raise CheckpointError(f"{where}: its {info.name} is stored as {info.dtype}")
        if any(p.axis != int(p.tensor != module.gemms[0].weight) for p in change.dim.places):
            raise CheckpointError(f"'{module.name}' is stored transposed: it cannot take a base")


def _rows(module: Module, change: Change) -> slice:
    """The rows of the module's weight that are the dim's group."""
    groups = module.gemms[1:]
    tensors = {place.tensor for place in change.dim.places}
    at = next(i for i, gemm in enumerate(groups) if gemm.weight in tensors)
    start = sum(gemm.N for gemm in groups[:at])
    return slice(start, start + groups[at].N)

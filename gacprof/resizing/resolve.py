"""From a change to the pieces of an axis: here, and only here, decompositions read the data.

The result of a cut, or of what the original weights add, is needed by every tensor of its dim.
It is kept on disk while the checkpoint is being written: a run that was killed goes on with the
very same one, so that the factors of a pair never come from two decompositions that differ by a
sign.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gacprof.checkpoint.tensors import TensorReader
from gacprof.core import factors
from gacprof.core.factors import complete
from gacprof.core.files import replacing
from gacprof.resizing.edits import Change, Edit
from gacprof.resizing.extension import Extended, Source
from gacprof.resizing.originals import Originals, refuse_strangers
from gacprof.resizing.pieces import Copy, Mix, Piece, Stretch, Take, Zeros, compose

Result = dict[str, NDArray[Any]]


class Resolver:
    """Turns edits into pieces. ``folder`` is where the results of decompositions are kept.

    ``not_finite`` collects the changed tensors in which NaN or infinity were met.
    """

    def __init__(
        self,
        reader: TensorReader,
        changes: Iterable[Change],
        folder: Path,
        originals: Originals | None = None,
    ) -> None:
        self._reader = reader
        self._folder = folder
        self._originals = originals
        self._number = {change.dim.name: i for i, change in enumerate(changes)}
        self._latest: tuple[str, Result] | None = None
        self.not_finite: list[str] = []

    def axes(self, edit: Edit) -> dict[int, tuple[Piece, ...]]:
        """The pieces of every axis of a tensor that changes; positions are of :meth:`source`."""
        axes = {}
        for axis, entries in edit.places.items():
            length = end = edit.info.shape[axis]
            stretches = []
            for change, place in entries:
                pieces = self._pieces(change, axis, place.start)
                if change.how == "residual":
                    more = change.after - change.dim.size
                    pieces = (*pieces, Copy(end, end + more))
                    end += more
                stretches.append(Stretch(place.start, change.dim.size, pieces))
            axes[axis] = compose(length, stretches)
        return axes

    def source(self, edit: Edit) -> Source:
        """The stored tensor; behind its own entries, those that the original weights add."""
        stored = self._reader.read(edit.name)
        for axis, entries in edit.places.items():
            informed = [change for change, _ in entries if change.how == "residual"]
            if informed:
                side = "left" if axis == 1 else "right"
                added = [self._result(change)[side] for change in informed]
                return Extended(stored, np.concatenate(added, axis=axis), axis)
        return stored

    def look_at(self, edit: Edit, block: NDArray[Any]) -> None:
        """Remember a changed tensor whose new entries are not all finite."""
        if edit.name not in self.not_finite and not factors.all_finite(block, edit.dtype):
            self.not_finite.append(edit.name)

    def loss(self, change: Change) -> float | None:
        """What a cut loses (see ``factors.py`` for the measure of each way); None for padding."""
        return None if change.action == "pad" else float(self._result(change)["loss"])

    def residual(self, change: Change) -> tuple[float, float] | None:
        """‖W − u·v‖ / ‖W‖ before and after, where the original weights filled a rank."""
        if change.how != "residual":
            return None
        before, after = self._result(change)["residual"]
        return float(before), float(after)

    def _pieces(self, change: Change, axis: int, start: int) -> tuple[Piece, ...]:
        size = change.dim.size
        if change.how == "zeros":
            return Copy(start, start + size), Zeros(change.after - size)
        if change.how == "residual":
            return (Copy(start, start + size),)
        if change.how == "order":
            return (Copy(start, start + change.after),)
        result = self._result(change)
        if change.how == "magnitude":
            return (Take(tuple(int(start + i) for i in result["indices"])),)
        return (Mix(start, result["left"] if axis == 1 else result["right"].T),)

    def _result(self, change: Change) -> Result:
        name = change.dim.name
        if self._latest is not None and self._latest[0] == name:
            return self._latest[1]
        path = self._folder / f"{self._number[name]}.npz"
        if not path.exists():
            result = self._compute(change)
            with replacing(path) as temporary, temporary.open("wb") as file:
                np.savez(file, allow_pickle=False, **result)
        with np.load(path, allow_pickle=False) as stored:
            self._latest = name, dict(stored)
        return self._latest[1]

    def _compute(self, change: Change) -> Result:
        if change.how == "magnitude":
            matrices = self._matrices(change)
            kept = factors.by_magnitude([(m, axis) for axis, m in matrices], change.after)
            return {"indices": np.asarray(kept.indices), "loss": np.asarray(kept.loss)}
        pair = dict(self._matrices(change))
        if change.how == "residual":
            return self._completed(change, pair[1], pair[0])
        if change.how == "order":
            if pair.keys() != {0, 1}:
                return {"loss": np.asarray(np.nan)}
            return {"loss": np.asarray(factors.loss_of_tail(pair[1], pair[0], change.after))}
        new = factors.redistribute(pair[1], pair[0], change.after)
        return {"left": new.left, "right": new.right, "loss": np.asarray(new.loss)}

    def _completed(self, change: Change, u: factors.Stored, v: factors.Stored) -> Result:
        if self._originals is None:
            raise ValueError(f"{change.dim.name}: no original weights at hand")
        weight = self._originals.weight(change)
        found = complete(weight, u, v, change.after - change.dim.size)
        refuse_strangers(change, found.before, self._originals.inventory.path)
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
            info = self._reader.info(place.tensor)
            if len(info.shape) != 2:
                continue
            stretch = slice(place.start, place.start + change.dim.size)
            values = self._reader.read(place.tensor)
            values = values[stretch] if place.axis == 0 else values[:, stretch]
            found.append((place.axis, factors.Stored(values, info.dtype)))
        return found

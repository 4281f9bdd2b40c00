"""From a change to the pieces of an axis: here, and only here, cuts read the data.

A cut's result is needed by every tensor of its dim. It is kept on disk while the checkpoint is
being written: a run that was killed goes on with the very same cut, so that the factors of a
pair never come from two decompositions that differ by a sign.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gacprof.checkpoint.tensors import TensorReader
from gacprof.factors import cut
from gacprof.files import replacing
from gacprof.realigning.edits import Change, Edit
from gacprof.realigning.pieces import Copy, Mix, Piece, Stretch, Take, Zeros, compose

Result = dict[str, NDArray[Any]]


class Resolver:
    """Turns edits into pieces. ``folder`` is where the results of cuts are kept."""

    def __init__(self, reader: TensorReader, changes: Iterable[Change], folder: Path) -> None:
        self._reader = reader
        self._folder = folder
        self._number = {change.dim.name: i for i, change in enumerate(changes)}
        self._latest: tuple[str, Result] | None = None

    def axes(self, edit: Edit) -> dict[int, tuple[Piece, ...]]:
        """The pieces of every axis of a tensor that changes."""
        return {
            axis: compose(
                edit.info.shape[axis],
                [
                    Stretch(place.start, change.dim.size, self._pieces(change, axis, place.start))
                    for change, place in entries
                ],
            )
            for axis, entries in edit.places.items()
        }

    def loss(self, change: Change) -> float | None:
        """What a cut loses (see ``cut.py`` for the measure of each way); None for padding."""
        return None if change.action == "pad" else float(self._result(change)["loss"])

    def _pieces(self, change: Change, axis: int, start: int) -> tuple[Piece, ...]:
        size = change.dim.size
        if change.how == "zeros":
            return Copy(start, start + size), Zeros(change.after - size)
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
            kept = cut.by_magnitude([(m, axis) for axis, m in matrices], change.after)
            return {"indices": np.asarray(kept.indices), "loss": np.asarray(kept.loss)}
        pair = dict(self._matrices(change))
        if change.how == "order":
            if pair.keys() != {0, 1}:
                return {"loss": np.asarray(np.nan)}
            return {"loss": np.asarray(cut.loss_of_tail(pair[1], pair[0], change.after))}
        new = cut.redistribute(pair[1], pair[0], change.after)
        return {"left": new.left, "right": new.right, "loss": np.asarray(new.loss)}

    def _matrices(self, change: Change) -> list[tuple[int, cut.Stored]]:
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
            found.append((place.axis, cut.Stored(values, info.dtype)))
        return found

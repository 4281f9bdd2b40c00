"""The original weights, where they are at hand: what a raised rank is filled from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from gacprof.checkpoint.inventory import Inventory, Module
from gacprof.checkpoint.tensors import TensorReader
from gacprof.core.errors import CheckpointError
from gacprof.core.factors import COMPUTABLE, Stored
from gacprof.resizing.edits import Change


class Originals:
    """The dense weights that the factors of ``inventory`` came from, by dim."""

    def __init__(self, reader: TensorReader, inventory: Inventory) -> None:
        self._reader = reader
        self._inventory = inventory
        self._modules = {dim: m for m in inventory.modules for dim in m.dims}
        self._originals = {m.name: m for m in reader.inventory.modules if m.kind == "dense"}

    @property
    def inventory(self) -> Inventory:
        return self._reader.inventory

    def inform(self, changes: Iterable[Change]) -> tuple[Change, ...]:
        """The changes, of which raised ranks are to be filled from here.

        Raises :class:`CheckpointError` where one has no original, before anything is written.
        """
        return tuple(
            replace(self._checked(change), informed=True)
            if change.dim.kind == "rank" and change.action == "pad"
            else change
            for change in changes
        )

    def weight(self, change: Change) -> Stored:
        """The original [out, in] of the dim's factors; of a group its own rows."""
        module = self._modules[change.dim.name]
        name = self._originals[module.name].gemms[0].weight
        start, height = self._rows(module, change)
        values = self._reader.read(name)[start : start + height]
        return Stored(values, self._reader.info(name).dtype)

    def _checked(self, change: Change) -> Change:
        module = self._modules[change.dim.name]
        where = f"{self._reader.inventory.path} has no original for '{module.name}'"
        original = self._originals.get(module.name)
        if original is None:
            raise CheckpointError(f"{where}: no dense layer of that name; give another base")
        info = self._reader.info(original.gemms[0].weight)
        wanted = (module.out_features, module.in_features)
        if info.shape != wanted:
            raise CheckpointError(
                f"{where}: its {info.name} is {list(info.shape)}, {list(wanted)} is needed"
            )
        if info.dtype not in COMPUTABLE:
            raise CheckpointError(f"{where}: its {info.name} is stored as {info.dtype}")
        if any(p.axis != int(p.tensor != module.gemms[0].weight) for p in change.dim.places):
            raise CheckpointError(f"'{module.name}' is stored transposed: it cannot take a base")
        return change

    def _rows(self, module: Module, change: Change) -> tuple[int, int]:
        _, *outer = module.gemms
        heights = [gemm.N for gemm in outer]
        tensors = {place.tensor for place in change.dim.places}
        i = next(i for i, gemm in enumerate(outer) if gemm.weight in tensors)
        return sum(heights[:i]), heights[i]


def refuse_strangers(change: Change, before: float, base: str) -> None:
    """Raise :class:`CheckpointError` where factors are no nearer to the base than zeros are."""
    if not np.isfinite(before) or before >= 1:
        raise CheckpointError(
            f"'{change.dim.name}': its factors have nothing in common with the weight in {base} "
            f"(‖W − u·v‖ / ‖W‖ = {before:.3g}): was it compressed from another model?"
        )

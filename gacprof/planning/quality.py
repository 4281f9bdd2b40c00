"""The value of sizes: what an objective counts, and what a cut loses.

A *loss curve* of a dim is what its sizes lose: the share of the factors' energy, read from the
checkpoint, or the loss that a compressor measured. What a cut to another size loses is not known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from gacprof.checkpoint.inventory import Dim, Inventory, NewSizes
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.core.files import read_json
from gacprof.core.verdicts import Bools, Floats, Ints

ObjectiveName = Literal["quality", "pad", "gac"]
LossCurves = Mapping[str, Mapping[int, float]]  # what sizes lose, by dim name and size
Losses = Mapping[str, Mapping[int, float] | Sequence[float]]
"""Loss curves as a user gives them: by size, or those of the sizes 0, 1, 2 …"""
Scores = Mapping[str, float]


@dataclass(frozen=True)
class Objective:
    """What a plan maximises. ``quality``: the least loss by ``losses`` (curves by dim); ``pad``:
    the fewest parameters without a cut; ``gac``: Eq. 4 of arXiv 2604.09595, importance × parameters
    gained, Σ sᵢ · (|Wᵢ(d)| − |W*ᵢ|), by ``scores`` (1 for a dim without one)."""

    name: ObjectiveName
    losses: LossCurves = field(default_factory=dict)
    scores: Scores = field(default_factory=dict)

    def loss(self, dim: Dim, size: int | None) -> float | None:
        """Return the loss at a size; None where it is not known. A larger size that was not
        measured, and merging, lose what the present size loses."""
        curve = self.losses.get(dim.name, {})
        is_cut = size is not None and size < dim.size
        if size is not None and size in curve:
            return curve[size]
        if is_cut and self.name == "quality":
            return None
        return curve.get(dim.size, 0.0)

    def suits(self, dim: Dim, sizes: Ints) -> Bools:
        """Return which of these sizes the dim may have: what a cut loses must be known."""
        is_cut = sizes < dim.size
        may_grow = not dim.refusal((dim.size // dim.step + 1) * dim.step)
        may_be_cut = np.full(len(sizes), self.name != "pad" and not dim.refusal(dim.size - 1))
        if self.name == "quality":
            may_be_cut &= np.isin(sizes, list(self.losses.get(dim.name, ())))
        is_kept = (sizes == dim.size) | may_grow
        return np.where(is_cut, may_be_cut, is_kept) & (sizes >= 1) & (sizes <= dim.max_size)

    def values(
        self, dims: Sequence[Dim], options: Sequence[NewSizes], parameters: Floats
    ) -> Floats:
        """Return the value of each option: sizes of these dims and their weights' parameters."""
        pairs = zip(options, parameters.tolist(), strict=True)
        return np.array([self.value(dims, sizes, weights) for sizes, weights in pairs])

    def value(self, dims: Sequence[Dim], sizes: NewSizes, parameters: float) -> float:
        """Return the value of these sizes of dims, whose weights then have these parameters."""
        if self.name == "pad":
            return -float(parameters)
        if self.name == "gac":
            gain = 0.0
            for dim in dims:
                more = (sizes[dim.name] or dim.size) - dim.size
                gain += self.scores.get(dim.name, 1.0) * more * dim.params_per_unit
            return gain
        return 0.0 - sum(self.loss(dim, sizes[dim.name]) or 0.0 for dim in dims)


def loss_curves(
    inventory: Inventory, dims: Sequence[Dim], losses: Losses | str | Path | None
) -> LossCurves:
    """Return the given loss curves, or those of a JSON file; else the energy that ordered ranks
    lose.

    Raises :class:`PlanError` where they are no losses by dim and size, or name none of the dims.
    """
    if losses is None:
        ranks = [dim for dim in dims if dim.kind == "rank" and dim.ordered]
        return {dim.name: dict(enumerate(energy_lost(inventory, dim))) for dim in ranks}
    from pydantic import FiniteFloat, NonNegativeInt, TypeAdapter

    kind = dict[str, dict[NonNegativeInt, FiniteFloat] | list[FiniteFloat]]
    try:
        values = losses if isinstance(losses, Mapping) else read_json(Path(losses))
        curves = TypeAdapter(kind).validate_python(values)
    except ValueError as error:  # pydantic's, too
        reason = " ".join(str(error).splitlines()[:3])
        raise PlanError(
            f"the losses are no finite numbers by dim and size ({reason}): give "
            f"{{'{dims[0].name}': [loss at size 0, 1, 2 …]}} or {{…: {{'48': 0.1}}}}"
        ) from None
    if curves and not any(dim.name in curves for dim in dims):
        raise PlanError(f"the losses are of no dim of the checkpoint, such as {dims[0].name}")
    return {
        name: curve if isinstance(curve, dict) else dict(enumerate(curve))
        for name, curve in curves.items()
    }


def energy_lost(inventory: Inventory, dim: Dim) -> list[float]:
    """Return the share of energy that sizes 0 … size of an ordered rank lose.

    For W ≈ u·v with orthonormal directions ‖u[:, i]‖·‖v[i, :]‖ is the singular value σᵢ however Σ
    is split between the factors, so that a cut tail loses Σσᵢ². Where factors are not orthonormal
    it is the energy of their entries as stored: an estimate. One block is read at a time.

    Raises :class:`CheckpointError` for factors that hold NaN or infinity.
    """
    from gacprof.checkpoint.tensors import energies

    energy = np.ones(dim.size)
    for place in dim.places:
        if len(inventory.tensors[place.tensor].shape) == 2:
            whole = energies(inventory, place.tensor, place.axis)
            energy *= whole[place.start : place.start + dim.size]
    total = float(energy.sum())
    if not total < float("inf"):
        raise CheckpointError(
            f"{inventory.path}: the factors of {dim.name} hold NaN or infinity: mend them, or plan "
            "with the objective pad"
        )
    lost = energy[::-1].cumsum()[::-1] / max(total, 1e-300)
    return [*lost.tolist(), 0.0]

"""How much of a factor pair's energy each rank keeps, read from the factors themselves.

For ``W ≈ u·v`` with orthonormal directions, ‖u[:,i]‖·‖v[i,:]‖ is σᵢ however the compressor
split Σ between the factors (√Σ in both, or all of it in one), so a cut tail costs Σσᵢ². Where
the factors are not orthonormal (whitened, or updated later) it is the energy of the entries
as stored: an estimate, and the plan says so.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gacprof.checkpoint.inventory import Dim, Inventory
from gacprof.checkpoint.tensors import TensorReader, open_tensors
from gacprof.core.errors import CheckpointError
from gacprof.core.factors import Stored, norms


def energy_kept(
    inventory: Inventory, dims: Iterable[Dim], reader: TensorReader | None = None
) -> dict[str, list[float]]:
    """For each ordered rank: the share of energy kept at sizes 0 … size (size + 1 values).

    Reads the factors' data, one tensor at a time, through ``reader`` or from the disk. Raises
    :class:`CheckpointError` for factors that are not there or hold NaN or infinity.
    """
    reader = reader or open_tensors(inventory)
    return {dim.name: _kept(reader, dim) for dim in dims if dim.kind == "rank" and dim.ordered}


def _kept(reader: TensorReader, dim: Dim) -> list[float]:
    strengths = np.ones(dim.size)
    for place in dim.places:
        info = reader.info(place.tensor)
        if len(info.shape) != 2:
            continue
        stored = Stored(reader.read(place.tensor), info.dtype)
        with np.errstate(over="ignore"):
            here = norms(stored, place.axis)
        here = here[place.start : place.start + dim.size]
        if not np.isfinite(here).all():
            raise CheckpointError(
                f"{reader.inventory.path}: '{place.tensor}' holds NaN or infinity: what "
                f"'{dim.name}' keeps of its energy cannot be told; mend the tensor, or plan with "
                "the objective pad"
            )
        strengths = strengths * here
    energy = np.square(strengths)
    total = float(energy.sum())
    if not total > 0:
        return [1.0] * (dim.size + 1)
    kept = np.concatenate([[0.0], np.cumsum(energy)]) / total
    return [float(min(1.0, share)) for share in kept]

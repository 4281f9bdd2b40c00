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
from gacprof.factors.cut import Stored, norms


def energy_kept(inventory: Inventory, dims: Iterable[Dim]) -> dict[str, list[float]]:
    """For each ordered rank: the share of energy kept at sizes 0 … size (size + 1 values).

    Reads the factors' data, one tensor at a time. Raises :class:`CheckpointError`.
    """
    reader = open_tensors(inventory)
    return {dim.name: _kept(reader, dim) for dim in dims if dim.kind == "rank" and dim.ordered}


def _kept(reader: TensorReader, dim: Dim) -> list[float]:
    strengths = np.ones(dim.size)
    for place in dim.places:
        info = reader.info(place.tensor)
        if len(info.shape) != 2:
            continue
        stored = Stored(reader.read(place.tensor), info.dtype)
        here = norms(stored, place.axis)
        strengths = strengths * here[place.start : place.start + dim.size]
    energy = np.square(strengths)
    total = float(energy.sum())
    if not total > 0:
        return [1.0] * (dim.size + 1)
    kept = np.concatenate([[0.0], np.cumsum(energy)]) / total
    return [float(min(1.0, share)) for share in kept]

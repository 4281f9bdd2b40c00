"""What a plan is after. Each objective says which options are eligible and what one is worth.

======== ============================================================ =======================
name     maximises                                                    eligible sizes
======== ============================================================ =======================
pad      least memory, losing nothing                                 safe, not below the dim
energy   the energy kept (tail of squared singular values)            safe, spectrum known
gac      Σ sᵢ·(|Wᵢ(d)| − |W*ᵢ|), Eq. 4 of arXiv 2604.09595             safe, next to the dim
latency  least predicted latency                                      latency and loss known
loss     least estimate of the loss that cuts add                     safe, estimate known
======== ============================================================ =======================

*Safe* includes sizes that seem so though noise leaves them undecided, and a dim's own size while
nothing says that it is misaligned. A pinned class has its one option whatever the objective, and
where the user allows it every class may stay as it is, safe or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gacprof.checkpoint.inventory import Dim, Inventory
from gacprof.checkpoint.scanning import TensorReader, open_tensors
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.core.factors import Stored, norms
from gacprof.diagnosing.predict import is_number
from gacprof.planning.costs import Floats, Tables

GAC_NEIGHBOURS = 2
"""Eq. 4 is linear in cost, so its optimum puts all but one class at an end of its window
(measured: 98–100 %). It is sound only within about one alignment step: two safe sizes on
either side, like the paper's own example 107.3 → {96, 104, 112, 128}."""

MAX_SCORE = 1e200
"""Scores times parameters stay within a double's range."""


Lost = Mapping[str, Sequence[float]]
"""By dim name: what the sizes 0, 1, 2 … add to the loss."""


@dataclass(frozen=True)
class Objective:
    """``measures`` says what its value counts. It offers ``safe`` sizes only; none below the dim
    where it ``pads``; none of which the loss is unknown where it ``weighs`` losses; and as many
    ``nearest`` ones on either side. ``scores`` are importances by dim name; ``lost`` what a dim's
    sizes 0, 1, 2 … add to the loss: nothing where it is multiplied out."""

    name: str
    measures: str
    safe: bool = True
    pads: bool = False
    weighs: bool = False
    nearest: int | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    lost: Lost = field(default_factory=dict)

    def values(self, tables: Tables) -> Floats:
        """What every joint choice is worth."""
        if self.name == "pad":
            return -tables.costs[0].astype(np.float64)
        if self.name == "energy":
            return tables.kept(0.0)  # unknown only for a width that is pinned below its size
        if self.name == "latency":
            return -np.nan_to_num(tables.latency_us)  # unknown only where all of it is
        total = np.zeros(tables.shape)
        if self.name == "loss":
            for i, axis in enumerate(tables.axes):
                for curve in (self.lost[dim.name] for dim in axis.members):
                    last = len(curve) - 1
                    added = (0.0 if s is None else curve[min(s, last)] for s in axis.sizes)
                    total = total - tables.on_axis(i, added)
            return total
        for i, axis in enumerate(tables.axes):
            mean = sum(self.scores.get(dim.name, 1.0) for dim in axis.members) / len(axis.members)
            gained = [
                sum((size - dim.size) * dim.params_per_unit for dim in axis.members)
                for size in tables.sizes[i].tolist()
            ]
            total = total + tables.on_axis(i, (mean * each for each in gained))
        return total


def objective(
    name: str, scores: Mapping[str, float] | None = None, lost: Lost | None = None
) -> Objective:
    """The objective of that name. Raises :class:`PlanError` listing those there are."""
    if name == "loss" and lost is None:
        raise PlanError(
            "the objective 'loss' needs a calibration text: 'gacprof compress' takes one, of "
            "factor pairs by 'gacprof compress PAIRS --method svd-llm --ratio 0 --objective loss "
            "--calib TEXT'; a checkpoint alone can be planned by energy"
        )
    if scores is not None and name != "gac":
        raise PlanError(f"scores are for the objective 'gac'; '{name}' does not use any")
    made = [
        Objective("pad", "parameters of the planned weights, negated", pads=True),
        Objective("energy", "shares of energy kept, summed over dims", weighs=True),
        Objective(
            "gac", "importance × parameters gained (Eq. 4)",
            nearest=GAC_NEIGHBOURS, scores=dict(scores or {}),
        ),
        Objective("latency", "predicted µs of the planned weights, negated", False, weighs=True),
        Objective("loss", "estimated loss added, negated", weighs=True, lost=lost or {}),
    ]  # fmt: skip
    found = {each.name: each for each in made}
    if name not in found:
        raise PlanError(f"unknown objective '{name}' (there are {', '.join(found)})")
    return found[name]


def check_scores(
    scores: Mapping[str, float] | None, dims: Sequence[str], free: Sequence[str]
) -> None:
    """Importance scores, if there are any, must be numbers ≥ 0, for every dim with a choice.

    ``dims`` are the names of all dims, ``free`` of those with a choice. Raises
    :class:`PlanError`; a dim without a score is refused rather than given one, for the scale of
    the others is not known.
    """
    if scores is None:
        return
    for name, score in scores.items():
        if name not in dims:
            raise PlanError(
                f"the scores name '{name}', which is no dim here; dims are named like '{dims[0]}'"
            )
        if not (is_number(score) and 0 <= score <= MAX_SCORE):
            huge = isinstance(score, int) and abs(score) >= 2**63
            shown = "a huge integer" if huge else f"{score:.4g}" if is_number(score) else score
            raise PlanError(f"the score of '{name}' is {shown}: it must be 0 to {MAX_SCORE:g}")
    lacking = [name for name in free if name not in scores]
    if lacking:
        kind = lacking[0].rpartition(":")[2]
        raise PlanError(
            f"{len(lacking)} of {len(free)} dims have no score, the first is '{lacking[0]}': give "
            f"each its own, or leave them as they are (--pin '*:{kind}=keep')"
        )


def energy_kept(
    inventory: Inventory, dims: Iterable[Dim], reader: TensorReader | None = None
) -> dict[str, list[float]]:
    """For each ordered rank: the share of energy kept at sizes 0 … size (size + 1 values).

    For ``W ≈ u·v`` with orthonormal directions, ‖u[:,i]‖·‖v[i,:]‖ is σᵢ however the compressor
    split Σ between the factors (√Σ in both, or all of it in one), so a cut tail costs Σσᵢ². Where
    the factors are not orthonormal (whitened, or updated later) it is the energy of the entries
    as stored: an estimate.

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
                f"'{dim.name}' keeps of its energy is unknown; mend the tensor, or plan with "
                "the objective pad"
            )
        strengths = strengths * here
    energy = np.square(strengths)
    total = float(energy.sum())
    if not total > 0:
        return [1.0] * (dim.size + 1)
    kept = np.concatenate([[0.0], np.cumsum(energy)]) / total
    return [float(min(1.0, share)) for share in kept]

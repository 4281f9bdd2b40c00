"""What a plan is after. Each objective says which options are eligible and what one is worth.

======== ============================================================ =======================
name     maximises                                                    eligible sizes
======== ============================================================ =======================
pad      least memory, losing nothing                                 safe, not below the dim
energy   the energy kept (tail of squared singular values)            safe, spectrum known
gac      Σ sᵢ·(|Wᵢ(d)| − |W*ᵢ|), Eq. 4 of arXiv 2604.09595             safe, next to the dim
latency  least predicted latency                                      latency and loss known
======== ============================================================ =======================

*Safe* includes sizes that seem so though noise leaves them undecided, and a dim's own size while
nothing says that it is misaligned. A pinned class has its one option whatever the objective, and
where the user allows it every class may stay as it is, safe or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gacprof.checkpoint.inventory import Dim, Inventory
from gacprof.checkpoint.tensors import TensorReader, open_tensors
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.core.factors import Stored, norms
from gacprof.diagnosing.predict import is_number

if TYPE_CHECKING:
    from gacprof.planning.classes import DimClass, Option

GAC_NEIGHBOURS = 2
"""Eq. 4 is linear in cost, so its optimum puts all but one class at an end of its window
(measured: 98–100 %). It is sound only within about one alignment step: two safe sizes on
either side, like the paper's own example 107.3 → {96, 104, 112, 128}."""

MAX_SCORE = 1e200
"""Scores times parameters stay within a double's range."""


class Objective(Protocol):
    name: str
    measures: str

    def eligible(self, group: DimClass) -> list[Option]: ...
    def value(self, group: DimClass, option: Option) -> float: ...


class Pad:
    """Grow every dim to a safe size at the least cost in memory; nothing is cut."""

    name = "pad"
    measures = "parameters, negated"

    def eligible(self, group: DimClass) -> list[Option]:
        largest = max(dim.size for dim in group.members)
        return [o for o in group.options if o.offered and o.size >= largest]

    def value(self, group: DimClass, option: Option) -> float:
        return -float(option.cost)


class Energy:
    """Keep the most energy. Zero padding keeps all and adds none, so it is worth no more."""

    name = "energy"
    measures = "shares of energy kept, summed over dims"

    def eligible(self, group: DimClass) -> list[Option]:
        return [o for o in group.options if o.offered and o.kept is not None]

    def value(self, group: DimClass, option: Option) -> float:
        return option.kept or 0.0  # unknown only for a width that is pinned below its size


class Gac:
    """The paper's Eq. 4 with its importance scores, within its window rule."""

    name = "gac"
    measures = "importance × parameters gained (Eq. 4)"

    def __init__(self, scores: Mapping[str, float] | None = None) -> None:
        self._scores = dict(scores or {})

    def eligible(self, group: DimClass) -> list[Option]:
        offered = [o for o in group.options if o.offered and not o.fused]  # the paper fuses none
        below = [o for o in offered if o.cost < group.before]
        above = [o for o in offered if o.cost >= group.before]
        return below[-GAC_NEIGHBOURS:] + above[:GAC_NEIGHBOURS]

    def value(self, group: DimClass, option: Option) -> float:
        score = sum(self._scores.get(dim.name, 1.0) for dim in group.members) / len(group.members)
        return score * (option.cost - group.before)


class Latency:
    """The fastest by prediction. Sizes need not be safe: what they cost is in the number."""

    name = "latency"
    measures = "predicted µs over dims, negated"

    def eligible(self, group: DimClass) -> list[Option]:
        return [o for o in group.options if o.latency_us is not None and o.kept is not None]

    def value(self, group: DimClass, option: Option) -> float:
        return -(option.latency_us or 0.0)  # unknown only where a pin leaves no choice


def objective(name: str, scores: Mapping[str, float] | None = None) -> Objective:
    """The objective of that name. Raises :class:`PlanError` listing those there are."""
    if scores is not None and name != "gac":
        raise PlanError(f"scores are for the objective 'gac'; '{name}' does not use any")
    made: dict[str, Objective] = {o.name: o for o in (Pad(), Energy(), Gac(scores), Latency())}
    if name not in made:
        raise PlanError(f"unknown objective '{name}' (there are {', '.join(made)})")
    return made[name]


def candidates(goal: Objective, group: DimClass, untouched: bool) -> tuple[Option, ...]:
    """What the solver may choose from; empty where the class has to stay as it is.

    Raises :class:`PlanError` where staying would break what the user asked of its sizes.
    """
    found = goal.eligible(group)
    own = group.as_it_is
    if untouched and group.is_untouched and own is not None and own not in found:
        found.append(own)
    if not found and not all(group.bounds.allow(dim.size) for dim in group.members):
        raise PlanError(f"{group.name} must be {group.bounds}: {_nothing_safe(group)}")
    if not found and not group.is_untouched:
        raise PlanError(f"{group.name} have no common size: {_nothing_safe(group)}")
    return tuple(sorted(found, key=lambda o: (o.fused, o.size)))


def _nothing_safe(group: DimClass) -> str:
    for dim in group.members:
        if dim.most is not None and max(group.bounds.least, group.bounds.multiple) > dim.most:
            return f"the dense weight's rank is {dim.dense_size}"
    why = group.missing or "a wider --window offers more sizes"
    if group.bounds.multiple > 1:
        engine = group.bounds.demanded.partition(":")[0]
        why = f"'gacprof sweep --for CHECKPOINT --preset {engine}' measures such sizes"
    return f"the map knows no such size that suits the objective ({why})"


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


def share_kept(dim: Dim, size: int | None, kept: Mapping[str, Sequence[float]]) -> float | None:
    """The share of energy that a size keeps (None: multiplied out). Padding keeps everything; a
    cut keeps what its spectrum says, None where there is none. A spectrum that reaches beyond the
    dim's size is the original weight's: there a raised size keeps more, not all."""
    shares = kept.get(dim.name)
    known = dim.size if shares is None else max(dim.size, len(shares) - 1)
    if size is None or size >= known:
        return 1.0
    return shares[size] if shares is not None else None

"""What a plan must keep to: parameters, bytes, a quality floor, and times by workload."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import ClassVar, Literal

from gacprof.checkpoint.inventory import Dim, Gemm, Inventory, NewSizes
from gacprof.cliffmap.estimate import Interval
from gacprof.core.errors import PlanError
from gacprof.core.formatting import microseconds, percent
from gacprof.core.points import MAX_DIM
from gacprof.core.texts import LatencyLimit, multiple_of
from gacprof.diagnosing.predict import Predictor
from gacprof.planning.costs import (
    Floats,
    Ints,
    Tables,
    dense_parameters,
    footprint,
    human_bytes,
    planned,
)
from gacprof.planning.problem import Compression, Problem
from gacprof.planning.request import PlanRequest, SizesRequest
from gacprof.solver import InfeasibleBudget

REFERENCES = {"own": "its own sizes", "dense": "the uncompressed model"}
ROUNDING = 1e-12
"""Sums of doubles in another order differ by less than this share."""
ROUNDED: Mapping[str, Callable[[int, int], int]] = {
    "up": lambda d, m: -(-d // m) * m,
    "down": lambda d, m: max(m, d // m * m),
    "nearest": lambda d, m: max(m, (d + m // 2) // m * m),
}
"""What the compressors' own flags make of a size d."""


def rounded(dims: Sequence[Dim], multiple: int, way: str = "down") -> dict[str, int | None]:
    """Every dim at a multiple; a rank at no more than is of use (:attr:`Dim.most`)."""
    return {
        d.name: min(ROUNDED[way](d.size, multiple), d.most or MAX_DIM)
        for d in dims
        if d.adjustable and d.padding == "exact"
    }


@dataclass(frozen=True)
class Limit(ABC):
    """The ``most`` that a plan may take of something. ``asked`` is the limit as the user set it;
    ``refusal`` names it, and the nearest that can be met."""

    asked: str
    refusal: ClassVar[str]
    most: float

    @abstractmethod
    def taken(self, tables: Tables) -> Floats | Ints:
        """What every joint choice of a class takes of it; NaN where that is not known."""

    @abstractmethod
    def met(self, nearest: float) -> tuple[float, str]:
        """A limit that can be met where plans take ``nearest`` at least, also as the user sets
        it."""

    def refused(self, nearest: float, alone: bool = False) -> InfeasibleBudget:
        """``alone``: by ``nearest`` no other limit is kept."""
        least, said = self.met(nearest)
        message = self.refusal.format(self.asked, "without other limits " * alone, said)
        return InfeasibleBudget(message, 0, least, enough=not alone)


@dataclass(frozen=True)
class Ceiling(Limit):
    """The most that the planned weights may take, parameters or bytes. ``as_given`` says such a sum
    in the terms that the user set the ceiling in."""

    refusal = "no plan fits {}; {}the nearest budget that can be met is {}"

    most: int
    as_given: Callable[[int], str]
    what: Literal["parameters", "nbytes"] = "parameters"

    def taken(self, tables: Tables) -> Ints:
        return tables.costs[self.what == "nbytes"]

    def met(self, nearest: float) -> tuple[float, str]:
        return ceil(nearest), self.as_given(ceil(nearest))


@dataclass(frozen=True)
class EnergyFloor(Limit):
    """The least mean share of energy kept over so many dims: at most so much is lost of their
    sum."""

    refusal = "no plan keeps {}; {}the nearest is {}"

    dims: int

    def taken(self, tables: Tables) -> Floats:
        return sum(len(axis.members) for axis in tables.axes) - tables.kept()

    def met(self, nearest: float) -> tuple[float, str]:
        kept = floor((1 - nearest / self.dims) * 1e4) / 1e4
        return kept, f"{kept:.4f}"


@dataclass(frozen=True)
class TimeLimit(Limit):
    """The µs that the products of the planned weights may take at a workload, of which
    ``predictor`` gives the times. ``within`` says a time in the terms of the limit. A relative
    limit is on the change ``amount`` ``against`` these products and ``rest_us`` besides."""

    refusal = "no plan is within {}; {}the nearest is {}"

    predictor: Predictor
    within: Callable[[float], str]
    against: Sequence[Gemm] | None = None
    amount: float = 0.0
    rest_us: float = 0.0

    def taken(self, tables: Tables) -> Floats:
        return tables.times_by(self.predictor)[0]

    def met(self, nearest: float) -> tuple[float, str]:
        least = ceil(nearest * 10) / 10  # as said, it can be met
        return least, self.within(least)

    def bounds(self, changes: NewSizes) -> str:
        """The estimate with these sizes, which alone is held to the limit, with its bounds: of the
        change, where the limit is relative."""
        after = self.predictor.planned(changes)
        if self.against is None:
            found, most = self.predictor.gemms(after).interval, self.most
        else:
            found = change(self.predictor, self.against, after, self.rest_us)
            most = self.amount + ROUNDING

        def shown(value: float) -> str | None:
            return microseconds(value) if self.against is None else percent(value, signed=True)

        if found is None:
            return ""
        beyond = "; it may exceed the limit" if found.high > most else ""
        return (
            f"limit {self.asked}: {shown(found.value)} is an estimate, bounds "
            f"{shown(found.low)} to {shown(found.high)}{beyond}"
        )


def change(
    at: Predictor, before: Sequence[Gemm], after: Sequence[Gemm], rest_us: float = 0.0
) -> Interval | None:
    """What products and ``rest_us`` gain where they change, as a share, with bounds by errors that
    differ from size to size: those of equal products cancel, and those that all times share. None
    where a time or its error is not known."""
    of = {(*at.ranks.key(g), g.N, g.K, g.bias): g for g in (*before, *after)}
    counts = [
        Counter((*at.ranks.key(g), g.N, g.K, g.bias) for g in each) for each in (before, after)
    ]
    parts = counts[0] & counts[1], counts[0] - counts[1], counts[1] - counts[0]
    both, gone, new = (at.gemms([of[key] for key in part.elements()]) for part in parts)
    if both.latency_us is None or gone.latency_us is None or new.latency_us is None:
        return None
    if not (both.own and gone.own and new.own):
        return None
    base = both.latency_us + rest_us

    def share(was: float, becomes: float, stays: float) -> float:
        return (becomes - was) / (stays + was) if stays + was else 0.0

    stay = [us + rest_us for us in both.own]
    return Interval(
        min(share(gone.own[1], new.own[0], us) for us in stay),
        share(gone.latency_us, new.latency_us, base),
        max(share(gone.own[0], new.own[1], us) for us in stay),
    )


@dataclass(frozen=True)
class PlanLimits:
    """What a plan must keep to, over all planned dims; None is no limit. ``break_even`` leaves out
    factor pairs that are slower than the dense product in their place at every workload that is
    limited."""

    parameters: Ceiling | None = None
    memory: Ceiling | None = None
    times: tuple[TimeLimit, ...] = ()
    energy: EnergyFloor | None = None
    break_even: bool = False

    @property
    def every(self) -> tuple[Limit, ...]:
        found = self.parameters, self.memory, *self.times, self.energy
        return tuple(limit for limit in found if limit is not None)


def limits_of(problem: Problem) -> PlanLimits:
    """The request's limits. Raises :class:`PlanError` where a limit is relative to what is not
    known, or the weights that no plan changes exceed it."""
    asked = problem.request
    parameters, memory = _ceilings(problem.inventory, asked)
    times = [
        _time_limit(limit, at, problem.compression, _rest_us(problem, at))
        for limit in problem.limited
        for at in (problem.phases.get(limit.tokens or 0, problem.predictor),)
    ]
    if asked.dominate is not None:
        takes = footprint(problem.inventory, baseline(problem)).parameters
        room = _whole(takes, problem.inventory, like=f" as {asked.dominate} has")
        parameters = min(filter(None, (parameters, room)), key=lambda each: each.most)
        times += [_as_fast(problem, asked.dominate, *each) for each in problem.phases.items()]
    kept, energy = asked.least_kept, None
    if kept is not None:
        dims = sum(len(members) for members, _ in problem.groups)
        most = (1 - kept) * dims * (1 + ROUNDING) + ROUNDING
        energy = EnergyFloor(f"{kept:.4f} of the energy", most, dims)
    return PlanLimits(parameters, memory, tuple(times), energy, break_even=bool(times))


def baseline(problem: Problem) -> NewSizes:
    """The sizes that the plan is to dominate; empty where that is not asked for."""
    asked = problem.request.dominate
    if asked is None:
        return {}
    return problem.compression.rounded or rounded(problem.inventory.dims, multiple_of(asked))


def _as_fast(problem: Problem, name: str, tokens: int, at: Predictor) -> TimeLimit:
    products = at.planned(baseline(problem))
    took = at.gemms(products)
    if took.latency_us is None:
        raise PlanError(f"how long {name} takes at {tokens} tokens is not known: {took.missing}")
    within = f"{{:.1f}} µs at {tokens} tokens, where {name} takes {took.latency_us:.1f} µs"
    most, asked = took.latency_us * (1 + ROUNDING), f"--dominate {name} ({tokens} tokens)"
    return TimeLimit(asked, most, at, within.format, products)


def _rest_us(problem: Problem, at: Predictor) -> float:
    """What the step takes besides the planned weights' products, where a bench says."""
    if problem.whole is None or len(at.tokens) > 1:
        return 0.0
    own = at.planned({})
    step, products = problem.whole.step_us(at, own), at.gemms(own).latency_us
    return 0.0 if step is None or products is None else max(0.0, step - products)


def _time_limit(
    limit: LatencyLimit, predictor: Predictor, known: Compression, rest_us: float
) -> TimeLimit:
    """The limit in µs of the planned weights' products, at the workload of ``predictor``; a
    relative one is on them and on ``rest_us``. Raises :class:`PlanError` where the time that it is
    relative to is not known."""
    if limit.of is None:
        return TimeLimit(limit.text, limit.amount, predictor, "{:.1f} µs".format)
    of = known.given if limit.of == "given" else limit.of
    products = known.products(predictor, of)
    reference = predictor.gemms(products)
    if reference.latency_us is None:
        instead = "dense" if of == "own" else "own"
        raise PlanError(
            f"the latency limit '{limit.text}' is relative to {REFERENCES[of]}, whose time is not "
            f"known: {reference.missing}; sweep it, or give a time in µs or a limit of {instead}"
        )
    own_us = reference.latency_us
    base = own_us + rest_us

    def within(us: float) -> str:
        if us == ceil(own_us * 10) / 10:
            return f"the time of {REFERENCES[of]}"
        share = ceil(((us + rest_us) / base - 1) * 1e4) / 1e2
        return f"{us:.1f} µs ({share:+.2f} %)"

    most = (reference.latency_us + limit.amount * base) * (1 + ROUNDING)
    rest = f" and {rest_us:.1f} µs of the rest of the step" if rest_us else ""
    was = f"{REFERENCES[of]} {reference.latency_us:.1f} µs{rest}"
    asked = f"{limit.text} (at most {most:.1f} µs; {was})"
    return TimeLimit(asked, most, predictor, within, products, limit.amount, rest_us)


def _ceilings(inventory: Inventory, request: SizesRequest) -> tuple[Ceiling | None, Ceiling | None]:
    """The request's limits on parameters and on bytes, of the weights that adjustable dims are
    written in."""
    if not isinstance(request, PlanRequest):
        return None, None
    parameters = memory = None
    if request.budget_parameters is not None:
        parameters = _whole(request.budget_parameters, inventory)
    elif request.budget is not None:
        dense = dense_parameters(inventory)
        parameters = Ceiling(
            f"{request.budget:g} of {dense:,} dense parameters",
            int(min(request.budget * dense, 2.0**100)),
            lambda cost: f"{ceil(cost / dense * 1e4) / 1e4:g} of the dense size",
        )
    if request.memory is not None:
        memory = _whole(request.memory, inventory, "nbytes")
    return parameters, memory


def _whole(
    wanted: float,
    inventory: Inventory,
    what: Literal["parameters", "nbytes"] = "parameters",
    like: str = "",
) -> Ceiling:
    """A limit on the whole checkpoint, ``like`` what it is. Raises :class:`PlanError` for one that
    the weights which no plan changes exceed."""
    now: int = getattr(footprint(inventory, {}), what)
    weights: int = getattr(planned(inventory, [d for d in inventory.dims if d.adjustable]), what)
    amount = "{:,}".format if what == "parameters" else human_bytes
    noun, less = ("parameters", "fewer") if what == "parameters" else ("of weights", "less")
    limit, rest = int(wanted), now - weights
    if limit <= rest:
        raise PlanError(
            f"{amount(limit)} {noun} are {less} than the {amount(rest)} that no plan can change; "
            f"as it is the checkpoint has {amount(now)}"
        )
    return Ceiling(
        f"{amount(limit)} {noun} in all{like}, where there are {amount(now)} now",
        limit - rest,
        lambda cost: f"{amount(cost + rest)} {noun} in all",
        what,
    )

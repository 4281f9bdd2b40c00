"""What a plan must keep to: parameters, bytes, a quality floor, and times by workload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

from gacprof.checkpoint.inventory import Dim, Gemm, Inventory, NewSizes
from gacprof.cliffmap.source import SizeSource
from gacprof.core.errors import PlanError
from gacprof.core.formatting import microseconds
from gacprof.core.points import MAX_DIM
from gacprof.core.texts import LatencyLimit, Reference, latency_limits
from gacprof.diagnosing.predict import Predictor
from gacprof.planning.memory import dense_parameters, footprint, human_bytes, planned
from gacprof.planning.request import OnTimes, PlanRequest, SizesRequest

REFERENCES: Mapping[Reference, str] = {
    "given": "the model as given", "own": "its own sizes", "dense": "the uncompressed model",
}  # fmt: skip
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
class TimeLimit:
    """The most that the products of the planned weights may take at a workload, of which
    ``predictor`` tells the times. ``asked`` is the limit as the user set it, ``within`` says a time
    in its terms."""

    predictor: Predictor
    most_us: float
    asked: str
    within: Callable[[float], str]

    def bounds(self, changes: NewSizes) -> str:
        """The estimated time of these sizes, which alone is held to the limit, with its bounds."""
        took = self.predictor.weights(changes).interval
        if took is None:
            return ""
        beyond = "; it may exceed the limit" if took.high > self.most_us else ""
        return (
            f"limit {self.asked}: {microseconds(took.value)} is an estimate, bounds "
            f"{microseconds(took.low)} to {microseconds(took.high)}{beyond}"
        )


@dataclass(frozen=True)
class Ceiling:
    """The most that the planned weights may take, ``unit`` ``parameters`` or ``bytes``, and how it
    was arrived at. ``as_given`` says such a sum in the terms that the user set the ceiling in."""

    most: int
    unit: str
    basis: str
    as_given: Callable[[int], str]


@dataclass(frozen=True)
class Limits:
    """What a plan must keep to, over all planned dims; None is no limit. ``energy_kept`` is the
    least mean share of energy. ``break_even`` leaves out factor pairs that are slower than the
    dense product in their place at every workload that is limited."""

    parameters: Ceiling | None = None
    memory: Ceiling | None = None
    times: tuple[TimeLimit, ...] = ()
    energy_kept: float | None = None
    break_even: bool = False

    @property
    def active(self) -> tuple[str, ...]:
        """What is limited."""
        given = {
            "parameters": self.parameters, "memory": self.memory,
            "latency": self.times or None, "energy": self.energy_kept,
        }  # fmt: skip
        return tuple(name for name, limit in given.items() if limit is not None)


@dataclass(frozen=True)
class References:
    """What limits are relative to. ``given`` is which model the user gave; ``dense`` the
    uncompressed one, where its sizes are known otherwise than by multiplying pairs out; ``own`` the
    model of the compressor's own sizes, where that is not the plan's; ``rounded`` what the
    compressor's own rounding makes of these, where that is not down."""

    given: Literal["own", "dense"] = "own"
    dense: Inventory | None = None
    own: Inventory | None = None
    rounded: NewSizes | None = None

    def products(self, at: Predictor, of: Literal["own", "dense"]) -> list[Gemm]:
        """The planned weights' products in one of these models."""
        model = self.dense if of == "dense" else self.own
        modules = [m for m in at.inventory.modules if m.dims]
        if model is not None:
            names = {module.name for module in modules}
            return [g for m in model.modules if m.name in names for g in m.gemms]
        dims = (at.inventory.dim(name) for m in modules for name in m.dims)
        fused = {dim.name: None for dim in dims if dim.kind == "rank" and of == "dense"}
        return at.planned(fused)


def time_limit(
    limit: LatencyLimit, predictor: Predictor, known: References, rest_us: float | None = None
) -> TimeLimit:
    """The limit in µs of the planned weights' products, at the workload of ``predictor``.

    ``rest_us`` is what the rest of the model takes, where it was measured: a relative limit is on
    the whole model then. Raises :class:`PlanError` where the time that it is relative to is not
    known.
    """
    if limit.of is None:
        return TimeLimit(predictor, limit.amount, limit.text, "{:.1f} µs".format)
    of = known.given if limit.of == "given" else limit.of
    reference = predictor.gemms(known.products(predictor, of))
    if reference.latency_us is None:
        instead = "dense" if of == "own" else "own"
        raise PlanError(
            f"the latency limit '{limit.text}' is relative to {REFERENCES[of]}, whose time is not "
            f"known: {reference.missing}; sweep it, or give a time in µs or a limit of {instead}"
        )
    base = reference.latency_us + (rest_us or 0.0)

    def within(us: float) -> str:
        change = ceil(((us + (rest_us or 0.0)) / base - 1) * 1e4) / 1e2
        return f"{us:.1f} µs ({change:+.2f} % against {REFERENCES[of]})"

    most = (reference.latency_us + limit.amount * base) * (1 + ROUNDING)
    asked = f"{limit.text} ({limit.amount * 100:+.4g} % against {REFERENCES[of]}, {most:.1f} µs)"
    return TimeLimit(predictor, most, asked, within)


def refuse_unmeasured(
    source: SizeSource, inventory: Inventory, request: OnTimes, by: str = "--for"
) -> None:
    """Raise :class:`PlanError` for limits on time at token counts that the source was not measured
    at, with the sweep (``by`` ``--for`` or ``--ranks``) of all counts that are asked for."""
    limits = latency_limits(request.latency_limit_us)
    tokens, dtype = getattr(request, "tokens", None), getattr(request, "dtype", None)
    absent = [
        limit
        for limit in limits
        if limit.tokens is not None
        and Predictor(source, inventory, {limit.tokens: 1.0}, dtype).tokens_note
    ]
    if not absent:
        return
    workload = Predictor(source, inventory, tokens, dtype).tokens
    counts = ",".join(map(str, sorted({*workload, *(x.tokens for x in limits if x.tokens)})))
    absent_counts = " and ".join(str(x.tokens) for x in absent)
    raise PlanError(
        f"the map '{source.name}' was not measured at {absent_counts} tokens, "
        f"which the latency limit '{absent[0].text}' needs: 'gacprof sweep {by} {inventory.path} "
        f"--tokens {counts}' measures all"
    )


def ceilings(inventory: Inventory, request: SizesRequest) -> tuple[Ceiling | None, Ceiling | None]:
    """The request's limits on parameters and on bytes, of the weights that adjustable dims are
    written in. Raises :class:`PlanError` for one that the rest alone exceeds."""
    if not isinstance(request, PlanRequest):
        return None, None
    now = footprint(inventory, {})
    weights = planned(inventory, [dim for dim in inventory.dims if dim.adjustable])
    parameters = memory = None
    if request.budget_parameters is not None:
        wanted = request.budget_parameters
        parameters = of_all(wanted, now.parameters, weights.parameters, "parameters")
    elif request.budget is not None:
        dense = dense_parameters(inventory)
        parameters = Ceiling(
            int(min(request.budget * dense, 2.0**100)),
            "parameters",
            f"{request.budget:g} of {dense:,} dense parameters",
            lambda cost: f"{ceil(cost / dense * 1e4) / 1e4:g} of the dense size",
        )
    if request.memory is not None:
        memory = of_all(request.memory, now.nbytes, weights.nbytes, "bytes")
    return parameters, memory


def of_all(wanted: float, now: int, weights: int, unit: str) -> Ceiling:
    """A limit on the whole checkpoint: it holds ``now``, ``weights`` of it in planned weights."""
    amount = "{:,}".format if unit == "parameters" else human_bytes
    noun, less = ("parameters", "fewer") if unit == "parameters" else ("of weights", "less")
    limit, rest = int(wanted), now - weights
    if limit <= rest:
        raise PlanError(
            f"{amount(limit)} {noun} are {less} than the {amount(rest)} that no plan can change; "
            f"as it is the checkpoint has {amount(now)}"
        )
    return Ceiling(
        limit - rest,
        unit,
        f"{amount(limit)} {noun} in all ({amount(now)} as it is)",
        lambda cost: f"{amount(cost + rest)} {noun} in all",
    )

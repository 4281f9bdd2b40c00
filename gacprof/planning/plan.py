"""A plan as a value and as a file: the size chosen for every dim, and its certificate."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from gacprof.checkpoint.inventory import Dim, Inventory, Module, NewSizes, TensorInfo, is_derived
from gacprof.core.errors import PlanError
from gacprof.core.files import read_record, write_record
from gacprof.core.results import Table
from gacprof.core.sizes import Interval, Verdict
from gacprof.lint.multiples import ANY_SIZE, EngineMultiple
from gacprof.lint.remedies import Remedy
from gacprof.workload.products import AS_STORED, growth, is_merged

if TYPE_CHECKING:
    from gacprof.workload.products import Lengths, ManySizes

LimitName = Literal["parameters", "bytes", "latency_us"]
UNITS: Mapping[LimitName, str] = {"parameters": "parameters", "bytes": "bytes", "latency_us": "µs"}


@dataclass(frozen=True)
class Choice:
    """The size of one dim, before and after; ``after`` is None where its factors are merged.
    ``verdict`` is on the new size beside the other dims' new sizes. ``loss`` is what a cut gives
    up, a share of energy or a measured loss; None where not known (of a pin). ``required`` is what
    the engine requires of it."""

    dim: str
    kind: str
    before: int
    after: int | None
    verdict: Verdict
    loss: float | None = 0.0
    required: EngineMultiple = ANY_SIZE


@dataclass(frozen=True)
class Plan(Table):
    """A plan: sizes for the dims of the checkpoint that ``fingerprint`` names.

    ``parameters`` and ``nbytes`` are the checkpoint's, before and after; ``latency_us`` is that of
    all products, None where one is not known. ``limits`` are the user's, on all weights and
    products.

    The certificate: of all compared options no choice within the limits has a value above
    ``bound``. ``value`` and ``bound`` are of all choices, and of the whole checkpoint's parameters.
    ``not_compared`` joint sizes of coupled dims were left out.

    Where an ``engine`` was named (with its version and ranks), ``outcome`` is what it does with the
    planned sizes, ``unmended`` are products that it does not serve well even then, and
    ``alternatives`` all changes of the config and its ranks that it would serve better.
    """

    schema: ClassVar[str] = "gacprof.plan/2"
    rows_in: ClassVar[str] = "choices"

    checkpoint: str
    fingerprint: str
    source: str
    provenance: str
    objective: str
    tokens: Mapping[int, float]
    tp: int
    choices: tuple[Choice, ...]
    parameters: tuple[int, int]
    nbytes: tuple[int, int]
    latency_us: tuple[Interval, Interval] | None
    value: float
    bound: float
    limits: Mapping[LimitName, float]
    not_compared: int = 0
    engine: str = ""
    outcome: str = ""
    unmended: tuple[str, ...] = ()
    alternatives: tuple[Remedy, ...] = ()

    @property
    def sizes(self) -> dict[str, int | None]:
        """The new sizes of the dims that change."""
        return {c.dim: c.after for c in self.choices if c.after != c.before}

    def save(self, path: str | Path) -> None:
        """Write the plan to a JSON file."""
        write_record(Path(path), self)


def load_plan(path: str | Path) -> Plan:
    """Read a plan that :meth:`Plan.save` wrote. Raises :class:`GacprofError` for another file."""
    return read_record(Path(path), Plan, "gacprof plan CHECKPOINT")


DECIMAL_UNITS = {"": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
BINARY_UNITS = {"kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40}
TIME_UNITS = {"": 1.0, "us": 1.0, "µs": 1.0, "ms": 1e3, "s": 1e6}

Limits = Mapping[LimitName, float]


def footprint(
    inventory: Inventory,
    tensors: Iterable[TensorInfo],
    sizes: NewSizes = AS_STORED,
    modules: Iterable[Module] = (),
) -> tuple[int, int]:
    """Return the parameters and bytes that these tensors take: :func:`footprints` of one choice."""
    parameters, nbytes = footprints(inventory, tensors, sizes, modules)
    return int(parameters), int(nbytes)


def footprints(
    inventory: Inventory,
    tensors: Iterable[TensorInfo],
    sizes: ManySizes,
    modules: Iterable[Module] = (),
) -> tuple[Lengths, Lengths]:
    """Return the parameters and bytes that these tensors take, for each of the sizes.

    Where the rank of ``modules`` is merged, the dense weight counts in place of the factors. A
    tensor stored once under two names counts once; rotary tables count as bytes only.
    """
    longer: dict[tuple[str, int], Lengths] = {}
    for name in sizes:
        dim = inventory.dim(name)
        for place in dim.places:
            key = place.tensor, place.axis
            longer[key] = longer.get(key, 0) + place.growth(dim.size, dim.size + growth(dim, sizes))
    numels: dict[str, Lengths] = {}
    for info in {info.stored_at: info for info in tensors}.values():
        lengths = [n + longer.get((info.name, axis), 0) for axis, n in enumerate(info.shape)]
        numels[info.name] = math.prod(lengths)
    for module in modules:
        merged = is_merged(module, sizes)
        if np.any(merged):
            first, last = module.gemms[0].weight, module.gemms[-1].weight
            rows = module.out_features + longer.get((last, 0), 0)
            columns = module.in_features + longer.get((first, 1), 0)
            numels[first] = np.where(merged, 0, numels[first])
            numels[last] = np.where(merged, rows * columns, numels[last])
    parameters: Lengths = 0
    nbytes: Lengths = 0
    for name, numel in numels.items():
        info = inventory.tensors[name]
        nbytes = nbytes + numel * (info.nbytes // max(info.numel, 1))
        if not is_derived(name):
            parameters = parameters + numel
    return parameters, nbytes


def limits_of(
    inventory: Inventory,
    dims: Sequence[Dim],
    budget: float | None,
    memory: str | float | None,
    latency: str | float | None,
) -> dict[LimitName, float]:
    """Return the most that the whole checkpoint may take. ``budget`` is a share of the dense
    parameters of the weights that ``dims`` are written in, ``memory`` in bytes, ``latency`` in
    µs."""
    limits: dict[LimitName, float] = {}
    if budget is not None:
        limits["parameters"] = _parameters_at(inventory, dims, budget)
    if memory is not None:
        limits["bytes"] = amount(memory, DECIMAL_UNITS | BINARY_UNITS)
    if latency is not None:
        limits["latency_us"] = amount(latency, TIME_UNITS)
    return limits


def _parameters_at(inventory: Inventory, dims: Sequence[Dim], budget: float) -> int:
    """Return the checkpoint's parameters where the weights of ``dims`` have this share of those
    that they would have with dense weights in place of factor pairs. A pruned width counts as it
    is."""
    ranks = {dim.name for dim in dims if dim.kind == "rank"}
    factored = [module for module in inventory.modules if ranks & set(module.dims)]
    factors = set(chain.from_iterable(module.weights for module in factored))
    places = chain.from_iterable(dim.places for dim in dims)
    planned = {place.tensor for place in places}
    tensors = inventory.tensors
    pruned, _ = footprint(inventory, [tensors[name] for name in planned - factors])
    current, _ = footprint(inventory, [tensors[name] for name in planned])
    dense = pruned + sum(module.in_features * module.out_features for module in factored)
    return inventory.parameters - current + math.floor(budget * dense)


def amount(text: str | float, units: Mapping[str, float]) -> float:
    """Return ``12GB`` or ``25 ms`` in bytes or µs; a number counts as it is."""
    parts = re.fullmatch(r"\s*(\d*\.?\d+(?:e[+-]?\d+)?)\s*([a-zµ]*)\s*", str(text).lower())
    if parts is None or parts[2] not in units or math.isinf(float(parts[1])):
        names = ", ".join(filter(None, units))
        raise PlanError(f"'{text}' is no amount: give a number and one of {names}")
    return float(parts[1]) * units[parts[2]]

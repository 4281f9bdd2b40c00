"""The plan as a file: ``gacprof.plan/1``. One chosen size per adjustable dim, and the proof.

A plan is bound to one checkpoint by the fingerprint of its headers; realigning refuses any
other. Costs are parameters, latencies microseconds per pass over the workload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gacprof.core.errors import PlanError, other_version, short, why_unreadable
from gacprof.core.files import read_text, write_json
from gacprof.core.formatting import Framed
from gacprof.stats.findings import Verdict

SCHEMA: Literal["gacprof.plan/1"] = "gacprof.plan/1"
ANEW = "make it anew: gacprof plan MODEL --out PLAN"


class _PlanModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, strict=True)


Action = Literal["keep", "pad", "truncate", "fuse"]


def action(before: int, after: int | None) -> Action:
    if after is None:
        return "fuse"
    return "keep" if after == before else "pad" if after > before else "truncate"


class Choice(_PlanModel):
    """What becomes of one dim. ``action`` follows from the sizes; ``window`` is what was on offer.

    ``after`` is null where the factor pair is multiplied out and its rank with it (``fuse``);
    ``fusable`` says that this too was on offer. ``latency_before_us`` and
    ``latency_after_us`` are the workload's predicted time in the GEMMs that this dim feeds,
    null where the map does not hold them. ``energy_kept`` is the share of the dim's energy that
    is left, null where no spectrum was read; ``verdict`` is the map's word on the new size, its
    penalty at most ``penalty_high`` (null where that is open), and ``safe`` whether it is safe;
    null where the dim had no choice or the map does not know the size. ``why`` is the reason of an
    undecided size of the rules' best tier.
    """

    dim: str
    kind: str
    before: Annotated[int, Field(gt=0)]
    after: Annotated[int | None, Field(gt=0)]
    action: Action
    fusable: bool = False
    cost: int
    latency_before_us: float | None = None
    latency_after_us: float | None = None
    window: tuple[int, int] | None = None
    candidates: list[int] = Field(default_factory=list)
    energy_kept: float | None = None
    safe: bool | None = None
    verdict: Verdict | None = None
    penalty_high: float | None = None
    why: str = ""

    @model_validator(mode="after")
    def _action_follows(self) -> Choice:
        if self.action != action(self.before, self.after):
            raise ValueError(
                f"'{self.dim}' from {short(self.before)} to {short(self.after or 'dense')} is to "
                f"'{action(self.before, self.after)}', not to '{self.action}'"
            )
        return self


class Budget(_PlanModel):
    """``limit`` parameters over the planned weights; ``used`` by the plan; where it came from.

    A weight counts once, however many of the planned dims it is written in. ``used`` − ``before``
    is what the whole checkpoint gains, all dims resized together, where a sum over dims would
    miss the product of two that share a weight.
    """

    limit: int | None
    used: int
    before: int
    basis: str
    checkpoint_before: int | None = None
    checkpoint_after: int | None = None


class Memory(_PlanModel):
    """Bytes of all weights of the checkpoint as stored, before and after; the limit, if any."""

    limit: int | None
    before: int
    after: int


class Certificate(_PlanModel):
    """What the solver proved: value ≤ bound, cost ≤ limit; ``gap`` is bound − value.

    ``measures`` says what the value counts. ``interrupted`` means that Ctrl-C ended the search.
    ``estimated`` names what of it the proof does not hold for: times that were not measured.
    """

    solver: str
    measures: str = ""
    value: float
    bound: float | None
    gap: float | None
    proved: bool
    interrupted: bool = False
    estimated: str = ""
    notes: list[str] = Field(default_factory=list)


class Workload(_PlanModel):
    """Token counts and their weights: what the predicted latency adds up."""

    tokens: dict[int, float]
    dtype: str


class StepChange(_PlanModel):
    """What a whole step's time becomes against that of a model (``against`` is its fingerprint), as
    a share: within ``low`` and ``high`` in 95 % of cases."""

    against: str
    low: float
    value: float
    high: float


class PhaseTimes(_PlanModel):
    """One token count by itself: predicted µs of the planned weights' products as they are, as
    planned and uncompressed, null where the map lacks one. ``steps`` are changes of the whole step,
    where a bench says what else it holds."""

    workload: str
    tokens: Annotated[int, Field(gt=0)]
    before_us: float | None = None
    after_us: float | None = None
    dense_us: float | None = None
    steps: list[StepChange] = Field(default_factory=list)


class PartSaved(_PlanModel):
    """Where not every time is known: the µs that a plan saves at one token count in the products of
    these ``roles``, with bounds; what it saves in those of the ``open`` roles is not known."""

    tokens: Annotated[int, Field(gt=0)]
    roles: list[str]
    open: list[str]
    low: float
    value: float
    high: float


class EngineDemand(_PlanModel):
    """The ``dims`` of which an engine wants multiples of ``multiple``, why, and who says so."""

    multiple: Annotated[int, Field(gt=0)]
    why: str
    source: str
    dims: int


class EnginePreset(_PlanModel):
    """The engine that the sizes are for, as it was asked for, and what it demands of them."""

    text: str
    demands: list[EngineDemand] = Field(default_factory=list)


class Plan(_PlanModel, Framed):
    schema_: Literal["gacprof.plan/1"] = Field(alias="schema", default=SCHEMA)
    checkpoint: str
    fingerprint: str
    layout: str
    map: str
    device: str
    objective: str
    workload: Workload
    tolerance: float | None = None
    budget: Budget
    memory: Memory | None = None
    choices: list[Choice]
    certificate: Certificate
    preset: EnginePreset | None = None
    predicted_before_us: float | None = None
    predicted_after_us: float | None = None
    saved_us: tuple[float, float, float] | None = None
    """(low, value, high) of what the changes save, where the times are estimates with errors of
    their own; None where a time is not known."""
    saved_in_part: list[PartSaved] = Field(default_factory=list)
    """What is known of it then, by token count; without those of which nothing is known."""
    phases: list[PhaseTimes] = Field(default_factory=list)
    energy_kept: float | None = None
    basis: str = ""
    """``by rules, …`` where the map is by rules: no time was measured here then."""
    warnings: list[str] = Field(default_factory=list)

    def frame_rows(self) -> Iterator[dict[str, Any]]:
        return (choice.model_dump() for choice in self.choices)

    def frame_title(self) -> str:
        changed = sum(choice.after != choice.before for choice in self.choices)
        return (
            f"Plan of {self.checkpoint} by the map {self.map}: {changed} of {len(self.choices)} "
            f"dims change, objective {self.objective}"
        )

    @model_validator(mode="after")
    def _each_dim_once(self) -> Plan:
        names = [choice.dim for choice in self.choices]
        twice = next((n for n, times in Counter(names).items() if times > 1), None)
        if twice is not None:
            raise ValueError(f"'{twice}' is there twice")
        return self

    @property
    def by_tier(self) -> bool:
        """Whether sizes were judged by tiers, no penalty being known: a gain is then claimed of all
        changes together alone, if at all."""
        return self.tolerance is None

    @property
    def changes(self) -> dict[str, int | None]:
        """Dim name → new size (None: fused away), for the dims that change."""
        return {c.dim: c.after for c in self.choices if c.after != c.before}

    def save(self, path: str | Path) -> None:
        write_json(Path(path), self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read and validate. Raises :class:`PlanError` naming the first thing wrong."""
        path = Path(path)
        try:
            text = read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"cannot read the plan {path}: {why_unreadable(error)}") from None
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise PlanError(f"{path} is not a plan this version reads: {_fault(error)}") from None


def _fault(error: ValidationError) -> str:
    """Another version before all else, else the first thing wrong, with its place."""
    faults = {fault["loc"]: fault for fault in error.errors()}
    if ("schema",) in faults:
        return other_version(faults["schema",]["input"], SCHEMA, f"; {ANEW}")
    place, first = next(iter(faults.items()))
    where = ".".join(map(str, place)) or "the file"
    return f"{where}: {first['msg'].removeprefix('Value error, ')[:300]}; {ANEW}"

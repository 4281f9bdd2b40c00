"""A plan as a value and as a file: the size chosen for every dim, and its certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gacprof.core.files import read_record, write_record
from gacprof.core.sizes import Interval, Verdict

SCHEMA = "gacprof.plan/2"

LimitName = Literal["parameters", "bytes", "latency_us"]


@dataclass(frozen=True)
class Option:
    """Joint sizes of a class of coupled dims; a size None is multiplied out to a dense weight.

    ``value`` is the objective's, ``parameters`` and ``latency_us`` those of all weights that the
    dims are written in; ``takes`` is the part of each limit.
    """

    sizes: Mapping[str, int | None]
    value: float
    parameters: int
    latency_us: Interval | None
    takes: Mapping[LimitName, float]

    @property
    def time_us(self) -> float:
        """The estimated latency; 0 where it isn't known."""
        return 0.0 if self.latency_us is None else self.latency_us.value


@dataclass(frozen=True)
class Choice:
    """The size of one dim, before and after; ``after`` is None where its factors are merged.
    ``loss`` is the share of its energy, or the loss, that a cut gives up."""

    dim: str
    kind: str
    before: int
    after: int | None
    verdict: Verdict
    loss: float = 0.0


@dataclass(frozen=True)
class Plan:
    """Sizes for the dims of one checkpoint, which ``fingerprint`` names.

    ``parameters`` and ``nbytes`` are the checkpoint's, before and after; ``latency_us`` that of
    the products that dims feed, None where one isn't known. ``limits`` are those that the user set,
    on all weights and products. The certificate: of all options that
    were compared no choice within the limits has a value above ``bound``.
    """

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

    @property
    def sizes(self) -> dict[str, int | None]:
        """The new sizes of the dims that change."""
        return {c.dim: c.after for c in self.choices if c.after != c.before}

    def save(self, path: str | Path) -> None:
        """Write the plan to a JSON file."""
        write_record(Path(path), self, SCHEMA)


def load_plan(path: str | Path) -> Plan:
    """Read a plan that :meth:`Plan.save` wrote.

    Raises
    ------
    GacprofError
        For a file that is no plan of this version.
    """
    return read_record(Path(path), Plan, SCHEMA, "gacprof plan CHECKPOINT")

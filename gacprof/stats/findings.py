"""What the statistics of a sweep find, as values that a map's file holds.

They stand apart from the code that finds them, so that reading a map imports no numpy.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Verdict = Literal["safe", "misaligned", "undecided"]
Fraction = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Noise(Strict):
    """The A/A floor: what the same point measured twice differs by.

    ``floor`` is the ``quantile`` of the relative differences of ``pairs`` hidden replicates, each
    side from other processes, scaled to the whole sweep; null with the ``reason`` why there is
    none. ``inflation`` is the factor by which the pairs differ more than the errors of the
    points would explain; the errors in the map are multiplied by it.
    """

    floor: Fraction | None
    quantile: float | None = None
    pairs: int = 0
    processes: int = 1
    inflation: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] = 1.0
    reason: str = ""


CheckName = Literal["carry-over", "drift", "contention", "levels", "devices"]


class Check(Strict):
    """A property that the design assumes, tested on the calls themselves.

    ``effect`` is the relative size of what was found, ``bound`` how large it may be by chance.
    """

    name: CheckName
    effect: float
    bound: float
    passed: bool
    message: str


class ResidueClass(Strict):
    """Dims with ``d % modulus`` in ``remainders``, and how they fare against the best class.

    ``ratio`` is the class's latency over that of the fastest class, 1.0 for the fastest,
    each judged against its neighbours on the axis.
    """

    remainders: list[int]
    ratio: Annotated[float, Field(ge=1.0, allow_inf_nan=False)]


class Period(Strict):
    """A repeating structure found in the data: which modulus, which residues together.

    ``classes`` are fastest first; a remainder that no measured dim has is in none of them.
    ``explained`` is how much better a dim's latency is predicted by its neighbours of the
    same residue than by those next to it: 1 is perfectly, 0 is no better.
    """

    modulus: Annotated[int, Field(ge=2)]
    classes: list[ResidueClass]
    explained: float

    @model_validator(mode="after")
    def _classes_are_disjoint(self) -> Period:
        named = [r for c in self.classes for r in c.remainders]
        if len(set(named)) != len(named) or not all(0 <= r < self.modulus for r in named):
            raise ValueError(f"the classes of modulus {self.modulus} overlap or leave its range")
        return self

    def members(self, d: int) -> list[int] | None:
        """The remainders of the class that ``d`` belongs to; None where none was measured."""
        found = (c.remainders for c in self.classes if d % self.modulus in c.remainders)
        return next(found, None)


def classes_of(period: Period | None) -> list[tuple[int, list[int]]]:
    """(modulus, remainders) of each residue class, the fastest first; without a period of all dims
    as one."""
    return [(period.modulus, c.remainders) for c in period.classes] if period else [(1, [0])]

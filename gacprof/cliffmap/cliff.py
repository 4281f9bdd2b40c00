"""A cliff, and what measuring its two sides in turns said of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Size = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class Paired(BaseModel):
    """latency(after) / latency(before) over ``pairs`` measured in turns, A B A B …

    ``ratio`` is the median, between ``low`` and ``high`` with 95 % confidence: free of the
    drift between two visits that are minutes apart.
    """

    ratio: Positive
    low: Positive
    high: Positive
    pairs: Size

    model_config = ConfigDict(extra="forbid", frozen=True)

    def bear_out(self, before: int, after: int, jump: float, floor: float) -> bool:
        """Whether such pairs may be of a cliff of this sign, by the rule for edges
        (:func:`gacprof.cliffmap.detect.edges`): their whole interval lies beyond what is
        explained, and it reaches beyond the floor."""
        if jump > 0:
            proportional = after / before
            return self.low > proportional and self.high / proportional - 1 > floor
        return self.high < 1 and 1 / self.low - 1 > floor


class Cliff(BaseModel):
    """An edge between two neighbouring measured dims where latency jumps.

    ``jump`` is latency(after) / latency(before) − 1, negative where the larger dim is
    faster. ``low`` and ``high`` bound it by the intervals of both medians. Where the curve
    has a period, neighbours are taken within a residue class (``modulus``, ``remainders``):
    the jumps between classes are what the period says. ``paired`` is there where both sides
    were measured in turns too; without it the cliff rests on the sweep's own visits.
    """

    before: Size
    after: Size
    jump: float
    low: float
    high: float
    modulus: Size = 1
    remainders: list[int] = Field(default_factory=lambda: [0])
    cause: str | None = None
    paired: Paired | None = None

    model_config = ConfigDict(extra="forbid", frozen=True)

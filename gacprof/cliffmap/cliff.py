"""A cliff of a curve."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Size = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class Cliff(BaseModel):
    """An edge between two neighbouring measured dims where latency jumps.

    ``jump`` is latency(after) / latency(before) − 1, negative where the larger dim is
    faster. ``low`` and ``high`` bound it by the intervals of both medians. Where the curve
    has a period, neighbours are taken within a residue class (``modulus``, ``remainders``):
    the jumps between classes are what the period says.
    """

    before: Size
    after: Size
    jump: float
    low: float
    high: float
    modulus: Size = 1
    remainders: list[int] = Field(default_factory=lambda: [0])
    cause: str | None = None

    model_config = ConfigDict(extra="forbid", frozen=True)

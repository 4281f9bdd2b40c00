"""What a compression is asked for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from gacprof.compressing.calibration import LENGTH, WINDOWS
from gacprof.compressing.scores import check_score
from gacprof.core.errors import CompressionError
from gacprof.diagnosing.workload import Tokens, is_number
from gacprof.planning.request import WINDOW

OBJECTIVES = ("energy", "gac")


@dataclass(frozen=True)
class CompressRequest:
    """``ratio`` is the share of the parameters to be removed from the layers that the method
    compresses. ``round_to`` asks for the method's own rounding in place of a map.

    ``objective`` is ``energy`` (most energy of the original weights kept) or ``gac`` (the paper's
    Eq. 4, by ``score``); ``latency_limit_us`` is the most time that the workload ``tokens`` may
    take in the compressed weights' products, by the map; ``window`` how far a size may move, as a
    share. ``preset`` names an engine that is to take every size (:mod:`gacprof.planning.presets`).
    ``windows`` of ``length`` tokens are read of the calibration text. ``options`` are the
    method's own. Raises :class:`CompressionError` for a value out of range.
    """

    method: str
    ratio: float
    round_to: int | None = None
    objective: str = "energy"
    score: str | None = None
    latency_limit_us: float | None = None
    tokens: Tokens | None = None
    window: float = WINDOW
    windows: int = WINDOWS
    length: int = LENGTH
    options: dict[str, Any] = field(default_factory=dict)
    preset: str | None = None

    def __post_init__(self) -> None:
        if not is_number(self.ratio) or not 0 < self.ratio < 1:
            meant = f": was {self.ratio / 100:g} meant?" if 2 <= self.ratio < 100 else ""
            raise CompressionError(
                f"the ratio {self.ratio} is not between 0 and 1: it is the share of parameters to "
                f"remove{meant}"
            )
        if self.objective not in OBJECTIVES:
            raise CompressionError(
                f"the objective is '{self.objective}': it must be one of {', '.join(OBJECTIVES)}"
            )
        for name in ("round_to", "windows", "length"):
            value = getattr(self, name)
            least = 2 if name == "length" else 1
            if value is not None and (not is_number(value, int) or value < least):
                raise CompressionError(f"{name} is {value!r}: it must be {least} or more")
        check_score(self.score)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

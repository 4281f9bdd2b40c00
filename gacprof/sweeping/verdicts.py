"""What measuring the sides of edges in turns gave, kept beside a run's samples."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gacprof.cliffmap.cliff import Paired
from gacprof.errors import MeasurementError
from gacprof.files import write_json
from gacprof.points import Point

FILE = "confirmed.json"
SCHEMA = "gacprof.confirmed/1"


@dataclass(frozen=True)
class Verdict:
    """What the pairs say of ``after`` against ``before``: faster, slower, ambiguous or failed.

    ``ratio`` is the median of time(after) / time(before) over the pairs, between ``low`` and
    ``high`` with 95 % confidence; None where a side failed (``reason``).
    """

    before: str
    after: str
    swept_jump: float
    verdict: str
    ratio: float | None
    low: float | None
    high: float | None
    pairs: int
    reason: str = ""

    @property
    def paired(self) -> Paired | None:
        """The pairs as a map keeps them; None where there are none to judge by."""
        if self.ratio is None or self.low is None or self.high is None:
            return None
        return Paired(ratio=self.ratio, low=self.low, high=self.high, pairs=self.pairs)


def write_verdicts(folder: Path, verdicts: Iterable[Verdict]) -> None:
    edges = [asdict(verdict) for verdict in verdicts]
    write_json(folder / FILE, {"schema": SCHEMA, "edges": edges})


def read_verdicts(folder: str | Path) -> list[Verdict]:
    """The verdicts stored with a run; none if none were taken.

    Raises :class:`MeasurementError` for a file that holds something else.
    """
    file = Path(folder) / FILE
    if not file.exists():
        return []
    try:
        data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}")
        verdicts = [Verdict(**edge) for edge in data["edges"]]
        for verdict in verdicts:
            _ = verdict.paired  # numbers that are none are refused here
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise MeasurementError(
            f"{file} holds no verdicts ({_one_line(error)}): delete it, or confirm again"
        ) from None
    return verdicts


def in_turns(folder: Path, points: Iterable[Point]) -> dict[tuple[Point, Point], Paired]:
    """The pairs of a run's edges, by their two points; edges of other points are left out."""
    named = {str(point): point for point in points}
    return {
        (named[verdict.before], named[verdict.after]): paired
        for verdict in read_verdicts(folder)
        if (paired := verdict.paired) and {verdict.before, verdict.after} <= named.keys()
    }


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()}".split("\n")[0]

"""Whether the changes that plans predicted are those that a bench measures.

A realigned or compressed folder keeps what its plan predicted of whole steps, against the model
that the plan was made for and against the uncompressed one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gacprof.checkpoint.scanning import scan
from gacprof.core.errors import GacprofError
from gacprof.core.files import read_json
from gacprof.core.formatting import interval
from gacprof.evaluation.summary import BenchResult, ModelTiming
from gacprof.resizing.output import PROVENANCE

PLAN = "plan.json"
Bounds = tuple[float, float, float]
"""(low, value, high)."""


def predictions(timed: BenchResult) -> Iterator[str]:
    """A sentence for each timing that a plan predicted: by how much, and whether that held.

    A model whose folder keeps no plan, or one made for other models, has none.
    """
    try:
        reference = scan(timed.sources[0]).fingerprint if timed.sources else ""
    except GacprofError:
        return
    for name, source in list(zip(timed.models, timed.sources, strict=True))[1:]:
        phases = _phases(Path(source))
        for timing in (t for t in timed.timings if t.model == name):
            rows = timed.batch * (timing.tokens if timing.kind == "prefill" else 1)
            step = _step(phases, rows, reference)
            if step is not None and timing.ratio is not None and timing.verdict != "identical":
                yield _sentence(timing, step, timing.ratio)


def _sentence(timing: ModelTiming, step: Bounds, ratio: Bounds) -> str:
    least, middle, most = (each - 1 for each in ratio)
    return (
        f"{timing.workload} of {timing.model}: predicted {interval(*step)}, measured "
        f"{interval(least, middle, most)}: {held(step, ratio)}"
    )


def held(step: Bounds, ratio: Bounds) -> str:
    """Whether the measured ``ratio`` lies within the predicted change; *missed* only where the two
    intervals have nothing in common."""
    least, middle, most = (each - 1 for each in ratio)
    if step[0] <= middle <= step[2]:
        return "it held"
    return "it was missed" if most < step[0] or least > step[2] else "whether it held is open"


def _phases(folder: Path) -> Sequence[Mapping[str, Any]]:
    """What a plan predicted of the model in this folder; nothing where no plan is kept there."""
    for name, keys in ((PROVENANCE, ("origin", "phases")), (PLAN, ("phases",))):
        try:
            found: Any = read_json(folder / name)
            for key in keys:
                found = found[key]
        except (OSError, ValueError, TypeError, KeyError):
            continue
        if isinstance(found, list):
            return [phase for phase in found if isinstance(phase, dict)]
    return []


def _step(phases: Sequence[Mapping[str, Any]], rows: int, against: str) -> Bounds | None:
    for phase in phases:
        for step in phase.get("steps") or () if phase.get("tokens") == rows else ():
            try:
                if step["against"] == against:
                    return float(step["low"]), float(step["value"]), float(step["high"])
            except (TypeError, KeyError, ValueError):
                continue
    return None

"""The results in a run folder: each point with its times, as a table, as a cliff map."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.build import MechanismOf, build_map, mechanism_of_kernels
from gacprof.core.errors import MapError, MeasurementError, SuiteError, first_line
from gacprof.core.points import (
    LEVEL,
    Block,
    Call,
    Environment,
    Point,
    PointNote,
    Sample,
    curve_key,
)
from gacprof.devices.datasheet import rates
from gacprof.stats.judge import TOLERANCE
from gacprof.sweeping.store import PARQUET, read_blocks, read_header, read_notes
from gacprof.sweeping.suite import Suite, parse_suite

if TYPE_CHECKING:
    import pandas as pd

MAP_NAME = r"[A-Za-z0-9._-]+"


def environment_of(folder: str | Path) -> Environment:
    """The device and stack that a run folder was measured on."""
    return Environment.from_dict(read_header(Path(folder))["environment"])


def suite_of(folder: str | Path) -> Suite:
    """The suite that a run folder was measured with."""
    return parse_suite(read_header(Path(folder))["suite"], str(folder))


def read_samples(path: Path) -> list[Sample]:
    """What a run folder knows of each point, ordered by when it was first called. Disturbed calls
    are left out where there are others.

    Raises :class:`MeasurementError` for an unreadable folder.
    """
    notes = read_notes(path)
    calls: dict[Point, list[tuple[Block, Call]]] = {}
    for block in (block for block in read_blocks(path) if block.axis != LEVEL):
        for call in block.calls:
            calls.setdefault(call.point, []).append((block, call))
    points = dict.fromkeys([*calls, *notes])
    return [_sample(p, calls.get(p, []), notes.get(p) or PointNote(p)) for p in points]


def _sample(point: Point, calls: list[tuple[Block, Call]], note: PointNote) -> Sample:
    if not calls:
        reason = note.failed or "not called before the sweep ended"
        return Sample(point, (), (), "", "failed", reason, note.kernels)
    kept = [(b, c) for b, c in calls if not (c.disturbed or b.throttled)]
    throttled = "" if kept else next((b.throttled for b, _ in calls if b.throttled), "")
    kept = kept or calls
    last = kept[-1][0]
    return Sample(
        point, tuple(dict.fromkeys(b.axis for b, _ in calls)), tuple(c.us for _, c in kept),
        last.timer, "throttled" if throttled else "ok", throttled or note.failed or note.remark,
        note.kernels, last.sm_clock_mhz, last.mem_clock_mhz, last.temperature_c, last.power_w,
    )  # fmt: skip


def read_frame(path: Path) -> pd.DataFrame:
    """One row a point: dims and flags as columns, all its times, and what they mean.

    ``median_us``, ``tflops``, ``gb_s`` and ``roof_share`` are derived (:func:`.rates`); the
    last is missing for a device whose peaks are not known here.
    """
    import pandas as pd

    environment = environment_of(path)
    rows = []
    for sample in read_samples(path):
        row = asdict(sample)
        point = row.pop("point")
        row |= {"point": sample.point.id, "operator": point["operator"], "dtype": point["dtype"]}
        rows.append(row | sample.point.dim | sample.point.flag | rates(sample, environment))
    return pd.DataFrame(rows)


def build_map_of(
    samples: str | Path,
    name: str | None = None,
    mechanism_of: MechanismOf = mechanism_of_kernels,
) -> CliffMap:
    """The cliff map of a sweep's folder (or of ``samples.parquet`` in it).

    ``mechanism_of`` names what served a point.
    Raises :class:`MeasurementError` for a folder that is none, :class:`MapError` for samples
    that make no map.
    """
    folder = Path(samples)
    if folder.name == PARQUET:
        folder = folder.parent
    if not folder.is_dir():
        why = "it is a file" if folder.exists() else "there is no such folder"
        raise MeasurementError(f"{folder} is not a sweep's folder: {why}")
    if name is not None and not re.fullmatch(MAP_NAME, name):
        raise MapError(
            f"a map's name is of letters, digits, '.', '_' and '-', as a suite's: not {name!r}"
        )
    header = read_header(folder)
    environment = Environment.from_dict(header["environment"])
    try:
        suite, suite_hash = str(header["suite"]["name"]), header["suite_hash"]
        tolerance = float(header["suite"].get("timing", {}).get("tolerance", TOLERANCE))
        if not 0 < tolerance < 1:
            raise ValueError(f"the tolerance is {tolerance}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MeasurementError(
            f"{folder / 'run.json'} lacks or garbles a field: {first_line(error)}"
        ) from None
    blocks = read_blocks(folder)
    return build_map(
        blocks,
        environment,
        name=name or re.sub(r"[^a-z0-9.]+", "-", environment.name.lower()).strip("-"),
        point_notes=read_notes(folder),
        tolerance=tolerance,
        suite=suite,
        suite_hash=suite_hash,
        mechanism_of=mechanism_of,
        unmeasured=_unmeasured(header["suite"], environment.kind, blocks, folder),
    )


def _unmeasured(
    suite: Mapping[str, Any], kind: str, blocks: Iterable[Block], folder: Path
) -> list[str]:
    """Curves of the suite without any block: the sweep was interrupted, or its time was up.

    A suite that cannot be read here (of an operator that only its author has) names none.
    """
    try:
        plans = parse_suite(suite, str(folder)).curves(kind)
    except SuiteError:
        return []
    begun = {curve_key(b.calls[0].point, b.axis) for b in blocks if b.calls and b.axis != LEVEL}
    return [plan.key for plan in plans if plan.key not in begun]

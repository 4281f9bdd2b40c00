"""A run folder's samples as a cliff map."""

from __future__ import annotations

import re
from pathlib import Path

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.build import MechanismOf, build_map, mechanism_of_kernels
from gacprof.cliffmap.judge import TOLERANCE
from gacprof.core.errors import MapError, MeasurementError
from gacprof.core.points import Environment
from gacprof.sweeping.store import PARQUET, read_blocks, read_header, read_notes

MAP_NAME = r"[A-Za-z0-9._-]+"


def build_map_of(
    samples: str | Path,
    name: str | None = None,
    mechanism_of: MechanismOf = mechanism_of_kernels,
) -> CliffMap:
    """The cliff map of a sweep's folder (or of ``samples.parquet`` in it).

    ``mechanism_of`` tells what served a point.
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
    try:
        environment = Environment.from_dict(header["environment"])
        suite, suite_hash = header["suite"]["name"], header["suite_hash"]
    except (KeyError, TypeError) as error:
        raise MeasurementError(f"{folder / 'run.json'} lacks a field: {error!r}") from None
    return build_map(
        read_blocks(folder),
        environment,
        name=name or re.sub(r"[^a-z0-9.]+", "-", environment.name.lower()).strip("-"),
        point_notes=read_notes(folder),
        tolerance=header["suite"].get("timing", {}).get("tolerance", TOLERANCE),
        suite=suite,
        suite_hash=suite_hash,
        mechanism_of=mechanism_of,
    )

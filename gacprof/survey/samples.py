"""The survey's samples: several sweeps, each its own folder, read and published as one.

A sweep is bound to its suite, so what deepens a survey is another sweep beside the first: the
same points in another order, or points that the first did not know of. ``samples.parquet``
at the top holds them all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.build import build_map
from gacprof.points import Sample
from gacprof.survey.setting import MAP, Setting
from gacprof.survey.state import NotYetError
from gacprof.sweeping import RunSummary, Suite, read_samples, run_sweep
from gacprof.sweeping.store import PARQUET, RUN, RunFolder

LEAST_S = 1e-3


def sweep_into(setting: Setting, name: str, suite: Suite, seconds: float | None) -> RunSummary:
    """Begin the sweep ``rounds/name-…``, or go on with it, for ``seconds`` at most.

    The suite's hash is part of the folder's name: a suite that another version makes otherwise
    is another round, and what the first one measured still counts.
    """
    with setting.machine.sweeper() as device:
        return run_sweep(
            suite,
            device,
            setting.round_folder / f"{name}-{suite.hash[:8]}",
            resume=True,
            progress=setting.advance,
            budget_s=None if seconds is None else max(LEAST_S, seconds),
        )


def round_names(setting: Setting) -> list[str]:
    folder = setting.round_folder
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def all_samples(setting: Setting) -> Iterator[Sample]:
    """Every sample of every round; visits are numbered on from round to round."""
    first = 0
    for name in round_names(setting):
        last = first
        for sample in read_samples(setting.round_folder / name):
            last = max(last, first + sample.visit + 1)
            yield replace(sample, visit=first + sample.visit)
        first = last


def publish(setting: Setting, suite: Suite) -> CliffMap:
    """Write ``samples.parquet`` and ``run.json`` at the top, and the map of them all.

    Raises :class:`NotYetError` where nothing was measured, :class:`MapError` where the
    samples make no map.
    """
    samples = list(all_samples(setting))
    if not any(sample.status == "ok" and not sample.duplicate for sample in samples):
        raise NotYetError("the sweep measured nothing yet: go on with --resume")
    device = setting.machine.device
    _store(setting.folder, samples, suite, setting)
    made = build_map(
        samples,
        device.environment,
        name=_slug(device.environment.name),
        suite=suite.name,
        suite_hash=suite.hash,
    )
    made.save(setting.folder / MAP)
    return made


def _store(folder: Path, samples: list[Sample], suite: Suite, setting: Setting) -> None:
    """A sweep's folder like any other, so that every verb that reads one reads this."""
    header = {
        "suite": suite.model_dump(mode="json", by_alias=True),
        "suite_hash": suite.hash,
        "environment": setting.machine.device.environment.as_dict(),
        "timer": samples[0].timer,  # the worker's; asking our device would attach a tracer here
    }
    with tempfile.TemporaryDirectory(prefix=".samples-", dir=folder) as beside:
        store = RunFolder(Path(beside))
        store.write_header(header)
        for sample in samples:
            store.append(sample)
        store.fold()
        for name in (PARQUET, RUN):
            (store.path / name).replace(folder / name)


def _slug(name: str) -> str:
    kept = "".join(c if c.isalnum() or c == "." else "-" for c in name.lower())
    return "-".join(part for part in kept.split("-") if part)

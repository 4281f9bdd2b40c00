"""One sweep of one device, into a new folder or one that the same sweep began.

A refusal names what differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from gacprof.core import Progress
from gacprof.core.errors import MeasurementError
from gacprof.core.formatting import listed
from gacprof.core.points import Environment
from gacprof.devices.device import Device
from gacprof.sweeping.engine import RunSummary, SweepEngine
from gacprof.sweeping.store import (
    JOURNAL,
    PARQUET,
    RUN,
    RunFolder,
    read_blocks,
    read_header,
    read_notes,
)
from gacprof.sweeping.suite import Suite

SHOWN = 5
"""Differences that a message lists; the others are counted."""
CONDITIONS = {"threads": "threads", "cores_allowed": "cores that it may use"}
"""Facts of an environment that change what is measured, and what they count."""


def header_of(suite: Suite, environment: Environment, timer: str) -> dict[str, Any]:
    """What a run folder says of itself."""
    return {
        "suite": suite.plain(),
        "suite_hash": suite.hash,
        "environment": environment.as_dict(),
        "timer": timer,
    }


@contextmanager
def opened(store: RunFolder, header: dict[str, Any], resume: bool) -> Iterator[None]:
    """Hold the folder, which is new or holds the same sweep; an interrupt folds its journal."""
    if store.path.exists() and not store.path.is_dir():
        raise MeasurementError(f"{store.path} is a file; --out names a folder")
    try:
        _check_free(store)
        store.lock()
    except OSError as error:
        raise MeasurementError(f"cannot write to {store.path}: {error.strerror}") from None
    try:
        if store.started:
            _check_resumable(store.path, header, resume)
        else:
            store.write_header(header)
        try:
            yield
        except KeyboardInterrupt:
            store.fold()
            raise
    except OSError as error:
        raise MeasurementError(
            f"writing to {store.path} failed: {error.strerror or error}; "
            "what was measured is kept, mend it and use --resume"
        ) from None
    finally:
        with suppress(OSError):  # of a full disk: what could not be written was reported
            store.close()


def _check_free(store: RunFolder) -> None:
    """Before anything is written. Samples without their header may be of any suite and device:
    going on with them would mix what does not belong together."""
    held = store.others() if store.path.is_dir() and not store.started else []
    if {JOURNAL, PARQUET} & set(held):
        raise MeasurementError(
            f"{store.path} holds samples without their {RUN}, which says what they are of: "
            "restore it, or use another --out"
        )
    if held:
        raise MeasurementError(f"{store.path} holds no sweep, but {held[0]}: choose another --out")


def _check_resumable(path: Path, header: dict[str, Any], resume: bool) -> None:
    if not resume:
        raise MeasurementError(
            f"{path} holds a sweep already: use --resume to go on with it, or another --out"
        )
    old = read_header(path)
    if old["suite_hash"] != header["suite_hash"]:
        found = list(_differences(old["suite"], header["suite"]))
        found.sort(key=lambda text: not text.startswith("name "))
        raise MeasurementError(
            f"{path} holds another suite: {listed(found, SHOWN, '; ')}. Use another --out"
        )
    _check_same_device(path, *(Environment.from_dict(h["environment"]) for h in (old, header)))
    if old["timer"] != header["timer"]:
        raise MeasurementError(
            f"{path} was timed by {_value(old['timer'])}, here it would be by {header['timer']}; "
            "use another --out, or the same --timer"
        )


def _check_same_device(path: Path, there: Environment, here: Environment) -> None:
    """Raises :class:`MeasurementError` where a run folder is of another device or stack."""
    for key in ("kind", "name", "arch", "stack"):
        was, now = getattr(there, key), getattr(here, key)
        if was != now:
            raise MeasurementError(
                f"{path} was measured elsewhere: {key} was {_value(was)}, here it is "
                f"{_value(now)}; use another --out"
            )
    for key, what in CONDITIONS.items():
        was, now = there.facts.get(key), here.facts.get(key)
        if was != now:
            raise MeasurementError(
                f"{path} was measured with {_value(was)} {what}, here there are {_value(now)}; "
                "use the same number, or another --out"
            )


def _differences(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """Each setting that differs with both values, as ``timing.blocks was 12, now 8``."""
    before, now = dict(_settings(old)), dict(_settings(new))
    for key in sorted(before.keys() | now.keys()):
        was, is_now = before.get(key), now.get(key)
        if was == is_now:
            continue
        if isinstance(was, list) and isinstance(is_now, list):
            gone, come = [v for v in was if v not in is_now], [v for v in is_now if v not in was]
            lost = f"lost {listed(gone, SHOWN)}" if gone else ""
            gained = f"gained {listed(come, SHOWN)}" if come else ""
            yield f"{key} {' and '.join(filter(None, (lost, gained))) or 'has another order'}"
        else:
            yield f"{key} was {_value(was)}, now {_value(is_now)}"


def _settings(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a table with their places, those of tables in it too."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _settings(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list) and value and all(isinstance(entry, dict) for entry in value):
        for number, entry in enumerate(value):
            yield from _settings(entry, f"{key}[{number}]")
    else:
        yield key, value


def _value(value: Any) -> str:
    """``unset`` for a key that is not there."""
    if isinstance(value, list):
        return f"[{listed(list(map(_value, value)), SHOWN)}]"
    return "unset" if value is None else repr(value)


def run_sweep(
    suite: Suite,
    device: Device,
    folder: str | Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    budget_s: float | None = None,
) -> RunSummary:
    """Measure every curve of ``suite`` on ``device``, keeping blocks in ``folder``.

    A folder that holds anything but a sweep is refused. One that holds a sweep is refused unless
    ``resume`` is true, and then only continued with the same suite on the same device, stack and
    threads. ``KeyboardInterrupt`` passes through after the blocks are safe. ``budget_s`` ends the
    sweep after so many seconds (by default the suite's own); a resume continues what is undecided
    then. ``progress`` is called before each block with the blocks (with a budget the
    seconds) so far, and those likely in all.

    Raises :class:`SuiteError` for an unusable suite, :class:`MeasurementError` for an
    unusable folder. A point that fails is recorded with its reason and the sweep goes on.
    """
    curves = suite.curves(device.environment.kind)
    store = RunFolder(Path(folder))
    header = header_of(suite, device.environment, device.timer)
    with opened(store, header, resume):
        engine = SweepEngine(
            suite.timing, device, curves, store,
            blocks=read_blocks(store.path), notes=read_notes(store.path),
            progress=progress, budget_s=budget_s or suite.timing.budget_s,
        )  # fmt: skip
        for _ in engine.steps():
            pass
        store.fold()
    return engine.summary(store.path)

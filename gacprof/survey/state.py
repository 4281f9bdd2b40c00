"""``survey.json``: what each stage of a survey came to, so that a second call can go on."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gacprof.core.errors import MeasurementError
from gacprof.core.files import write_json
from gacprof.core.points import Environment

SCHEMA = "gacprof.survey/1"
FILE = "survey.json"

DONE, SKIPPED, FAILED, INTERRUPTED = "done", "skipped", "failed", "interrupted"


class NotYetError(MeasurementError):
    """A stage stands on what another has not left yet: it waits, it has not failed."""


@dataclass(frozen=True)
class Outcome:
    """What a stage came to. ``thin`` says what another call could deepen, empty if nothing."""

    status: str = DONE
    reason: str = ""
    artefacts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    thin: str = ""


@dataclass(frozen=True)
class Record(Outcome):
    """An outcome with the seconds that the stage took in its last run."""

    seconds: float = 0.0

    @classmethod
    def of(cls, outcome: Outcome, seconds: float) -> Record:
        return cls(**asdict(outcome), seconds=round(seconds, 2))


@dataclass
class Survey:
    """A survey's folder: which device and suite it is of, its stages, and the calls so far."""

    folder: Path
    suite: str
    environment: Environment
    created: str
    stages: dict[str, Record] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)

    def save(self) -> None:
        write_json(
            self.folder / FILE,
            {
                "schema": SCHEMA,
                "suite": self.suite,
                "created": self.created,
                "environment": self.environment.as_dict(),
                "stages": {name: asdict(record) for name, record in self.stages.items()},
                "calls": self.calls,
            },
        )


def begin(folder: Path, suite: str, environment: Environment, resume: bool) -> Survey:
    """A new survey in ``folder``, or the one that is there, to go on with.

    Raises :class:`MeasurementError` for a folder that holds something else, holds a survey while
    ``resume`` is false, or holds one of another suite, device or stack.
    """
    if folder.exists() and not folder.is_dir():
        raise MeasurementError(f"{folder} is a file; --out names a folder")
    try:
        held = sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []
    except OSError as error:
        raise MeasurementError(f"cannot read {folder}: {error.strerror}") from None
    if not held:
        return Survey(folder, suite, environment, _now())
    if FILE not in held:
        raise MeasurementError(f"{folder} holds no survey, but {held[0]}: choose another --out")
    found = _read(folder)
    if not resume:
        raise MeasurementError(
            f"{folder} holds a survey already: use --resume to go on with it, or another --out"
        )
    _same(found, suite, environment)
    return found


def _read(folder: Path) -> Survey:
    path = folder / FILE
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise MeasurementError(f"cannot read {path}: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise MeasurementError(
            f"{path} is not of schema {SCHEMA}; was it written by another version?"
        )
    try:
        return Survey(
            folder,
            str(data["suite"]),
            Environment.from_dict(data["environment"]),
            str(data["created"]),
            {name: _record(record) for name, record in data["stages"].items()},
            list(data["calls"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise MeasurementError(f"{path} lacks or garbles a field: {error!r}") from None


def _record(data: Mapping[str, Any]) -> Record:
    lists: dict[str, Sequence[str]] = {key: tuple(data[key]) for key in ("artefacts", "notes")}
    return Record(**(dict(data) | lists))


def _same(found: Survey, suite: str, environment: Environment) -> None:
    if found.suite != suite:
        raise MeasurementError(
            f"{found.folder} was surveyed with the suite '{found.suite}', not '{suite}': "
            "name that one, or use another --out"
        )
    for key in ("kind", "name", "arch", "stack"):
        was, now = getattr(found.environment, key), getattr(environment, key)
        if was != now:
            raise MeasurementError(
                f"{found.folder} was measured elsewhere: {key} was {was}, here it is {now}; "
                "use another --out"
            )


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

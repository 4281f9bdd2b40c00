"""Steps that follow one another within a time budget, none's failure losing another's work.

A step finds in the folder what earlier ones left, and does only what is not there yet; so a
second call goes on where the first stopped. ``survey.json`` keeps what became of each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gacprof.core.errors import GacprofError, MeasurementError, first_line
from gacprof.core.files import write_json
from gacprof.core.formatting import duration

LOG = "survey.json"


class SkippedError(GacprofError):
    """A step has nothing to do here, or lacks what another has not left yet."""


@dataclass
class Clock:
    """The time of one call; ``until`` is the share of it by which the running step should end."""

    budget_s: float | None = None
    until: float = 1.0
    began: float = field(default_factory=time.monotonic)

    def left_s(self) -> float | None:
        """Seconds until the running step should end, negative after that; None without a budget."""
        if self.budget_s is None:
            return None
        return self.began + self.until * self.budget_s - time.monotonic()

    @property
    def is_up(self) -> bool:
        left = self.left_s()
        return left is not None and left <= 0


@dataclass(frozen=True)
class Step:
    """``run`` returns what it came to, in a line. It should have ended by the share ``until``."""

    name: str
    until: float
    run: Callable[[], str]


def begin(folder: Path, about: dict[str, Any], resume: bool) -> None:
    """Begin a folder, or with ``resume`` go on in one that is about the same.

    Raises :class:`MeasurementError` for a folder of something else.
    """
    if folder.exists() and not folder.is_dir():
        raise MeasurementError(f"{folder} is a file; --out names a folder")
    held = sorted(entry.name for entry in folder.iterdir()) if folder.exists() else []
    if held and LOG not in held:
        raise MeasurementError(f"{folder} holds no survey, but {held[0]}: choose another --out")
    if held and not resume:
        raise MeasurementError(
            f"{folder} holds a survey already: use --resume to go on with it, or another --out"
        )
    log = read_log(folder)
    for key, here in about.items():
        if log["about"].get(key, here) != here:
            raise MeasurementError(
                f"{folder} was begun otherwise: {key} was {log['about'][key]}, here it is {here}; "
                "use another --out"
            )
    write_json(folder / LOG, log | {"about": about})


def run_steps(
    steps: Sequence[Step], folder: Path, clock: Clock, tell: Callable[[str], None]
) -> None:
    """Run each in turn and log its status (done, skipped, failed, interrupted), note and seconds.

    ``KeyboardInterrupt`` passes through once the log tells how far it came.
    """
    log = read_log(folder)
    for step in steps:
        clock.until = step.until
        tell(f"{step.name} …")
        began = time.monotonic()
        status, note = "interrupted", "--resume goes on from here"
        try:
            status, note = "done", step.run()
        except SkippedError as error:
            status, note = "skipped", str(error)
        except GacprofError as error:
            status, note = "failed", str(error)
        except Exception as error:  # a fault of ours or of a library: the other steps go on
            status, note = "failed", f"{type(error).__name__}: {first_line(error)}"
        finally:
            seconds = time.monotonic() - began
            log["steps"][step.name] = {"status": status, "note": note, "seconds": round(seconds, 1)}
            write_json(folder / LOG, log)
        tell(f"{step.name}: {status} in {duration(seconds)}: {note}")


def read_log(folder: Path) -> dict[str, Any]:
    """``about`` and ``steps`` by name, both empty where nothing was begun."""
    if not (folder / LOG).exists():
        return {"about": {}, "steps": {}}
    return read_json(folder / LOG, "about", "steps")


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """What an earlier step wrote. Raises :class:`MeasurementError` where it is garbled."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise MeasurementError(f"cannot read {path}: {error}") from None
    if not isinstance(data, dict) or not data.keys() >= set(keys):
        raise MeasurementError(
            f"{path} lacks {', '.join(keys)}; was it written by another version?"
        )
    return data

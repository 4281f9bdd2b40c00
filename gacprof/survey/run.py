"""The survey from beginning to end: stage after stage, none's failure losing another's work.

Each stage writes its own artefacts and knows no other stage.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from gacprof.core.errors import GacprofError, MeasurementError, first_line
from gacprof.survey.condition import look_again
from gacprof.survey.setting import Advance, Machine, Setting, Tell, open_machine
from gacprof.survey.state import (
    DONE,
    FAILED,
    INTERRUPTED,
    SKIPPED,
    NotYetError,
    Outcome,
    Record,
    Survey,
    begin,
)
from gacprof.sweeping import load_suite


@dataclass(frozen=True)
class Stage:
    """``until`` is the share of a time budget by which the stage should have ended.

    ``after`` names the stages whose new results make this one's old ones stale. A stage that
    ``always`` runs tells of the moment or of the others.
    """

    name: str
    title: str
    module: str
    function: str
    until: float
    after: tuple[str, ...] = ()
    always: bool = False

    def run(self, setting: Setting) -> Outcome:
        """Its module is imported only now: torch, matplotlib and transformers cost seconds."""
        do: Callable[[Setting], Outcome] = getattr(
            import_module(f"gacprof.survey.{self.module}"), self.function
        )
        return do(setting)

    def due(self, record: Record | None, fresh: set[str]) -> bool:
        """Whether it has something to do: new, not done, thin, or what it stands on is new."""
        if self.always or record is None or record.status != DONE or record.thin:
            return True
        return bool(fresh & set(self.after))


STAGES: tuple[Stage, ...] = (
    Stage("doctor", "What can be measured here", "condition", "examine", 0.02, always=True),
    Stage("sweep", "Sweep", "sweep", "sweep", 0.50),
    Stage("map", "Cliff map", "sweep", "build", 0.52, after=("sweep",)),
    Stage("shapes", "Model shapes and our plan", "variants", "make", 0.62),
    Stage("tables", "Constraint tables", "exhibits", "tables", 0.63, after=("map", "shapes")),
    Stage("figures", "Figures", "exhibits", "figures", 0.64, after=("map", "shapes")),
    Stage("disputes", "What the papers disagree about", "evidence", "disputes", 0.67),
    Stage("counters", "Hardware counters", "evidence", "counters", 0.75, after=("map", "shapes")),
    Stage("end_to_end", "End to end", "end_to_end", "measure", 0.98, after=("shapes",)),
    Stage(
        "prediction", "Predicted against measured", "prediction", "compare", 0.99,
        after=("map", "shapes", "end_to_end"),
    ),
    Stage("page", "Page", "page", "write", 1.0, always=True),
)  # fmt: skip


DEFAULT_SUITES = {"cuda": ("full", "paper"), "cpu": ("cpu",)}
"""What is swept where no suite is named: the first of these that this version has."""

MEASURING = ("sweep", "end_to_end")
"""After these the device is looked at again."""


def run_survey(
    folder: str | Path,
    *,
    device: str | None = None,
    suite: str | None = None,
    budget_s: float | None = None,
    resume: bool = False,
    machine: Machine | None = None,
    tell: Tell = lambda line: None,
    advance: Advance = lambda done, total, what: None,
) -> Survey:
    """Survey a device into ``folder``; with ``resume`` go on with the survey that is there.

    ``budget_s`` is about how long the call may take; what it does not pay for is left to a
    resume. ``KeyboardInterrupt`` passes through once ``survey.json`` tells how far it came.
    Raises :class:`MeasurementError` or :class:`SuiteError` for a device, folder or suite that
    cannot be used; a stage's failure is in its record.
    """
    if budget_s is not None and not 0 < budget_s < float("inf"):
        raise MeasurementError(f"a budget of {budget_s:g} s is no time to measure in")
    folder = Path(folder)
    machine = machine or open_machine(device)
    name = suite or _default_suite(machine.device.environment.kind)
    load_suite(name).points(machine.device.environment.kind)  # refused now rather than later
    survey = begin(folder, name, machine.device.environment, resume)
    survey.calls.append(_call(budget_s))
    _save(survey)
    setting = Setting(folder, machine, name, budget_s, tell, advance)
    fresh: set[str] = set()
    for stage in STAGES:
        if stage.due(survey.stages.get(stage.name), fresh):
            _run(stage, survey, setting)
            fresh.add(stage.name)
    survey.calls[-1]["ended"] = "complete"
    _save(survey)
    return survey


def _run(stage: Stage, survey: Survey, setting: Setting) -> None:
    """Run one stage and record what it came to, an interruption included."""
    setting.share = stage.until
    setting.tell(f"{stage.title} …")
    began = time.monotonic()
    try:
        outcome = stage.run(setting)
        if stage.name in MEASURING:
            known = survey.stages["doctor"].notes
            marks = [f"after it: {m}" for m in look_again(setting).marks if m not in known]
            outcome = replace(outcome, notes=(*outcome.notes, *marks))
    except KeyboardInterrupt:
        outcome = Outcome(INTERRUPTED, "interrupted; --resume goes on from here")
        _record(stage, survey, outcome, began)
        survey.calls[-1]["ended"] = f"interrupted in {stage.name}"
        _save(survey)
        raise
    except NotYetError as error:
        outcome = Outcome(SKIPPED, str(error))
    except GacprofError as error:
        outcome = Outcome(FAILED, str(error))
    except Exception as error:  # a fault of ours or of a library: the other stages go on
        outcome = Outcome(FAILED, f"{type(error).__name__}: {first_line(error)}")
    _record(stage, survey, outcome, began)
    _save(survey)
    reason = f": {outcome.reason}" if outcome.reason else ""
    seconds = survey.stages[stage.name].seconds
    setting.tell(f"{stage.title}: {outcome.status} in {seconds:.0f} s{reason}")
    for note in outcome.notes:
        setting.tell(f"  {note}")


def _record(stage: Stage, survey: Survey, outcome: Outcome, began: float) -> None:
    """What an earlier call left stays in place, so its artefacts stay named."""
    earlier = survey.stages.get(stage.name)
    if not outcome.artefacts and earlier is not None:
        outcome = replace(outcome, artefacts=earlier.artefacts)
    survey.stages[stage.name] = Record.of(outcome, time.monotonic() - began)


def _default_suite(kind: str) -> str:
    from gacprof.sweeping import shipped_suites

    wanted = DEFAULT_SUITES.get(kind, DEFAULT_SUITES["cpu"])
    return next((name for name in wanted if name in shipped_suites()), wanted[-1])


def _call(budget_s: float | None) -> dict[str, object]:
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {"started": started, "budget_s": budget_s, "ended": "not yet"}


def _save(survey: Survey) -> None:
    try:
        survey.save()
    except OSError as error:
        raise MeasurementError(
            f"cannot write to {survey.folder}: {error.strerror or error}"
        ) from None

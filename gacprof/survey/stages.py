"""The stages of a survey, in order. Each writes its own artefacts and knows no other stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from gacprof.survey.setting import Setting
from gacprof.survey.state import DONE, Outcome, Record


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
    Stage("doctor", "What can be measured here", "doctor", "examine", 0.02, always=True),
    Stage("sweep", "Sweep", "sweep", "sweep", 0.50),
    Stage("map", "Cliff map", "sweep", "build", 0.52, after=("sweep",)),
    Stage("shapes", "Model shapes and our plan", "variants", "make", 0.62),
    Stage("tables", "Constraint tables", "tables", "write", 0.63, after=("map", "shapes")),
    Stage("figures", "Figures", "figures", "draw", 0.64, after=("map", "shapes")),
    Stage("disputes", "What the papers disagree about", "disputes", "decide", 0.67),
    Stage("counters", "Hardware counters", "counters", "profile", 0.75, after=("map", "shapes")),
    Stage("end_to_end", "End to end", "end_to_end", "measure", 0.98, after=("shapes",)),
    Stage(
        "prediction", "Predicted against measured", "prediction", "compare", 0.99,
        after=("map", "shapes", "end_to_end"),
    ),
    Stage("page", "Page", "page", "write", 1.0, always=True),
)  # fmt: skip

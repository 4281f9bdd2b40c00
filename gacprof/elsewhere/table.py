"""Times that others measured as a source of sizes: verdicts by rules, times as intervals.

No table has misaligned sizes of N or K, so which sizes are good is the rules' to say: the source
has a rule table for that, and :class:`~gacprof.elsewhere.times.ProductTimes` of the same GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gacprof.cliffmap.source import Asked, Candidate, Use
from gacprof.core.formatting import Framed
from gacprof.elsewhere.data import Measurements
from gacprof.elsewhere.times import ProductTimes
from gacprof.rules.table import RuleTable, Tier
from gacprof.rules.target import Target
from gacprof.rules.view import RuleView

BASIS = "by rules, times by others' measurements"


class ElsewhereTable(Framed):
    """The rules of a GPU with its times, of one ``engine`` of the tables (``vllm``) or the median
    of all. Raises as :class:`ProductTimes`."""

    basis = BASIS
    timed, estimated, any_size = True, True, True
    busy, instead = "", ""

    def __init__(self, about: Target, measured: Measurements, engine: str | None = None) -> None:
        self.rules = rules = RuleTable(about, name=f"{about.sheet.key}-elsewhere")
        self.times = ProductTimes(about, measured, engine)
        self.name, self.gpu, self.environment = rules.name, rules.gpu, rules.environment
        self.dtypes, self.usual_dtype = rules.dtypes, rules.usual_dtype

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.frame_title()}>"

    @property
    def tiers(self) -> list[Tier]:
        return self.rules.tiers

    @property
    def notes(self) -> list[str]:
        return self.rules.notes

    def as_dict(self) -> dict[str, Any]:
        """The rule table: times of any size have no list."""
        return self.rules.as_dict()

    def frame_rows(self) -> Iterator[dict[str, Any]]:
        return self.rules.frame_rows()

    def frame_title(self) -> str:
        about = self.rules.target
        return f"{self.name}: {about.sheet.name}, torch {about.torch}, {BASIS}"

    def view(self, asked: Asked) -> RuleView:
        about, times = self.rules.target, self.times
        view = RuleView(about, self.dtypes, asked, self.name, BASIS, times.time)
        view.notes += [times.sources(view.dtype, view.tokens), times.published]
        return view

    def candidates(self, operator: str, *, axis: str, near: int, **about: Any) -> list[Candidate]:
        return self.rules.candidates(operator, axis=axis, near=near, **about)

    def joint_candidates(self, uses: Sequence[Use], near: int, **limits: Any) -> list[Candidate]:
        return self.rules.joint_candidates(uses, near, **limits)

    def judge_jointly(self, uses: Sequence[Use], first: int, last: int) -> list[Candidate]:
        return self.rules.judge_jointly(uses, first, last)

"""One command that measures a device and writes down everything: sweep, map, tables, figures,
disputes, counters, whole models, one page. See docs/survey.md."""

from __future__ import annotations

from gacprof.survey.run import STAGES, run_survey
from gacprof.survey.state import Survey

__all__ = ["STAGES", "Survey", "run_survey"]

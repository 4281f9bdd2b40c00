"""Suite → points → order, passes, store, resume."""

from __future__ import annotations

from gacprof.sweeping.confirm import confirm_run
from gacprof.sweeping.run import RunSummary, environment_of, run_sweep, suite_of
from gacprof.sweeping.store import read_frame, read_samples
from gacprof.sweeping.suite import Suite, load_suite, shipped_suites
from gacprof.sweeping.to_map import build_map_of
from gacprof.sweeping.verdicts import Verdict, read_verdicts

__all__ = [
    "RunSummary",
    "Suite",
    "Verdict",
    "build_map_of",
    "confirm_run",
    "environment_of",
    "load_suite",
    "read_frame",
    "read_samples",
    "read_verdicts",
    "run_sweep",
    "shipped_suites",
    "suite_of",
]

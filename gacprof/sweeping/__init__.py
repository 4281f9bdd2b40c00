"""Suite → curves → blocks → store → map."""

from __future__ import annotations

from gacprof.devices.worker import sweeper
from gacprof.sweeping.engine import RunSummary
from gacprof.sweeping.results import (
    build_map_of,
    environment_of,
    read_frame,
    read_samples,
    suite_of,
)
from gacprof.sweeping.run import run_sweep
from gacprof.sweeping.store import read_blocks
from gacprof.sweeping.suite import Suite, load_suite, shipped_suites

__all__ = [
    "RunSummary",
    "Suite",
    "build_map_of",
    "environment_of",
    "load_suite",
    "read_blocks",
    "read_frame",
    "read_samples",
    "run_sweep",
    "shipped_suites",
    "suite_of",
    "sweeper",
]

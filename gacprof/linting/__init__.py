"""``gacprof lint``: what an engine will do with a model's sizes, from its config alone.

Imports no torch and no pandas: a config is judged in 0.3 s with Python's start-up.
"""

from gacprof.linting.request import LintRequest
from gacprof.linting.verdict import Lint, Row, fix, lint

__all__ = ["Lint", "LintRequest", "Row", "fix", "lint"]

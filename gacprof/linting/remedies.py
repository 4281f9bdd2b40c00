"""What to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gacprof.demands.configs import Config
from gacprof.demands.evaluate import Judged
from gacprof.linting.request import LintRequest, Target


def remedies(name: str, config: Config, request: LintRequest, target: Target, judged: Sequence[Judged]) -> Iterator[dict[str, Any]]:
    return iter(())

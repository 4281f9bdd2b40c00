"""The tier of each product by the rules of the GPU, beside what the engine does with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gacprof.demands.configs import Config
from gacprof.demands.evaluate import Judged
from gacprof.linting.request import Target


def tiers(config: Config, target: Target, judged: Sequence[Judged]) -> Mapping[str, str]:
    """Product's name → its tier; empty where the GPU has no rules."""
    return {}

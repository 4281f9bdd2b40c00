"""The tier of each product by the rules of the GPU: beside what the engine does with it."""

from __future__ import annotations

from collections.abc import Sequence

from gacprof.demands.evaluate import Judged
from gacprof.demands.products import Product
from gacprof.linting.request import Target


def tiers(target: Target, made: Sequence[Product], judged: Sequence[Judged]) -> dict[str, str]:
    """Product's name → tier; empty where the GPU has no rules."""
    return {}

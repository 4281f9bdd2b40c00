"""What decides before any product whether a deployment starts: whole ranks for experts, and weights
that fit the memory of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from gacprof.lint.products import RankProduct, count_of

if TYPE_CHECKING:
    from gacprof.lint.deployment import ConfigDeployment

GIB = 1 << 30
START_ROLES = ("expert_ranks", "weights")
"""Roles of counts that say whether a deployment starts: no engine is asked of them."""


def start_counts(deployment: ConfigDeployment) -> Iterator[RankProduct]:
    """The expert-parallel ranks beside those that they are made of, and the GiB of weights beside
    a GPU's, as counts that requirements are about."""
    ep, whole = deployment.ep, deployment.ranks["expert_total"]
    if ep > 1:
        yield replace(count_of("expert-parallel ranks", "expert_ranks", ep, ep), whole=whole)
    weights = deployment.weight_bytes
    if weights and deployment.gpu.memory_gib:
        budget = int(deployment.gpu.memory_gib * deployment.engine.memory)
        yield count_of("weights of a rank (GiB)", "weights", ceil(weights / GIB), budget)

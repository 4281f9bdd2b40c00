"""The diagnosis of a checkpoint: a finding on every dim, and on the sizes that no plan changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from gacprof.checkpoint.inventory import Dim
from gacprof.core.sizes import Interval, SizeVerdict, Verdict

Action = Literal["keep", "pad", "merge", "measure"]
"""``pad`` to the better size; ``merge`` the factor pair into its dense weight, which is surely
faster; ``measure``: the source does not know the size; else ``keep``."""


@dataclass(frozen=True)
class DimFinding:
    """A dim, the verdict on its size beside padded coupled dims, and the size to pad it to."""

    dim: Dim
    now: SizeVerdict
    better: SizeVerdict | None
    action: Action

    @property
    def target_size(self) -> int | None:
        """The size after the action; None: merged."""
        if self.action == "merge":
            return None
        if self.action == "pad" and self.better is not None:
            return self.better.size
        return self.dim.size


@dataclass(frozen=True)
class FixedFinding:
    """A size that only another model would have (a vocabulary, a hidden size, a head_dim), which
    is misaligned or may be. ``places`` are weights, or layers of an attention."""

    axis: Literal["N", "K", "head_dim"]
    places: tuple[str, ...]
    now: SizeVerdict
    better: SizeVerdict | None


@dataclass(frozen=True)
class Diagnosis:
    """Findings on a checkpoint. ``latency_us`` is the time of the workload in all products as they
    are, ``better_us`` after every finding's action; None where a product's time is not known.

    ``checkpoint`` is its path; ``source`` and ``provenance`` say whose verdicts these are.
    """

    checkpoint: str
    layout: str
    source: str
    provenance: str
    tokens: Mapping[int, float]
    tp: int
    parameters: int
    dims: tuple[DimFinding, ...]
    fixed: tuple[FixedFinding, ...]
    latency_us: Interval | None
    better_us: Interval | None
    warnings: tuple[str, ...] = ()

    @property
    def counts(self) -> Mapping[Verdict, int]:
        """The number of dims by verdict."""
        return Counter(finding.now.verdict for finding in self.dims)

    @property
    def is_aligned(self) -> bool:
        """Whether nothing is to be padded or merged."""
        return all(finding.action in ("keep", "measure") for finding in self.dims)

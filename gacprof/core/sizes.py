"""How good a size is, and who says so: the verdict, and the protocol that gives it.

The penalty of a size is its latency over the lowest latency of any size at least as large, minus 1:
what is lost by not padding to the best larger size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:  # whatever answers for one size does without numpy
    from gacprof.core.verdicts import Verdicts

Verdict = Literal["safe", "misaligned", "undecided", "unknown"]
"""``safe``: the penalty surely lies at or below the tolerance; ``misaligned``: surely above;
``undecided``: its interval holds the tolerance; ``unknown``: nothing is known of the size."""

Cause = Literal[
    "",
    "alignment",
    "template",
    "slower",
    "noise",
    "other_side",
    "unproven",
    "unserved",
    "split_scales",
    "no_rules",
    "not_measured",
    "not_comparable",
    "failed",
]
"""Why a size is not safe. *Misaligned*: a larger one is of a better tier (``alignment``), has a
kernel template of its own (``template``), or takes less (``slower``), or ranks would share words
or scales of quantised weights (``split_scales``). *Undecided*: by ``noise``, a worse ``other_side``
of a product, an ``alignment`` that is mostly slower, a tier that is ``unproven`` to be enough, or
larger sizes that were not measured (``not_comparable``). *Unknown*: no kernel serves it
(``unserved``), or there are ``no_rules``, it was ``not_measured``, or it ``failed``. Empty: safe,
or not told."""

TOLERANCE = 0.02  # the penalty up to which a size is safe, where a source has no other


@dataclass(frozen=True)
class Interval:
    """A quantity and its 95 % interval: ``low <= value <= high``."""

    low: float
    value: float
    high: float

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.value + other.value, self.high + other.high)

    def scaled(self, factor: float) -> Interval:
        return Interval(self.low * factor, self.value * factor, self.high * factor)


ZERO = Interval(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Estimate:
    """An estimate of how many times as long as padded a misaligned product takes, from what
    ``groups`` of people measured on ``gpus``: four in five further groups would be within it.

    It is no :class:`Interval`: it has no middle, and nothing may be chosen by it. ``basis`` says
    what was carried over to this product: their ratios, or the rates of their misaligned kernels.
    """

    low: float
    high: float
    groups: int
    gpus: tuple[str, ...]
    basis: Literal["ratio", "rate"]


@dataclass(frozen=True)
class SizeVerdict:
    """A verdict on one size of a dim. ``penalty`` is a fraction (0.4: 40 % slower than the best
    larger size), ``latency_us`` the time of all products that the dim feeds; None where not known.

    ``kernel`` serves the size, where that is known, ``cause`` is why it is not safe, and ``reason``
    says both to people. ``estimate`` is what others measured of the worst product, where a source
    has no penalty of its own.
    """

    size: int
    verdict: Verdict
    penalty: Interval | None = None
    latency_us: Interval | None = None
    reason: str = ""
    kernel: str = ""
    cause: Cause = ""
    estimate: Estimate | None = None


NOT_GOOD_ENOUGH: Sequence[Cause] = ("not_comparable", "not_measured", "alignment")
"""Causes for which an undecided size is not chosen."""


def seems_safe(verdict: SizeVerdict, tolerance: float) -> bool:
    """Return whether a size may be chosen: it is safe; or undecided by noise alone, its penalty
    estimated within the source's tolerance; or of the best tier by a source without latencies."""
    if verdict.verdict != "undecided" or verdict.cause in NOT_GOOD_ENOUGH:
        return verdict.verdict == "safe"
    penalty = verdict.penalty
    return penalty is None or penalty.value <= tolerance < penalty.high


def seems_slow(verdict: SizeVerdict) -> bool:
    """Whether a larger size is surely or mostly faster, so that padding is worth it."""
    return verdict.verdict == "misaligned" or verdict.cause == "alignment"


@dataclass(frozen=True)
class Gemm:
    """One matrix product ``y[M, N] = x[M, K] · W[N, K]ᵀ``; ``weight`` is the tensor's name."""

    weight: str
    N: int
    K: int
    bias: bool = False


@dataclass(frozen=True)
class Side:
    """N or K of a product on one TP rank: ``(others + times · size) / tp`` at a size of the dim."""

    others: int = 0
    times: int = 0
    tp: int = 1

    def at(self, size: int) -> int | None:
        """Return the side's length at a size of the dim; None where the TP ranks cannot share
        it."""
        length, rest = divmod(self.others + self.times * size, self.tp)
        return length if length > 0 and rest == 0 else None


@dataclass(frozen=True)
class Use:
    """A dim's part in one product of ``tokens`` rows, which runs ``weight`` times a workload."""

    gemm: Gemm
    N: Side
    K: Side
    tokens: int
    dtype: str
    weight: float = 1.0

    def at(self, size: int) -> tuple[int, int] | None:
        """Return (N, K) at a size of the dim; None where the TP ranks cannot share it evenly."""
        n, k = self.N.at(size), self.K.at(size)
        if n is None or k is None:
            return None
        return n, k


def advice(source: SizeSource, options: str = "") -> str:
    """Say how to learn of a size that a source doesn't know: by a sweep with ``options``, or
    otherwise of a virtual GPU, which no sweep times."""
    gpu = getattr(source, "virtual_gpu", None)
    if gpu is None:
        rules = ", or ask a GPU's rules (by its name; no times)" if source.tokens else ""
        return f"measure it by 'gacprof sweep --model MODEL{options}'{rules}"
    return f"ask the rules (--gpu {gpu}, no times) or sweep a real GPU, for this one was virtual"


class SizeSource(Protocol):
    """A source of answers to how good a size is: a measured map, the rules of a GPU, or yours.

    ``virtual_gpu``, where it has one, names the GPU of a map that no sweep can complete.
    ``provenance`` says how its answers came about ("measured on …", "by rules, not measured").
    ``tokens`` and ``dtypes`` are what it holds products for, ascending; empty: any. ``tolerance``
    is the penalty up to which it calls a size safe.
    """

    @property
    def name(self) -> str: ...

    @property
    def provenance(self) -> str: ...

    @property
    def tokens(self) -> Sequence[int]: ...

    @property
    def dtypes(self) -> Sequence[str]: ...

    @property
    def tolerance(self) -> float: ...

    def sizes(self, uses: Sequence[Use], low: int, high: int) -> Sequence[int]:
        """Return the sizes of a dim within [low, high] that it can judge in all of these uses."""

    def judge(self, uses: Sequence[Use], sizes: Sequence[int]) -> Verdicts | Sequence[SizeVerdict]:
        """Return the verdict on each of these ascending sizes of a dim, its uses added up: a list,
        or arrays that make a verdict where it is looked at."""

    def latency_us(self, gemm: Gemm, tokens: int, dtype: str) -> Interval | None:
        """Return the time of one product; None where it is not known."""

    def head_dim(self, head_dim: int, heads: int, kv_heads: int, dtype: str) -> SizeVerdict:
        """Return the verdict on an attention's head_dim."""

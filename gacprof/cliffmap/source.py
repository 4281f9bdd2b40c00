"""One source of sizes: all that diagnosing, planning and compressing see of a device.

A :class:`SizeSource` says whether a size is served well, what a product takes (an estimate with its
error, or nothing), which sizes are on offer, and where all this is from. The measured cliff map is
one; the rule table is another, of tiers and no number with a unit.

What is asked is always a :class:`Product` as one rank of a tensor-parallel group runs it: one dim
of the model is on one or both of its sides, and the others are as they are, or may be changed too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import exp, hypot, log, sqrt
from numbers import Integral, Real
from typing import TYPE_CHECKING, Protocol

from gacprof.core.errors import PlanError
from gacprof.core.files import Record
from gacprof.core.points import Environment, Flag
from gacprof.stats.findings import Verdict

if TYPE_CHECKING:
    from gacprof.cliffmap.candidates import Candidate, Use


@dataclass(frozen=True)
class Side:
    """N or K of a product as one rank holds it: ``(others + times · size) / shards``.

    ``size`` is that of the dim in question; ``others`` is what else is on the side. ``free``:
    adjustable dims are among those others, so that they need not stay as they are.
    """

    others: int = 0
    times: int = 0
    shards: int = 1
    free: bool = False

    def at(self, size: int) -> int | None:
        """The side's length at a size of the dim; None where the shards cannot divide it."""
        whole, rest = divmod(self.others + self.times * size, self.shards)
        return None if rest or whole < 1 else whole

    def size_for(self, length: int) -> int | None:
        """The dim's size at which the side is so long; None where there is none."""
        if not self.times:
            return None
        size, rest = divmod(length * self.shards - self.others, self.times)
        return None if rest or size < 1 else size


@dataclass(frozen=True)
class Product:
    """``y[M, N] = x[M, K] · W[N, K]ᵀ (+ b)`` on one rank, computed in ``dtype``."""

    N: Side
    K: Side
    bias: bool = False
    dtype: str = ""

    def at(self, size: int) -> tuple[int, int] | None:
        """(N, K) at a size of the dim; None where the shards cannot divide it."""
        n, k = self.N.at(size), self.K.at(size)
        return None if n is None or k is None else (n, k)


@dataclass(frozen=True)
class Interval(Record):
    """A time in µs, or a difference of times, with its bounds."""

    low: float
    value: float
    high: float


SURELY = 1.645
"""Standard errors that 90 % of errors stay below on both sides (the normal distribution's)."""


@dataclass(frozen=True)
class Estimate:
    """A predicted time, or why there is none. ``scaled`` if any part was not measured exactly.

    ``variance`` is that of the time in µs², of what the source's errors tell; None where it gives
    no error for a part. Errors of a table have one sign more often than not, and their variances
    would average out what does not: such a source gives ``own``, the bounds in µs by errors that
    differ from size to size, which add up; and ``shared``, the relative error (of the logarithm)
    that all its times have in common, which leaves a difference's sign as it is. ``least`` is what
    the device needs at its peak rates, in µs: no bound is below it.
    """

    latency_us: float | None
    missing: str = ""
    scaled: bool = False
    variance: float | None = None
    own: tuple[float, float] | None = None
    shared: float = 0.0
    least: float = 0.0

    @property
    def error(self) -> float | None:
        """The relative standard error."""
        if self.latency_us is None or self.variance is None:
            return None
        return sqrt(self.variance) / self.latency_us if self.latency_us else 0.0

    def __add__(self, other: Estimate) -> Estimate:
        if self.latency_us is None or other.latency_us is None:
            return Estimate(None, self.missing or other.missing)
        known = self.variance is not None and other.variance is not None
        variance = (self.variance or 0.0) + (other.variance or 0.0) if known else None
        own = None
        if self.own and other.own:
            own = self.own[0] + other.own[0], self.own[1] + other.own[1]
        scaled, total = self.scaled or other.scaled, self.latency_us + other.latency_us
        common = self.shared * self.latency_us + other.shared * other.latency_us
        shared = common / total if total else 0.0
        return Estimate(total, "", scaled, variance, own, shared, self.least + other.least)

    def times(self, weight: float) -> Estimate:
        if self.latency_us is None:
            return self
        variance = None if self.variance is None else self.variance * weight**2
        own = None if self.own is None else (self.own[0] * weight, self.own[1] * weight)
        return Estimate(
            self.latency_us * weight, "", self.scaled, variance, own, self.shared,
            self.least * weight,
        )  # fmt: skip

    def at_least(self, least: float) -> Estimate:
        """The same where neither the time nor its bounds are below ``least`` µs."""
        if self.latency_us is None:
            return self
        own = self.own and (max(self.own[0], least), max(self.own[1], least))
        return replace(self, latency_us=max(self.latency_us, least), own=own, least=least)

    @property
    def interval(self) -> Interval | None:
        """The time with its bounds; None where it, or its error, is not known."""
        value = self.latency_us
        if value is None:
            return None
        if self.own and value > 0:
            low, high = (hypot(log(end / value), self.shared) for end in self.own)
            return Interval(max(value * exp(-low), self.least), value, value * exp(high))
        if self.own or self.variance is None:
            return Interval(value, value, value) if self.own else None
        return Interval(value - self._half, value, value + self._half)

    @property
    def _half(self) -> float:
        return SURELY * sqrt(self.variance or 0.0)

    def saved(self, then: Estimate) -> Interval | None:
        """How much less ``then`` takes than this, with bounds; None where that is not known."""
        if self.latency_us is None or then.latency_us is None:
            return None
        value = self.latency_us - then.latency_us
        if self.own and then.own:
            low, high = self.own[0] - then.own[1], self.own[1] - then.own[0]
            wider = exp(max(self.shared, then.shared))
            low = low / wider if low > 0 else low * wider
            return Interval(low, value, high * wider if high > 0 else high / wider)
        if self.variance is None or then.variance is None:
            return None
        half = hypot(self._half, then._half)
        return Interval(value - half, value, value + half)


NOTHING = Estimate(0.0, variance=0.0, own=(0.0, 0.0))


def rules_instead(environment: Environment) -> str:
    """What answers where a map of a known kind of GPU lacks sizes; empty where nothing would."""
    from gacprof.devices.datasheet import sheets

    known = [sheet for sheet in sheets().values() if sheet.arch == environment.arch]
    named = [s for s in known if environment.name in (s.name, *s.drivers)]
    if environment.kind != "cuda" or not known:
        return ""
    return f"the rules of this GPU answer any size, in tiers: --gpu {(named or known)[0].key}"


@dataclass(frozen=True)
class SizeCost:
    """What a source says of one size, in all products that the dim is in.

    Times are µs over the workload, None where the source knows none. The penalty is the time over
    that of the fastest size at least as large, minus 1; ``penalty_high`` is None where nothing
    comparable is larger: the size is not safe then. ``tier`` counts mechanisms from the best, 1,
    where the source knows them; ``why`` says what the verdict rests on, where it is not a penalty;
    ``mechanism`` serves the product that is served worst. ``relative`` is what was published of
    that product's tier beside the best one (2.1: ×2.1), measured where ``relative_from`` says.
    """

    size: int
    latency_us: float | None
    penalty: float | None
    penalty_low: float | None
    penalty_high: float | None
    verdict: Verdict
    tier: int | None = None
    why: str = ""
    relative: float | None = None
    relative_from: str = ""
    mechanism: str | None = None


@dataclass(frozen=True)
class Answer:
    """One size: what the source says of it, or what is ``missing`` to say it."""

    size: int
    cost: SizeCost | None
    scaled: bool = False
    missing: str = ""


@dataclass(frozen=True)
class Asked:
    """What a model wants to know: the (N, K) of its products as one rank runs them, the dtype that
    most of them are computed in, and, if the user asked for some, ``tokens`` and ``dtype``."""

    model: str
    shapes: frozenset[tuple[int, int]]
    computed: str
    tokens: Tokens | None = None
    dtype: str | None = None


class ModelView(Protocol):
    """What a source says of one model's products, at the token counts (with weights) and in the
    dtype that were asked for, or that it holds.

    ``flags`` are those of its products, such as weights that are read cold; ``notes`` say what a
    reader should know; ``tokens_note`` which token counts it holds in place of those asked for.
    ``noisy``: too noisy to choose by. ``tolerance`` is the penalty up to which a
    size is safe, 0 where verdicts rest on no penalty.
    """

    @property
    def dtype(self) -> str: ...

    @property
    def flags(self) -> Mapping[str, Flag]: ...

    @property
    def tokens(self) -> dict[int, float]: ...

    @property
    def tolerance(self) -> float: ...

    @property
    def noisy(self) -> bool: ...

    @property
    def notes(self) -> Sequence[str]: ...

    @property
    def tokens_note(self) -> str: ...

    def latency(self, n: int, k: int, bias: bool, dtype: str = "") -> Estimate:
        """One pass of the workload through the product."""

    def sizes(self, products: Sequence[Product], low: int, high: int) -> Sequence[int]:
        """The sizes within [low, high] on offer for a dim of these products, ascending."""

    def judge(
        self, products: Sequence[Product], sizes: Sequence[int], most: int | None
    ) -> list[Answer]:
        """The verdict on each of these ascending sizes of a dim that is ``most`` at most, beside
        all larger sizes that the source knows. No size is safe without one to compare it with, or
        a mechanism than which there is no better."""

    def step(self, products: Sequence[Product]) -> int:
        """What sizes repeat with: multiples of it hide nothing of the other dims. 1: not known."""

    def mechanism(self, product: Product, size: int) -> str | None:
        """What serves the product at the largest token count, where it is known."""

    def head_dim(self, heads: int, kv_heads: int, head_dim: int) -> Answer | None:
        """The verdict on an attention's head_dim; None where nothing is known. The answer's
        ``size`` is a safe one at least as large, or the same where none is known."""


class SizeSource(Protocol):
    """A device's good sizes, and where that is known from. ``basis`` is what every answer has to
    say of that, empty where the device itself was measured."""

    @property
    def name(self) -> str: ...

    @property
    def basis(self) -> str: ...

    @property
    def timed(self) -> bool:
        """Whether it knows what products take; one that does not has verdicts alone."""

    @property
    def environment(self) -> Environment: ...

    @property
    def dtypes(self) -> Sequence[str]:
        """What products it knows anything of are computed in."""

    def view(self, asked: Asked) -> ModelView: ...

    def judge_jointly(self, uses: Sequence[Use], first: int, last: int) -> list[Candidate]:
        """Every size from ``first`` to ``last`` that is known in all uses of one dim, judged in
        all of them together."""


DEFAULT_TOKENS: Mapping[int, float] = {1: 1.0, 1024: 1.0}
"""One decode step and one prefill of 1024 tokens (the papers' sequence length), equally."""

Tokens = Mapping[int, float] | Sequence[int]
"""Token counts and their weights; counts alone weigh 1 each."""


def workload_of(tokens: Tokens | None) -> dict[int, float]:
    """``{1: 0.9, 1024: 0.1}`` or ``[1, 1024]`` as counts with weights; None is the default.

    Raises :class:`PlanError` for anything but a list of positive counts.
    """
    if tokens is None:
        return dict(DEFAULT_TOKENS)
    if getattr(tokens, "ndim", None) == 1:
        tokens = list(tokens.tolist())  # type: ignore[union-attr] # an array's or a tensor's
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Mapping | Sequence | Set):
        raise PlanError(
            f"the tokens are {tokens!r}: give counts such as [1, 1024], or counts with weights "
            "such as {1: 0.9, 1024: 0.1}"
        )
    pairs = tokens.items() if isinstance(tokens, Mapping) else [(count, 1.0) for count in tokens]
    if not pairs:
        raise PlanError("no token counts were given: leave tokens out for 1 and 1024, or name some")
    for count, weight in pairs:
        known = is_number(count, int) and is_number(weight)
        if not known or count <= 0 or not 0 < weight < float("inf"):
            raise PlanError(
                f"the workload {tokens} needs positive token counts (whole numbers) and weights"
            )
    return {int(count): float(weight) for count, weight in pairs}


def is_number(value: object, kind: type = Real) -> bool:
    """Whether the value is a number of that kind, NumPy's too; True and False are none."""
    return isinstance(value, Integral if kind is int else kind) and not isinstance(value, bool)

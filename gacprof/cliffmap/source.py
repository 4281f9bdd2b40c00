"""One source of sizes: all that diagnosing, planning and compressing see of a device.

A :class:`SizeSource` says whether a size is served well, what a product takes (an estimate with its
error, or nothing), which sizes are on offer, and where all this is from. The measured cliff map is
one; the rule table is another, of tiers and no number with a unit.

What is asked is always a :class:`Product` as one rank of a tensor-parallel group runs it: one dim
of the model is on one or both of its sides, and the others are as they are, or may be changed too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf
from numbers import Integral, Real
from typing import Any, ClassVar, Protocol

from gacprof.cliffmap.estimate import Estimate
from gacprof.cliffmap.selection import check_whole
from gacprof.core.errors import MapError, PlanError
from gacprof.core.files import Record
from gacprof.core.points import Environment, Flag
from gacprof.stats.findings import Verdict


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
class SizeCost:
    """What a source says of one size, in all products that the dim is in; or, of a size that it
    does not know, a ``verdict`` of None and what is ``missing`` to judge it.

    Times are µs over the workload, None where the source knows none, ``scaled`` where a part was
    not measured exactly. The penalty is the time over that of the fastest size at least as large,
    minus 1; ``penalty_high`` is None where nothing comparable is larger: the size is not safe then.
    ``tier`` counts mechanisms from the best, 1, where the source knows them; ``why`` says what the
    verdict rests on, where it is not a penalty; ``mechanism`` serves the product that is served
    worst. ``relative`` is what was published of that product's tier beside the best one (2.1:
    ×2.1), measured where ``relative_from`` says.
    """

    size: int
    latency_us: float | None = None
    penalty: float | None = None
    penalty_low: float | None = None
    penalty_high: float | None = None
    verdict: Verdict | None = None
    tier: int | None = None
    why: str = ""
    relative: float | None = None
    relative_from: str = ""
    mechanism: str | None = None
    scaled: bool = False
    missing: str = ""


class JudgedDim(Record):
    """What candidates of one source and of several have in common."""

    derived: ClassVar = ("safe",)

    d: int
    verdict: Verdict

    @property
    def safe(self) -> bool:
        return self.verdict == "safe"


@dataclass(frozen=True)
class Candidate(JudgedDim):
    """A dim and what it costs. ``latency_us`` is summed over the uses where there are several;
    ``penalty`` is how much longer it takes than the best larger dim, between ``penalty_low`` and
    ``penalty_high`` (None where nothing comparable is larger), judged by the ``tolerance``;
    ``curve`` says what that is known from.

    Where the source knows mechanisms and no times, ``tier`` counts them, 1 for the best, and
    latency and penalties are None; :meth:`as_dict` leaves them out."""

    d: int
    latency_us: float | None
    penalty: float | None
    penalty_low: float | None
    penalty_high: float | None
    verdict: Verdict
    on_frontier: bool
    tolerance: float | None
    curve: str = ""
    tier: int | None = None

    def as_dict(self) -> dict[str, Any]:
        found = super().as_dict()
        if self.tier is None:
            del found["tier"]
            return found
        return {
            name: found[name] for name in ("d", "tier", "verdict", "on_frontier", "curve", "safe")
        }


@dataclass(frozen=True)
class Use:
    """One operator that a dim takes part in: its shape, and the axis whose size the dim is.

    ``dims`` are the operator's dims at the layer's real shape; the size given there for
    ``axis``, if any, is ignored. ``weight`` is how often the use runs (tokens' share, calls).
    ``shards`` ranks share the dim: each runs that fraction of it.
    """

    operator: str
    dims: Mapping[str, int]
    axis: str
    dtype: str
    flags: Mapping[str, Flag] = field(default_factory=dict)
    weight: float = 1.0
    shards: int = 1

    def __post_init__(self) -> None:
        check_whole("shards", self.shards, 1)
        if not isinstance(self.weight, Real) or not 0 < self.weight < inf:
            raise MapError(f"a use's weight must be a number above 0, not {self.weight!r}")

    @property
    def fixed(self) -> dict[str, int]:
        """The operator's other dims."""
        return {name: size for name, size in self.dims.items() if name != self.axis}


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
    ) -> list[SizeCost]:
        """The verdict on each of these ascending sizes of a dim that is ``most`` at most, beside
        all larger sizes that the source knows. No size is safe without one to compare it with, or
        a mechanism than which there is no better."""

    def step(self, products: Sequence[Product]) -> int:
        """What sizes repeat with: multiples of it hide nothing of the other dims. 1: not known."""

    def mechanism(self, product: Product, size: int) -> str | None:
        """What serves the product at the largest token count, where it is known."""

    def head_dim(self, heads: int, kv_heads: int, head_dim: int) -> tuple[SizeCost, int] | None:
        """The verdict on an attention's head_dim, and a safe one at least as large, or the same
        where none is known; None where nothing is known."""

    def no_better(self, products: Sequence[Product]) -> str:
        """Why no size of these products is served better than another; empty where one may be."""

    def no_safe(self, products: Sequence[Product], fixed: Sequence[int]) -> str:
        """Why none of their sizes is safe, beside the ``fixed`` ones of their other sides, where
        none was found; empty where the source does not tell."""


class SizeSource(Protocol):
    """A device's good sizes, and where that is known from. ``basis`` is what every answer has to
    say of that, empty where the device itself was measured: it is written and never decides.
    ``tiers`` are those that it has to list, none where it has measured curves.
    """

    @property
    def name(self) -> str: ...

    @property
    def basis(self) -> str: ...

    @property
    def timed(self) -> bool:
        """Whether it knows what products take; one that does not has verdicts alone."""

    @property
    def estimated(self) -> bool:
        """Whether these times are estimates: a gain is claimed of all changes together then, and
        with its bounds."""

    @property
    def any_size(self) -> bool:
        """Whether it answers any size; one that does not answers those of its curves."""

    @property
    def instead(self) -> str:
        """What else answers the sizes that it lacks; empty where nothing would."""

    @property
    def busy(self) -> str:
        """How far other programs disturbed its measurement; empty where they did not."""

    @property
    def gpu(self) -> str:
        """The name on the data sheet (h100) of a GPU that is not at hand, by which others' times
        of it are found; empty where a device was measured."""

    @property
    def times(self) -> Any:
        """Those of them that it holds; None where it holds none."""

    @property
    def environment(self) -> Environment: ...

    @property
    def dtypes(self) -> Sequence[str]:
        """What products it knows anything of are computed in."""

    @property
    def usual_dtype(self) -> str:
        """The one that is meant where none is named; empty where one has to be."""

    @property
    def tiers(self) -> Sequence[Any]: ...

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

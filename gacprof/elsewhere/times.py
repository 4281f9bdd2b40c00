"""What matrix products take on a GPU that others measured, at any size, as intervals.

No table has misaligned sizes of N or K. The time of a product is the level that others measured,
times what was published of its tier; where nothing was, there is no time.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from gacprof.cliffmap.estimate import NORMAL_90, Estimate
from gacprof.core.errors import MapError
from gacprof.core.formatting import percent
from gacprof.devices.datasheet import Sheet
from gacprof.elsewhere.data import Measurements, Surface
from gacprof.elsewhere.levels import OUR_NAMES, Levels, apart, table_dtype
from gacprof.rules import gemm
from gacprof.rules.target import Target

if TYPE_CHECKING:
    from gacprof.elsewhere.needs import Need

PUBLISHED_WORK = 512 * 4096 * 4000
"""M · N · K of the product whose misaligned K was published (:data:`gemm.PAPER`). A smaller one may
be bound by its launch or by memory, and lose nothing: its bounds begin at its level."""
LAUNCH_US = 10.0
"""Below it a product's time is mostly its launch, the same at any size. What was published is of a
product of tens of µs (:data:`gemm.PAPER`) and says nothing of shorter ones."""
MEASURE = "measure it there: gacprof sweep --for MODEL"
BITS = {
    "bfloat16": 16.0, "fp8": 8.0, "fp8_block": 8.0, "sq": 8.0, "int8_wo": 8.0, "nvfp4": 4.5,
    "w4a16_mxfp4": 4.25, "int4_wo": 4.0,
}  # fmt: skip
"""Bits that a weight takes at least, by the tables' data types (demands/quantisation.py)."""
RATES = OUR_NAMES | {
    "fp8_block": "float8_e4m3", "int8_wo": "bfloat16", "int4_wo": "bfloat16",
    "w4a16_mxfp4": "bfloat16",
}  # fmt: skip
"""Whose peak rate on a data sheet bounds their arithmetic; of others no rate is known."""


class ProductTimes:
    """The times of one GPU's products, from its tables.

    ``engine`` is a framework of the tables (``vllm``); without one, the median of all counts.
    Raises :class:`MapError` for a GPU without tables of products and for an engine that is not
    there, naming those that are.
    """

    def __init__(self, about: Target, measured: Measurements, engine: str | None = None) -> None:
        self.target, self.measured, self.engine = about, measured, engine
        self.gpu = measured.gpu(about.sheet.key)
        there = measured.engines(self.gpu)
        if not there:
            raise MapError(f"there are no matrix products of '{self.gpu}' among the measurements")
        if engine is not None and engine not in there:
            raise MapError(
                f"no engine '{engine}' was measured: there are {', '.join(there)} (--engine)"
            )
        self._levels: dict[str, Levels] = {}

    @cached_property
    def surfaces(self) -> list[Surface]:
        return self.measured.surfaces(self.gpu)

    @cached_property
    def repeated(self) -> list[float] | None:
        """How far engines are from each other in bf16, where they call one library (cuBLAS): what
        is not known of one engine's single measurements. None without an engine."""
        return apart([s for s in self.surfaces if s.dtype == "bfloat16"]) if self.engine else None

    @property
    def provenance(self) -> str:
        return f"measured elsewhere: aiconfigurator-core {self.measured.version}"

    def levels(self, dtype: str) -> Levels:
        """The products in a data type. Raises :class:`MapError` where none were measured."""
        named = table_dtype(dtype)
        if named not in self._levels:
            try:
                self._levels[named] = Levels(self.surfaces, named, self.engine, self.repeated)
            except MapError as error:
                if named != "fp8" or OUR_NAMES[named] in self.target.chip.tiers:
                    raise
                sheet = self.target.sheet
                raise MapError(f"{sheet.name} ({sheet.arch}) has no fp8: {error}") from None
        return self._levels[named]

    def time(self, dtype: str, m: int, n: int, k: int) -> Estimate:
        """What y[m, n] = x[m, k] · Wᵀ takes. Raises as :meth:`levels`."""
        level = self.levels(dtype).at(m, n, k)
        if isinstance(level, str):
            return Estimate(None, level)
        relative = self._relative(OUR_NAMES.get(table_dtype(dtype), ""), m, n, k)
        if isinstance(relative, str):
            return Estimate(None, relative)
        if relative != 1.0 and level.us < LAUNCH_US:
            what = gemm.held_by(self.target, OUR_NAMES[table_dtype(dtype)], n, k)
            launch = f"{level.us:.2g} µs at good sizes, mostly the launch"
            return Estimate(None, f"{what}, {launch}: what it costs was not published; {MEASURE}")
        least = product_us(self.target.sheet, table_dtype(dtype), m, n, k)
        most = gemm.relative_most(self.target, relative)
        return _slower(level.estimate, relative, most, m * n * k).at_least(least)

    def _relative(self, dtype: str, m: int, n: int, k: int) -> float | str:
        """The published time of such sizes beside aligned ones; or why it is not known."""
        if dtype not in self.target.chip.tiers:
            aligned = n % 32 == 0 and k % 32 == 0  # as all sizes that were measured
            return 1.0 if aligned else f"what N={n}, K={k} cost is not known; {MEASURE}"
        tier = gemm.tier(self.target, dtype, m, n, k)
        if tier == 1:
            return 1.0
        cost = gemm.relative_cost(self.target, dtype, m, n, k)
        if tier is None or cost is None:
            what = gemm.held_by(self.target, dtype, n, k)
            return f"{what}: what that costs was not published; {MEASURE}"
        return cost

    @property
    def published(self) -> str:
        """What is known of misaligned sizes."""
        return f"what misaligned sizes cost: {gemm.published(self.target)}"

    def sources(self, dtype: str, tokens: Iterable[int]) -> str:
        """Framework, version and errors of the times; or why there are none."""
        try:
            levels = self.levels(dtype)
        except MapError as error:
            return f"no times: {error}"
        by = ", ".join(sorted({f"{s.framework} {s.version}" for s in levels.used}))
        errors = [level for m in tokens for level in (levels.error(m),) if level]
        alike = ", whose kernels float16 shares," if dtype == "float16" else ""
        left_out, differ = (max((e[i] for e in errors), default=0.0) for i in (0, 1))
        return (
            f"times are {self.provenance}, {levels.dtype}{alike} by {by}: sizes between the "
            f"measured ones err by up to {percent(left_out)}, engines differ by up to "
            f"{percent(differ)} (90 % of them)"
        )


def good_size(target: Target, dtype: str, size: int) -> int:
    """The next size of the best tier; of 32 where rules say nothing of the type, as of all that was
    measured."""
    named, multiple = OUR_NAMES.get(table_dtype(dtype), ""), 32
    if named in target.chip.tiers:
        demanded, _ = gemm.DEMANDS.get(named, (1, 1))
        multiple = max(gemm.levels(target, named)[0].elements, demanded)
    return -(-size // multiple) * multiple


def _slower(aligned: Estimate, relative: float, most: float, work: int) -> Estimate:
    """The time of a product of a worse tier, of its level and what was published of the tier: it
    costs ``relative``, and at most ``most``."""
    if relative == 1.0 or aligned.latency_us is None or aligned.own is None:
        return aligned
    least = relative if work >= PUBLISHED_WORK else 1.0
    low, high = aligned.own
    value = aligned.latency_us * relative
    spread = max(value - low * least, high * most - value) / NORMAL_90
    variance = spread**2 + (aligned.shared * value / NORMAL_90) ** 2
    own = low * least, high * most
    return Estimate(value, "", False, variance, own=own, shared=aligned.shared)


# The least time by the data sheet: weights are read once from memory, since a whole step's do not
# stay in the cache; activations are left out, as they may.


def product_us(sheet: Sheet, dtype: str, m: int, n: int, k: int) -> float:
    """At least so many µs of y[m, n] = x[m, k] · Wᵀ in one of the tables' data types."""
    return _roof(sheet, dtype, 2.0 * m * n * k, n * k * BITS.get(dtype, 0.0) / 8)


def least_us(sheet: Sheet, need: Need, tokens: int) -> float:
    """At least so many µs of one repetition of attention or experts; 0 where no bound is known."""
    at = need.shape
    if need.kind == "experts":
        one = 3 * at["hidden"] * at["width"]  # gate, up and down
        read = _experts_read(at["experts"], at["topk"], tokens)
        moved = read * one * BITS.get(need.dtype, 0.0) / 8
        return _roof(sheet, need.dtype, 2.0 * one * at["topk"] * tokens, moved)
    if need.kind == "attention" and tokens > 1:  # causal: half of all pairs, twice
        flops = 2.0 * at["heads"] * at["head_dim"] * tokens**2
        return _roof(sheet, "bfloat16", flops, 0.0)
    return 0.0


def _experts_read(experts: int, topk: int, tokens: int) -> float:
    """How many experts' weights a step reads: those of one token, true of any routing; by even
    routing once all may be needed."""
    if tokens * topk < experts:
        return topk
    return experts * (1 - (1 - topk / experts) ** tokens)


def _roof(sheet: Sheet, dtype: str, flops: float, moved: float) -> float:
    rate, gb_s = sheet.rates.get(RATES.get(dtype, "")), sheet.values.get("gb_s")
    return max(flops / rate / 1e6 if rate else 0.0, moved / gb_s / 1e3 if gb_s else 0.0)

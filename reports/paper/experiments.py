"""The nine disputes: what is measured for each, and how the outcome is read.

A is "Why Smaller Is Slower? Dimensional Misalignment in Compressed LLMs" (arXiv 2604.09595), B
its earlier draft "When Smaller Is Slower: Dimensional Collapse in Compressed LLMs".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from gacprof import operators
from gacprof.core.errors import MeasurementError
from gacprof.core.formatting import percent
from gacprof.core.points import Point, Sample
from gacprof.explaining.case import Where
from gacprof.kernels import Kernel, attach

SETTLED, UNDECIDED, OPEN = "settled", "undecided", "open"
"""Settled; measured but not told apart; not measured."""

Decision = tuple[str, str, tuple[str, ...]]
"""(status, finding, evidence)."""


class NotMeasuredError(MeasurementError):
    """The results lack a point that a rule needs."""


@dataclass(frozen=True)
class Results:
    """The samples of one dispute's points. ``floor`` is the relative noise floor."""

    samples: Sequence[Sample]
    where: Where
    floor: float

    def _of(self, point: Point) -> list[Sample]:
        return [s for s in self.samples if s.status == "ok" and s.timings_us and s.point == point]

    def latency(self, point: Point) -> float:
        """Median µs over all calls. Raises :class:`NotMeasuredError`."""
        timings = [t for sample in self._of(point) for t in sample.timings_us]
        if not timings:
            raise NotMeasuredError(f"{point} was not measured")
        return median(timings)

    def ratio(self, point: Point, to: Point) -> float:
        """latency(point) / latency(to). Raises :class:`NotMeasuredError`."""
        return self.latency(point) / self.latency(to)

    def has(self, *points: Point) -> bool:
        return all(self._of(point) for point in points)

    def kernels(self, point: Point) -> list[Kernel]:
        """The main kernels of one call of the point, where they were recorded."""
        names = next((sample.kernels for sample in self._of(point) if sample.kernels), ())
        return [group.main for group in attach(names)]

    @property
    def timers(self) -> str:
        return ", ".join(sorted({s.timer for s in self.samples if s.status == "ok"}))

    @property
    def failures(self) -> dict[Point, str]:
        failed = (sample for sample in self.samples if sample.status != "ok")
        return {s.point: f"{s.point}: {s.reason or s.status}" for s in failed}


@dataclass(frozen=True)
class Dispute:
    """``points`` are what is to be measured, ``rule`` reads the outcome off their samples.

    ``static`` settles it without a device where that can be done. ``needs`` says what a
    machine must have for ``points`` to mean anything.
    """

    number: int
    title: str
    claims: tuple[str, str]
    needs: str
    points: tuple[Point, ...] = ()
    rule: Callable[[Results], Decision] | None = None
    static: Callable[[], Decision] | None = None

    def decide(self, results: Results) -> Decision:
        """What the results say; undecided where a point is missing."""
        assert self.rule is not None
        try:
            return self.rule(results)
        except NotMeasuredError as missing:
            return UNDECIDED, str(missing), ()


def change(ratio: float) -> str:
    """1.4 → ``+40 %``."""
    return percent(ratio - 1, signed=True, decimals=0) or ""


def attention(head_dim: int, **flags: str) -> Point:
    """The papers' attention measurements: fp16, not causal (A, section 3)."""
    dims = {"batch": 4, "heads": 32, "q_len": 2048, "head_dim": head_dim}
    return operators.point("attention", dims, "float16", flags)


def product(M: int, N: int, K: int) -> Point:
    """``torch.mm`` of row-major fp16 matrices, as the papers timed it."""
    return operators.point("linear", {"M": M, "N": N, "K": K}, "float16", {"layout": "nn"})


def row_sum(k: int, dtype: str, specialise: bool = True) -> Point:
    """A Triton row sum over (1024, K), with or without what Triton knows of divisibility."""
    return operators.point("row_sum", {"rows": 1024, "K": k}, dtype, {"specialise": specialise})


# 1: who serves 107 ---------------------------------------------------------------------------

AUTO, MASKED = attention(107), attention(107, mask="float")
FLASH, MATH = attention(107, backend="flash"), attention(107, backend="math")


def who_serves_107(results: Results) -> Decision:
    """By kernel names where they were recorded, else by whose latency the default's equals."""
    names = results.kernels(AUTO)
    served = next((kernel for kernel in names if kernel.role == "attention"), None)
    if served is not None:
        finding = f"{served.provider} serves head_dim 107; it does not fall back to math (B)"
        us = f"{results.latency(AUTO):.0f} µs by default"
        return SETTLED, finding, (f"kernel at 107: {served}", us)
    if names:
        finding = "no attention kernel ran at 107: it falls back to math (A)"
        return SETTLED, finding, tuple(f"kernel at 107: {kernel}" for kernel in names)
    to_flash, to_math = results.ratio(AUTO, FLASH), results.ratio(AUTO, MATH)
    evidence = (f"default / flash {to_flash:.2f}", f"default / math {to_math:.2f}")
    near = max(results.floor, 0.05)
    if abs(to_flash - 1) <= near < abs(to_math - 1):
        return SETTLED, "the default is as slow as flash and unlike math: flash (B)", evidence
    if abs(to_math - 1) <= near < abs(to_flash - 1):
        return SETTLED, "the default is as slow as math and unlike flash: math (A)", evidence
    return UNDECIDED, "the default is like neither forced backend, or like both", evidence


# 2: sectors or loads -------------------------------------------------------------------------
#
# A's probe is a Triton row sum in fp16. A row starts on a 32-byte sector exactly if its length
# is a multiple of 16 elements, and Triton's JIT tells its compiler of divisibility by 16 and by
# nothing less: the two coincide, so the figure cannot tell them apart. In fp32 they part: rows
# of 8 modulo 16 start on sectors, yet Triton does not know. That the loads narrow is seen by
# compiling; whether sectors cost time on top takes a GPU. There the fp16 probe also runs with
# Triton's knowledge withheld (``specialise`` false), so that both lengths have narrow loads.

ALIGNED, HALF_ALIGNED, ODD = (row_sum(k, "float32") for k in (4096, 4104, 4097))
AS_COMPILED = row_sum(4097, "float16"), row_sum(4096, "float16")
ALL_NARROW = row_sum(4097, "float16", False), row_sum(4096, "float16", False)


def compiled_loads() -> Decision:
    """Compile the probe for K 4096, 4104 and 4097 as Triton's JIT would."""
    try:
        from compiled import compiled, jit_divisibility, loads, triton
    except ImportError as error:
        return OPEN, "Triton is needed to settle it without a GPU", (
            f"{error}: pip install 'gacprof[triton]'",
        )  # fmt: skip
    known = {k: jit_divisibility(k) for k in (4096, 4104, 4097)}
    narrowest = {k: min(loads(compiled("row_sum", 80, known[k])["ptx"])) for k in known}
    widths = {k: width for k, (width, _) in narrowest.items()}
    evidence = tuple(
        f"K {k}: {load}, {width} bytes (Triton {triton.__version__} knows divisibility by "
        f"{known[k]})"
        for k, (width, load) in narrowest.items()
    )
    if widths[4104] == widths[4097] != widths[4096]:
        finding = (
            "A's figure cannot show sectors: Triton narrows the loads of such a row sum for every "
            "K that is no multiple of 16, so 4104 is compiled like 4097"
        )
        return SETTLED, finding, evidence
    return UNDECIDED, "with this Triton the loads do not go by multiples of 16", evidence


def sectors_or_loads(results: Results) -> Decision:
    """fp32: 4104 rows start on sectors, 4097 do not, and Triton treats both alike."""
    half, odd = results.ratio(HALF_ALIGNED, ALIGNED), results.ratio(ODD, ALIGNED)
    evidence = [f"fp32, over K 4096: 4104 {half:.2f}, 4097 {odd:.2f}"]
    if results.has(*AS_COMPILED, *ALL_NARROW):  # what A's own dtype shows
        compiled, narrow = results.ratio(*AS_COMPILED), results.ratio(*ALL_NARROW)
        evidence.append(
            f"fp16, 4097 over 4096: {compiled:.2f}; with narrow loads in both {narrow:.2f}"
        )
    status, finding = SETTLED, "both: sector-aligned rows lie between full speed and odd ones"
    if odd <= 1 + results.floor:
        status, finding = UNDECIDED, "no K is slower than another here"
    elif abs(half - odd) <= results.floor * odd:
        finding = "sector-aligned rows are as slow as odd ones: Triton's loads, not sectors (B)"
    elif half <= 1 + results.floor:
        finding = "sector-aligned rows run at full speed though Triton does not know: sectors (A)"
    return status, finding, tuple(evidence)


# 3: the period on Hopper ---------------------------------------------------------------------

TENSOR = tuple(product(512, 4096, k) for k in range(4032, 4065))
"""A, figures 8a and 13a: M 512, N 4096, K around 4096."""


def is_there_a_period_of_16(results: Results) -> Decision:
    classes: dict[str, list[float]] = {"16": [], "8": [], "even": [], "odd": []}
    for p in filter(results.has, TENSOR):
        k = p.dim["K"]
        name = "odd" if k % 2 else "16" if k % 16 == 0 else "8" if k % 8 == 0 else "even"
        classes[name].append(results.latency(p))
    if not all(classes.values()):
        return UNDECIDED, "not every residue was measured", ()
    best = median(classes["16"])
    ratios = {name: median(listed) / best for name, listed in classes.items()}
    figures = ", ".join(f"{name} {ratios[name]:.2f}" for name in ("8", "even", "odd"))
    evidence = (f"latency over that of multiples of 16: {figures}",)
    if ratios["8"] > 1 + results.floor:
        finding = f"multiples of 8 alone are slower ({change(ratios['8'])}): there is a period 16"
    elif max(ratios["even"], ratios["odd"]) > 1 + results.floor:
        finding = "multiples of 8 run at full speed: the period is 8, not 16"
    else:
        finding = "no residue is slower than another"
    return SETTLED, finding, evidence


# 4: the latency of head_dim 64 ---------------------------------------------------------------

D64, D96 = attention(64), attention(96)
TABLE_MS, FIGURE_MS = 0.74, 0.826
"""A: table A.2 and figure 5, both for head_dim 64 on the A100."""


def how_long_64_takes(results: Results) -> Decision:
    ms = results.latency(D64) / 1000
    evidence: tuple[str, ...] = (f"{ms:.3f} ms at head_dim 64",)
    if results.has(D96):
        ratio = results.ratio(D96, D64)
        evidence += (f"96 / 64 is {ratio:.2f} (A's table: 1.5, its figure: 1.38)",)
    if results.where.arch != "sm80":
        finding = "the numbers are an A100's; on this device neither can be confirmed"
        return UNDECIDED, finding, evidence
    near = max(results.floor, 0.03) * ms
    table, figure = (abs(ms - claimed) <= near for claimed in (TABLE_MS, FIGURE_MS))
    if table == figure:
        return UNDECIDED, "as far from the table as from the figure", evidence
    which = f"the table, {TABLE_MS} ms" if table else f"the figure, {FIGURE_MS} ms"
    return SETTLED, f"{which}, is right", evidence


# 5: the step at M 1729 -----------------------------------------------------------------------

BEFORE, AFTER = product(1728, 2048, 128), product(1729, 2048, 128)
TEXT, PLOT = 1.30, 20.34 / 13.98
"""A: "~30 %" in the text; 13.98 and 20.34 µs in figure 7."""


def how_high_is_the_step_at_1729(results: Results) -> Decision:
    ratio = results.ratio(AFTER, BEFORE)
    evidence = (f"M 1728 → 1729: {change(ratio)}",)
    if results.where.arch != "sm80":
        return UNDECIDED, "the step is an A100's; this device has its own", evidence
    if ratio < 1 + results.floor:
        return SETTLED, "there is no such step with this library", evidence
    near = "the plotted 45 %" if abs(ratio - PLOT) < abs(ratio - TEXT) else "the text's 30 %"
    return SETTLED, f"{change(ratio)}, nearer to {near}", evidence


# 6: multiples of 8 ---------------------------------------------------------------------------

PLATEAU = tuple(
    product(2048, n, 128) for n in (1264, 1328, 1392, 1456, 1520, 1584, 1664, 1672, 1736)
)


def is_a_multiple_of_8_safe(results: Results) -> Decision:
    """Look for a jump between neighbouring multiples of 8 beyond growth and noise."""
    known = [(p.dim["N"], results.latency(p)) for p in PLATEAU if results.has(p)]
    if len(known) < 2:
        return UNDECIDED, "no two of these dims were measured", ()
    jumps = [(b / a - m / n, n, m, b / a) for (n, a), (m, b) in pairwise(known)]
    beyond, n, m, ratio = max(jumps)
    evidence = (f"N {n} → {m}: {change(ratio)}, though both are multiples of 8",)
    if beyond > results.floor:
        return SETTLED, "being a multiple of 8 does not make a dim safe", evidence
    return UNDECIDED, "no such jump among these dims on this device", evidence


# 7: 128 and its neighbours -------------------------------------------------------------------

NEAR_128 = tuple(attention(d) for d in (104, 112, 120, 128))


def does_128_beat_its_neighbours(results: Results) -> Decision:
    latency = {p.dim["head_dim"]: results.latency(p) for p in NEAR_128}
    evidence = tuple(f"{d}: {us:.0f} µs" for d, us in latency.items())
    ratio = min(us for d, us in latency.items() if d != 128) / latency[128]
    if ratio > 1 + results.floor:
        finding = (
            f"128 is the fastest of 104, 112, 120 and 128 ({change(1 / ratio)} on the next): "
            "the nearest aligned dim is not the best one"
        )
        return SETTLED, finding, evidence
    if ratio < 1 - results.floor:
        return SETTLED, "a smaller multiple of 8 is faster than 128 on this device", evidence
    return UNDECIDED, "they differ by less than the noise floor", evidence


# 8: ranks and attention ----------------------------------------------------------------------


def ranks_and_attention() -> Decision:
    finding = (
        "a rank pays no penalty of SDPA's: in ASVD, PaLU and SVD-LLM it is the inner size of two "
        "products, and the width of q, k and v is restored before attention"
    )
    evidence = (
        "factors are (rank, in) and (out, rank): the rank is K of one linear and N of the other",
        "head_dim in such a checkpoint's config and in its q, k, v outputs is the base model's",
    )
    return SETTLED, finding, evidence


# 9: aligned slower than misaligned -----------------------------------------------------------

SMALL = tuple(product(2048, 2048, k) for k in (107, 112, 127, 128))
SMALL_GEMV = tuple(
    operators.point("linear", {"M": 1, "N": 4096, "K": k}, "float16") for k in (4095, 4096)
)


def is_aligned_ever_slower(results: Results) -> Decision:
    ratios = {
        f"{a.dim['K']} / {b.dim['K']} at M={a.dim['M']}": results.ratio(a, b)
        for a, b in (SMALL[:2], SMALL[2:], SMALL_GEMV)
        if results.has(a, b)
    }
    if not ratios:
        return UNDECIDED, "none of these pairs was measured", ()
    evidence = (
        "misaligned over aligned: " + ", ".join(f"{n}: {r:.2f}" for n, r in ratios.items()),
        f"timer: {results.timers}",
    )
    if min(ratios.values()) >= 1 - results.floor:
        finding = "aligned is never slower here: what A's H100 files show is launch time"
        return SETTLED, finding, evidence
    return UNDECIDED, "an aligned dim is slower: if the host sets the time, use CUPTI", evidence


DISPUTES = (
    Dispute(
        1, "head_dim that is no multiple of 8: math or flash?",
        ("A: SDPA falls back to math", "B: flash stays, on a slow path"), "a CUDA GPU",
        (AUTO, FLASH, MATH, MASKED, attention(112)), who_serves_107,
    ),
    Dispute(
        2, "L2 sectors: 50 % or 6 %?",
        ("A: misaligned sectors cost about 50 %", "B: 5.8 %, not a cause"),
        "Triton, and a CUDA GPU for what sectors cost",
        (ALIGNED, HALF_ALIGNED, ODD, *AS_COMPILED, *ALL_NARROW), sectors_or_loads, compiled_loads,
    ),
    Dispute(
        3, "H100: the same period of 16 as on A100?",
        ("A, appendix: the same periodic degradation", "A's H100 data: full speed at 8"),
        "an H100 or H200", TENSOR, is_there_a_period_of_16,
    ),
    Dispute(
        4, "attention at head_dim 64: 0.74 or 0.826 ms?",
        ("A, table A.2: 0.74 ms", "A, figure 5: 0.826 ms"),
        "an A100 80GB with torch 2.9.1", (D64, D96), how_long_64_takes,
    ),
    Dispute(
        5, "M 1728 → 1729: 30 % or 45 %?",
        ("A, text: about 30 %", "A, figure 7: 13.98 → 20.34 µs"),
        "an A100 80GB with CUDA 12.8", (BEFORE, AFTER), how_high_is_the_step_at_1729,
    ),
    Dispute(
        6, "is a multiple of 8 safe?",
        ("A: multiples of 8 are aligned", "A's data: N 1672 costs 40 % more than 1664"),
        "a CUDA GPU", PLATEAU, is_a_multiple_of_8_safe,
    ),
    Dispute(
        7, "head_dim 104 to 120: is 128 faster?",
        ("A: repair to the nearest multiple of 8", "A's data: 128 beats 104, 112 and 120"),
        "a CUDA GPU", NEAR_128, does_128_beat_its_neighbours,
    ),
    Dispute(
        8, "does a rank reach attention?",
        ("the papers: SDPA's penalty is charged to ranks", "the layouts: no rank reaches SDPA"),
        "nothing: the checkpoints tell", static=ranks_and_attention,
    ),
    Dispute(
        9, "H100: aligned slower than misaligned?",
        ("A's H100 files of 2k GEMM and 4k GEMV", "event timing of launch-bound work"),
        "an H100 or H200", (*SMALL, *SMALL_GEMV), is_aligned_ever_slower,
    ),
)  # fmt: skip

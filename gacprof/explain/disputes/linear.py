"""Disputes about GEMM: the period on Hopper, two edges, a plateau, and the host's share."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

from gacprof import operators
from gacprof.core.points import Point
from gacprof.explain.disputes.value import SETTLED, UNDECIDED, Dispute, Results, percent

Decision = tuple[str, str, tuple[str, ...]]


def point(M: int, N: int, K: int) -> Point:
    """``torch.mm`` of row-major fp16 matrices, as the papers timed it."""
    return operators.point("linear", {"M": M, "N": N, "K": K}, "float16", {"layout": "nn"})


AROUND = range(4032, 4065)
TENSOR = tuple(point(512, 4096, k) for k in AROUND)
"""A, figures 8a and 13a: M 512, N 4096, K around 4096."""


def is_there_a_period_of_16(results: Results) -> Decision:
    classes: dict[str, list[float]] = {"16": [], "8": [], "even": [], "odd": []}
    for p in TENSOR:
        latency, k = results.latency(p), p.dim["K"]
        name = "odd" if k % 2 else "16" if k % 16 == 0 else "8" if k % 8 == 0 else "even"
        if latency is not None:
            classes[name].append(latency)
    if not all(classes.values()):
        return UNDECIDED, "not every residue was measured", ()
    best = median(classes["16"])
    ratios = {name: median(listed) / best for name, listed in classes.items()}
    evidence = (
        "latency over that of multiples of 16: "
        + ", ".join(f"{name} {ratios[name]:.2f}" for name in ("8", "even", "odd")),
    )
    if ratios["8"] > 1 + results.floor:
        finding = f"multiples of 8 alone are slower ({percent(ratios['8'])}): there is a period 16"
        return SETTLED, finding, evidence
    if ratios["even"] > 1 + results.floor or ratios["odd"] > 1 + results.floor:
        finding = "multiples of 8 run at full speed: the period is 8, not 16"
        return SETTLED, finding, evidence
    return SETTLED, "no residue is slower than another", evidence


BEFORE, AFTER = point(1728, 2048, 128), point(1729, 2048, 128)
TEXT, PLOT = 1.30, 20.34 / 13.98
"""A: "~30 %" in the text; 13.98 and 20.34 µs in figure 7."""


def how_high_is_the_step_at_1729(results: Results) -> Decision:
    ratio = results.ratio(AFTER, BEFORE)
    if ratio is None:
        return UNDECIDED, "M 1728 and 1729 were not both measured", ()
    evidence = (f"M 1728 → 1729: {percent(ratio)}",)
    if results.where.arch != "sm80":
        return UNDECIDED, "the step is an A100's; this device has its own", evidence
    if ratio < 1 + results.floor:
        return SETTLED, "there is no such step with this library", evidence
    near = "the plotted 45 %" if abs(ratio - PLOT) < abs(ratio - TEXT) else "the text's 30 %"
    return SETTLED, f"{percent(ratio)}, nearer to {near}", evidence


PLATEAU = tuple(point(2048, n, 128) for n in (1264, 1328, 1392, 1456, 1520, 1584, 1664, 1672, 1736))


def is_a_multiple_of_8_safe(results: Results) -> Decision:
    """Look for a jump between neighbouring multiples of 8 beyond growth and noise."""
    measured = [(p.dim["N"], results.latency(p)) for p in PLATEAU]
    known = [(n, latency) for n, latency in measured if latency is not None]
    if len(known) < 2:
        return UNDECIDED, "no two of these dims were measured", ()
    jumps = [(b / a - m / n, n, m, b / a) for (n, a), (m, b) in pairwise(known)]
    beyond, n, m, ratio = max(jumps)
    evidence = (f"N {n} → {m}: {percent(ratio)}, though both are multiples of 8",)
    if beyond > results.floor:
        return SETTLED, "being a multiple of 8 does not make a dim safe", evidence
    return UNDECIDED, "no such jump among these dims on this device", evidence


SMALL = tuple(point(2048, 2048, k) for k in (107, 112, 127, 128))
SMALL_GEMV = tuple(
    operators.point("linear", {"M": 1, "N": 4096, "K": k}, "float16") for k in (4095, 4096)
)


def is_aligned_ever_slower(results: Results) -> Decision:
    pairs = [(SMALL[0], SMALL[1]), (SMALL[2], SMALL[3]), SMALL_GEMV]
    ratios = {
        f"{a.dim['K']} / {b.dim['K']} at M={a.dim['M']}": ratio
        for a, b in pairs
        if (ratio := results.ratio(a, b)) is not None
    }
    if not ratios:
        return UNDECIDED, "none of these pairs was measured", ()
    evidence = (
        "misaligned over aligned: " + ", ".join(f"{n}: {r:.2f}" for n, r in ratios.items()),
        f"timer: {', '.join(sorted(results.timers()))}",
    )
    if min(ratios.values()) >= 1 - results.floor:
        finding = "aligned is never slower here: what A's H100 files show is launch time"
        return SETTLED, finding, evidence
    return UNDECIDED, "an aligned dim is slower: if the host sets the time, use CUPTI", evidence


DISPUTES = (
    Dispute(
        3,
        "H100: the same period of 16 as on A100?",
        ("A, appendix: the same periodic degradation", "A's H100 data: full speed at 8"),
        "an H100 or H200",
        TENSOR,
        is_there_a_period_of_16,
    ),
    Dispute(
        5,
        "M 1728 → 1729: 30 % or 45 %?",
        ("A, text: about 30 %", "A, figure 7: 13.98 → 20.34 µs"),
        "an A100 80GB with CUDA 12.8",
        (BEFORE, AFTER),
        how_high_is_the_step_at_1729,
    ),
    Dispute(
        6,
        "is a multiple of 8 safe?",
        ("A: multiples of 8 are aligned", "A's data: N 1672 costs 40 % more than 1664"),
        "a CUDA GPU",
        PLATEAU,
        is_a_multiple_of_8_safe,
    ),
    Dispute(
        9,
        "H100: aligned slower than misaligned?",
        ("A's H100 files of 2k GEMM and 4k GEMV", "event timing of launch-bound work"),
        "an H100 or H200",
        (*SMALL, *SMALL_GEMV),
        is_aligned_ever_slower,
    ),
)

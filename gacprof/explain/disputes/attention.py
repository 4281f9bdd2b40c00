"""Disputes about attention: who serves 107, how long 64 takes, whether 128 beats 112."""

from __future__ import annotations

from gacprof import operators
from gacprof.core.points import Point
from gacprof.explain.disputes.value import SETTLED, UNDECIDED, Dispute, Results, percent

SHAPE = {"batch": 4, "heads": 32, "q_len": 2048}
"""Of the papers' attention measurements, fp16, not causal (A, section 3)."""
Decision = tuple[str, str, tuple[str, ...]]


def point(head_dim: int, **flags: str) -> Point:
    return operators.point("attention", SHAPE | {"head_dim": head_dim}, "float16", flags)


AUTO, FLASH, MATH = point(107), point(107, backend="flash"), point(107, backend="math")
MASKED = point(107, mask="float")


def who_serves_107(results: Results) -> Decision:
    """By kernel names where they were recorded, else by whose latency the default's equals."""
    names = [group.main for group in results.groups(AUTO)]
    served = next((k for k in names if k.role == "attention"), None)
    auto = results.latency(AUTO)
    if served is not None:
        evidence = [f"kernel at 107: {served}"]
        if auto is not None:
            evidence.append(f"{auto:.0f} µs by default")
        finding = f"{served.provider} serves head_dim 107; it does not fall back to math (B)"
        return SETTLED, finding, tuple(evidence)
    if names:
        finding = "no attention kernel ran at 107: it falls back to math (A)"
        return SETTLED, finding, tuple(f"kernel at 107: {kernel}" for kernel in names)
    to_flash, to_math = results.ratio(AUTO, FLASH), results.ratio(AUTO, MATH)
    if to_flash is None or to_math is None:
        return UNDECIDED, "neither kernel names nor forced backends were measured", ()
    evidence_ = (f"default / flash {to_flash:.2f}", f"default / math {to_math:.2f}")
    near = max(results.floor, 0.05)
    if abs(to_flash - 1) <= near < abs(to_math - 1):
        return SETTLED, "the default is as slow as flash and unlike math: flash (B)", evidence_
    if abs(to_math - 1) <= near < abs(to_flash - 1):
        return SETTLED, "the default is as slow as math and unlike flash: math (A)", evidence_
    return UNDECIDED, "the default is like neither forced backend, or like both", evidence_


D64, D96 = point(64), point(96)
TABLE_MS, FIGURE_MS = 0.74, 0.826
"""A: table A.2 and figure 5, both for head_dim 64 on the A100."""


def how_long_64_takes(results: Results) -> Decision:
    latency = results.latency(D64)
    if latency is None:
        return UNDECIDED, "head_dim 64 was not measured", ()
    evidence = [f"{latency / 1000:.3f} ms at head_dim 64"]
    if (ratio := results.ratio(D96, D64)) is not None:
        evidence.append(f"96 / 64 is {ratio:.2f} (A's table: 1.5, its figure: 1.38)")
    if results.where.arch != "sm80":
        finding = "the numbers are an A100's; on this device neither can be confirmed"
        return UNDECIDED, finding, tuple(evidence)
    near = max(results.floor, 0.03) * latency / 1000
    table, figure = (abs(latency / 1000 - ms) <= near for ms in (TABLE_MS, FIGURE_MS))
    if table == figure:
        return UNDECIDED, "as far from the table as from the figure", tuple(evidence)
    which = f"the table, {TABLE_MS} ms" if table else f"the figure, {FIGURE_MS} ms"
    return SETTLED, f"{which}, is right", tuple(evidence)


NEAR_128 = tuple(point(d) for d in (104, 112, 120, 128))


def does_128_beat_its_neighbours(results: Results) -> Decision:
    *smaller, largest = (results.latency(p) for p in NEAR_128)
    if largest is None or any(value is None for value in smaller):
        return UNDECIDED, "not all of 104, 112, 120 and 128 were measured", ()
    sizes = [p.dim["head_dim"] for p in NEAR_128]
    evidence = tuple(
        f"{d}: {value:.0f} µs" for d, value in zip(sizes, [*smaller, largest], strict=True) if value
    )
    least = min(value for value in smaller if value is not None)
    ratio = least / largest
    if ratio > 1 + results.floor:
        finding = (
            f"128 is the fastest of 104, 112, 120 and 128 ({percent(1 / ratio)} on the next): "
            "the nearest aligned dim is not the best one"
        )
        return SETTLED, finding, evidence
    if ratio < 1 - results.floor:
        return SETTLED, "a smaller multiple of 8 is faster than 128 on this device", evidence
    return UNDECIDED, "they differ by less than the noise floor", evidence


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


DISPUTES = (
    Dispute(
        1,
        "head_dim that is no multiple of 8: math or flash?",
        ("A: SDPA falls back to math", "B: flash stays, on a slow path"),
        "a CUDA GPU",
        (AUTO, FLASH, MATH, MASKED, point(112)),
        who_serves_107,
    ),
    Dispute(
        4,
        "attention at head_dim 64: 0.74 or 0.826 ms?",
        ("A, table A.2: 0.74 ms", "A, figure 5: 0.826 ms"),
        "an A100 80GB with torch 2.9.1",
        (D64, D96),
        how_long_64_takes,
    ),
    Dispute(
        7,
        "head_dim 104 to 120: is 128 faster?",
        ("A: repair to the nearest multiple of 8", "A's data: 128 beats 104, 112 and 120"),
        "a CUDA GPU",
        NEAR_128,
        does_128_beat_its_neighbours,
    ),
    Dispute(
        8,
        "does a rank reach attention?",
        ("the papers: SDPA's penalty is charged to ranks", "the layouts: no rank reaches SDPA"),
        "nothing: the checkpoints tell",
        static=ranks_and_attention,
    ),
)

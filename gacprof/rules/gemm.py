"""Matrix products: alignment tiers of K and N, hard demands of 8-bit types, and what is not sure.

A tier follows from the rows that a kernel loads and stores: K for x and W, N for y. The token count
is no row: it is cut into tiles only (:mod:`gacprof.rules.waves`), and so is N. The best tier is
sure to be served well only at multiples of 128 bytes and with more than a few rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from gacprof.core.points import BYTES_PER_ELEMENT, Point
from gacprof.kernels.tiers import FP4, AlignmentTier
from gacprof.rules import waves
from gacprof.rules.target import NoRuleError, RefusedError, Rule, ServingTier, Target

HALVES = ("float16", "bfloat16")
LIBRARIES = "kernel names in libcublasLt 11.11, 12.8 and 13.10 (gacprof/kernels/tiers.py)"
TMA = "CUDA driver API, cuTensorMapEncodeTiled: globalStrides are multiples of 16 bytes"
PAPER = "arXiv 2604.09595, K around 4000 at M=512, N=4096, float16"

RELATIVE: Mapping[str, tuple[float, ...]] = {"a100": (1.0, 1.6, 3.0), "h100": (1.0, 2.1, 3.3)}
"""Published cost of K's tiers for 16-bit types, best first, by GPU: :data:`PAPER`'s points of
A100-80GB and H100-80GB. Others have none, of the same architecture too: another memory or clock
makes other costs."""
RELATIVE_MOST: Mapping[str, tuple[float, ...]] = {"h100": (1.0, 3.3, 5.7)}
"""What that cost is at most where the paper's best time was bound by the host: its 49.4 µs are 24.1
to 25.2 µs in aiconfigurator-core 0.12.0, by CUDA graph, and the differences in µs stay."""
HOST_OF_PAPER = {
    "h100": "perhaps bound by the host: the best took twice what others measured by CUDA graph, so "
    "that the true cost is larger"
}
"""Where times that :data:`RELATIVE` is made of may not be the GPU's."""
ROWS_OF_PAPER = 512
"""Fewer rows are bound by memory, and nothing was published for them."""

DEMANDS: Mapping[str, tuple[int, int]] = {"float8_e4m3": (16, 1), "int8": (8, 17)}
"""8-bit types: K and N have to be multiples of the first, M has to be the second at least."""
DEMANDED = "PyTorch raises in torch._scaled_mm and torch._int_mm for other sizes"

ADA_16 = Rule(
    "16-bit products of a multiple of 8 that is none of 16 mostly get a slower kernel (2056: 89.6 "
    "TFLOPS, 2040: 155.9); how they compare with odd ones is not known",
    "pytorch/pytorch#181718 (RTX 4090, bfloat16, square)",
    "thread",
)
SPLIT = Rule(
    "below M·N·K = 2^21 cuBLAS does not split K: 4 to 6 times slower at M=8, N=48, K=5120",
    "sgl-project/sglang#37491 (bfloat16)",
    "thread",
)
SPLIT_FROM, SPLIT_K = 1 << 21, 4096
ONE_ROW = Rule(
    "one token takes a gemv kernel: multiples of 8 of K lost up to 18 % near 3800 and 12 % near "
    "1200, odd N up to 12 % near 3850 and nothing from 4000 on; the times may be the host's, "
    "since none falls below two to six times what others measured by CUDA graph",
    "arXiv 2604.09595, figure 6 (A100)",
    "published",
)
FEW_ROWS = 16
FEW = Rule(
    "products of at most 16 rows are bound by loads and launches: 5 to 15 % of the aligned sizes "
    "that were measured lose more than 2 % to a larger one (of more rows than 256: 1 to 6 %)",
    "aiconfigurator-core 0.12.0, A100 and H100 (benchmarks/rules_by_evidence.py)",
    "elsewhere",
)
SURE_BYTES = 128
"""Multiples of it are safe as published. cuBLAS's guide asks for as much on A100: 64 elements of
16-bit types, 32 of tf32, 128 of int8; it is the widest swizzle of TMA."""
UNSURE = Rule(
    f"a multiple of the tier that is none of {SURE_BYTES} bytes: whether a larger one is served "
    "better is not known",
    "cuBLAS 13 documentation, section Tensor Core Usage",
    "document",
)
SIXTEEN = {
    key: Rule(
        f"near 4000 multiples of 8 that are none of 64 lost up to {most} to a larger size",
        "arXiv 2604.09595, figures 7, 8, 12 and 13",
        "published",
    )
    for key, most in (("a100", "19 %"), ("h100", "6 %"))
}
NARROW_NN = Rule(
    "torch.mm of x[M, K] · W[K, N] took 51 % more at N=1024 to 1256 than at 1264, with M=2048 and "
    "K=128; torch.nn.functional.linear of that shape did not (aiconfigurator-core 0.12.0)",
    "arXiv 2604.09595, figure 7 (A100)",
    "published",
)
NARROW_K = 256


@dataclass(frozen=True)
class AlignmentLevel:
    """Sizes that are multiples of ``elements``, served by one mechanism."""

    elements: int
    mechanism: str
    rule: Rule


def serve(point: Point, target: Target) -> ServingTier:
    """The tier of the worst of K and N."""
    d = point.dim
    _demand(point)
    found = levels(target, point.dtype)
    worst = 0
    offset = int(point.flag.get("offset", 0))  # 0 is a multiple of all
    for name, size in (("K", d["K"]), ("N", d["N"]), ("offset", offset)):
        at = _level(found, size)
        if at is None:
            raise RefusedError(
                f"{name}={size} is no multiple of {found[-1].elements}: no kernel serves it"
            )
        worst = max(worst, at)
    tier, mechanism, rules = worst + 1, found[worst].mechanism, [found[worst].rule]
    if point.operator == "linear" and _unsplit(target, point.dtype, d["M"], d["N"], d["K"]):
        tier, mechanism = tier + len(found), f"{mechanism}; K not split"
        rules.append(SPLIT)
    doubt = _doubt(point, target, tier == 1)
    relative = None
    if point.operator == "linear":
        relative = relative_cost(target, point.dtype, d["M"], d["N"], d["K"])
    if relative is not None:
        rules[0] = replace(rules[0], source=f"{rules[0].source}; cost: {paper(target)}")
    doubts: tuple[Rule, ...] = () if doubt is None else (doubt,)
    if tier == 1 and not (is_sure(point.dtype, d["N"]) and is_sure(point.dtype, d["K"])):
        doubts += (unsure(target, point.dtype),)
    return ServingTier(tier, mechanism, tuple(rules), relative, doubts, open=doubt is not None)


def _doubt(point: Point, target: Target, is_best: bool) -> Rule | None:
    """What leaves a verdict by the tier open; None where nothing does."""
    d, rows = point.dim, point.dim.get("M", FEW_ROWS + 1)
    if not is_best:  # one row of y is not stored in rows: N alone holds nothing back for sure
        k = _level(levels(target, point.dtype), d["K"])
        return ONE_ROW if rows == 1 and point.dtype in HALVES and k == 0 else None
    if rows <= FEW_ROWS:
        return ONE_ROW if rows == 1 else FEW
    return NARROW_NN if point.flag.get("layout") == "nn" and d["K"] < NARROW_K else None


def sure_multiple(dtype: str) -> int:
    """What K and N are multiples of where the best tier is sure, in elements."""
    return 2 * SURE_BYTES if dtype == FP4 else SURE_BYTES // BYTES_PER_ELEMENT[dtype]


def is_sure(dtype: str, size: int) -> bool:
    """Whether a size of K or N that is of the best tier is surely served well."""
    return size % sure_multiple(dtype) == 0


def unsure(target: Target, dtype: str) -> Rule:
    """What is known of sizes of the best tier that are not sure."""
    return SIXTEEN.get(target.sheet.key, UNSURE) if dtype in HALVES else UNSURE


def tier(target: Target, dtype: str, m: int, n: int, k: int) -> int | None:
    """The tier that :func:`serve` gives ``y[m, n] = x[m, k] · Wᵀ``, without its reasons; None where
    no kernel serves it.

    Fewer rows than the type takes count as just enough: who serves such a type pads them. Raises
    :class:`NoRuleError` for a type without rules.
    """
    found = levels(target, dtype)
    multiple, _ = DEMANDS.get(dtype, (1, 1))
    at = [None if size % multiple else _level(found, size) for size in (n, k)]
    if at[0] is None or at[1] is None:
        return None
    worst = max(at[0], at[1]) + 1
    return worst + len(found) if _unsplit(target, dtype, m, n, k) else worst


def held_by(target: Target, dtype: str, n: int, k: int) -> str:
    """Which of N and K holds a product back: ``N=22938 is of tier 2 (product 22938×4096)``. Raises
    as :func:`tier`."""
    bad = [
        f"{axis}={size} " + (f"is of tier {alone}" if alone else "has no kernel")
        for axis, size in (("N", n), ("K", k))
        if (alone := tier(target, dtype, ROWS_OF_PAPER, size, 4096)) != 1
    ]
    return f"{' and '.join(bad) or 'K is not split'} (product {n}×{k})"


def _level(found: Sequence[AlignmentLevel], size: int) -> int | None:
    return next((i for i, level in enumerate(found) if size % level.elements == 0), None)


def _demand(point: Point) -> None:
    multiple, rows = DEMANDS.get(point.dtype, (1, 1))
    for name in ("K", "N"):
        if point.dim[name] % multiple:
            raise RefusedError(f"{name}={point.dim[name]} is no multiple of {multiple}: {DEMANDED}")
    if point.dim.get("M", rows) < rows:
        raise RefusedError(f"M={point.dim['M']} is below {rows}: {DEMANDED}")


@lru_cache
def levels(target: Target, dtype: str) -> tuple[AlignmentLevel, ...]:
    """Best first. Raises :class:`NoRuleError` for a type that the GPU has no rules for."""
    if dtype not in target.chip.tiers:
        raise NoRuleError(f"{target.sheet.name} ({target.arch}) has no rules for {dtype}")
    found = [
        AlignmentLevel(tier.elements(dtype), f"{tier.load} ({tier.kernels})", _rule(tier, dtype))
        for tier in target.chip.tiers[dtype]
    ]
    if target.arch == "sm89" and dtype in HALVES:
        found.insert(0, AlignmentLevel(16, found[0].mechanism, found[0].rule))
        found[1] = AlignmentLevel(found[1].elements, f"{found[1].mechanism}, smaller tiles", ADA_16)
    return tuple(found)


def _rule(tier: AlignmentTier, dtype: str) -> Rule:
    multiple = tier.elements(dtype)
    sizes = "any size" if multiple == 1 else f"multiples of {multiple}"
    says = f"{sizes}: {tier.load}; {tier.why}"
    if tier.basis == "document":
        return Rule(says, TMA, "document")
    return Rule(says, LIBRARIES, "expected" if tier.basis == "expected" else "binary")


def _unsplit(target: Target, dtype: str, m: int, n: int, k: int) -> bool:
    if target.arch != "sm120" or dtype not in HALVES:
        return False
    return m > 1 and k >= SPLIT_K and m * n * k < SPLIT_FROM


def paper(target: Target) -> str:
    """Where the published cost is from, and why it may be wrong on this GPU."""
    host = HOST_OF_PAPER.get(target.sheet.key)
    return f"{PAPER} ({host})" if host else PAPER


def published(target: Target) -> str:
    """What was published of the tiers' cost on this GPU."""
    if target.sheet.key not in RELATIVE:
        return f"none was published for {target.sheet.name}, measure it there"
    return f"of K alone, beside tier 1: {paper(target)}"


def relative_cost(target: Target, dtype: str, m: int, n: int, k: int) -> float | None:
    """The published cost of K's tier beside the best one, where K is what holds the product there;
    None where none was published for such a product on this GPU."""
    known = RELATIVE.get(target.sheet.key)
    if known is None or dtype not in HALVES or m < ROWS_OF_PAPER:
        return None
    found = levels(target, dtype)
    by_k, by_n = _level(found, k), _level(found, n)
    return None if by_k is None or by_n is None or by_k < by_n else known[by_k]


def relative_most(target: Target, cost: float) -> float:
    """The upper bound of a cost by :func:`relative_cost`; the same where none is known."""
    known = RELATIVE.get(target.sheet.key, ())
    most = RELATIVE_MOST.get(target.sheet.key, known)
    return most[known.index(cost)] if cost in known else cost


def step(point: Point, axis: str, target: Target) -> int:
    """Dims of one number do the same work: whole slices along K, along M and N what
    :mod:`gacprof.rules.waves` says.

    A slice is 128 bytes of K (``64x64_64x4``, 64 elements of a 16-bit type), 64 up to Ada
    (``_32x6``)."""
    if axis != "K":
        return waves.step(point, axis, target) if axis in ("M", "N") else point.dim[axis]
    slice_bytes = 64 if target.arch in waves.OLD else 128
    return -(-point.dim[axis] * BYTES_PER_ELEMENT[point.dtype] // slice_bytes)

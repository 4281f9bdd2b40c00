"""Matrix products: alignment tiers of K and N, hard demands of 8-bit types, tiles and waves.

A tier follows from the rows that a kernel loads and stores: K for x and W, N for y. The token count
is no row: it is cut into tiles only, and so is N. Tiles and waves bound what a step may cost; they
do not say where the library's heuristic puts one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from gacprof.core.points import BYTES_PER_ELEMENT, Point
from gacprof.kernels.tiers import AlignmentTier
from gacprof.rules.target import NoRuleError, RefusedError, Rule, Served, Target

HALVES = ("float16", "bfloat16")
LIBRARIES = "kernel names in libcublasLt 11.11, 12.8 and 13.10 (gacprof/kernels/tiers.py)"
TMA = "CUDA driver API, cuTensorMapEncodeTiled: globalStrides are multiples of 16 bytes"
PAPER = "arXiv 2604.09595, K around 4000 at M=512, N=4096, float16"

RELATIVE: Mapping[str, tuple[float, ...]] = {"sm80": (1.0, 1.6, 3.0), "sm90": (1.0, 2.1, 3.3)}
"""Published cost of K's tiers for 16-bit types, best first: :data:`PAPER`'s points of A100 and
H100. Other architectures have none."""
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
    "one token takes a gemv kernel; that its loads want the same multiples is not shown",
    "PyTorch's dispatch of matrix times vector",
    "expected",
)
SIXTEEN = {
    arch: Rule(
        f"multiples of 8 that are none of 16 were up to {most} slower than those of 16 near 4000, "
        "and no slower near 100",
        "arXiv 2604.09595, figures 7, 8, 12 and 13",
        "published",
    )
    for arch, most in (("sm80", "19 %"), ("sm90", "6 %"))
}
"""Seen when the rules were compared with the published maps: a doubt, no tier of its own."""

OLD_TILES = (
    (64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (256, 64), (128, 256), (256, 128),
)  # fmt: skip
"""Tiles of cuBLAS's 16-bit kernels for sm80, which sm86 and sm89 run too; either way round, since
cuBLAS computes the transpose of a row-major product. From the names of ampere_*16816gemm kernels in
libcublasLt."""
MOST_WAVES = 8
"""The end of the ninth wave costs less than an eighth."""
OLD = ("sm80", "sm86", "sm89")


@dataclass(frozen=True)
class Level:
    """Sizes that are multiples of ``elements``, served by one mechanism."""

    elements: int
    mechanism: str
    rule: Rule


def serve(point: Point, target: Target) -> Served:
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
    doubts = []
    if d.get("M") == 1 and point.operator == "linear":
        doubts = [ONE_ROW]
    elif point.dtype in HALVES and target.arch in SIXTEEN:
        doubts = [SIXTEEN[target.arch]]
    if point.operator == "linear" and _unsplit(target, point.dtype, d["M"], d["N"], d["K"]):
        tier, mechanism = tier + len(found), f"{mechanism}; K not split"
        rules.append(SPLIT)
    relative = None
    if point.operator == "linear":
        relative = relative_cost(target, point.dtype, d["M"], d["N"], d["K"])
    if relative is not None:
        rules[0] = replace(rules[0], source=f"{rules[0].source}; cost: {PAPER}")
    return Served(tier, mechanism, tuple(rules), relative, tuple(doubts))


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


def _level(found: Sequence[Level], size: int) -> int | None:
    return next((i for i, level in enumerate(found) if size % level.elements == 0), None)


def _demand(point: Point) -> None:
    multiple, rows = DEMANDS.get(point.dtype, (1, 1))
    for name in ("K", "N"):
        if point.dim[name] % multiple:
            raise RefusedError(f"{name}={point.dim[name]} is no multiple of {multiple}: {DEMANDED}")
    if point.dim.get("M", rows) < rows:
        raise RefusedError(f"M={point.dim['M']} is below {rows}: {DEMANDED}")


@lru_cache
def levels(target: Target, dtype: str) -> tuple[Level, ...]:
    """Best first. Raises :class:`NoRuleError` for a type that the GPU has no rules for."""
    if dtype not in target.chip.tiers:
        raise NoRuleError(f"{target.sheet.name} ({target.arch}) has no rules for {dtype}")
    found = [
        Level(tier.elements(dtype), f"{tier.load} ({tier.kernels})", _rule(tier, dtype))
        for tier in target.chip.tiers[dtype]
    ]
    if target.arch == "sm89" and dtype in HALVES:
        found.insert(0, Level(16, found[0].mechanism, found[0].rule))
        found[1] = Level(found[1].elements, f"{found[1].mechanism}, smaller tiles", ADA_16)
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


def relative_cost(target: Target, dtype: str, m: int, n: int, k: int) -> float | None:
    """The published cost of K's tier beside the best one, where K is what holds the product there;
    None where none was published for such a product on this architecture."""
    known = RELATIVE.get(target.arch)
    if known is None or dtype not in HALVES or m < ROWS_OF_PAPER:
        return None
    found = levels(target, dtype)
    by_k, by_n = _level(found, k), _level(found, n)
    return None if by_k is None or by_n is None or by_k < by_n else known[by_k]


def step(point: Point, axis: str, target: Target) -> int:
    """Dims of one number do the same work: whole tiles along M and N, whole slices along K.

    The finest that any kernel has: 64 rows or columns, from Hopper on 8 (nvjet's tiles go from
    ``64x8`` to ``256x256``); 64 bytes of K, from Hopper on 128 (``64x64_32x6``, ``_64x4``).
    """
    size = point.dim[axis]
    if axis not in ("K", "N", "M", "tokens"):
        return size
    old = target.arch in OLD
    finest = 64 if old else 8
    if axis == "K":
        finest = (64 if old else 128) // BYTES_PER_ELEMENT[point.dtype]
    return -(-size // finest)


@dataclass(frozen=True)
class Edge:
    """``after`` this dim a wave of ``tile`` ends: the next costs at most the share ``at_most``
    more."""

    after: int
    tile: str
    at_most: float


def wave_edges(point: Point, axis: str, target: Target, dims: Sequence[int]) -> list[Edge]:
    """Where a step over M or N may be, by the tiles that are known and the GPU's SMs.

    Empty where the tiles are too many to say anything (nvjet's), or the SMs are not known.
    """
    sms = target.sheet.sms
    if target.arch not in OLD or sms is None or axis not in ("M", "N"):
        return []
    if point.operator not in ("linear", "bmm") or point.dtype not in HALVES:
        return []
    across = point.dim["N" if axis == "M" else "M"]
    batch = point.dim.get("batch", 1) if point.operator == "bmm" else 1
    largest: dict[int, Edge] = {}
    for along, other in OLD_TILES:
        beside = batch * -(-across // other)
        for waves in range(1, MOST_WAVES + 1):
            edge = Edge(along * (waves * sms // beside), f"{along}×{other}", round(1 / waves, 4))
            known = largest.get(edge.after)
            if dims[0] <= edge.after < dims[-1] and (not known or known.at_most < edge.at_most):
                largest[edge.after] = edge
    return [largest[after] for after in sorted(largest)]

"""Findings on the products that ran in misaligned kernels: why they did, what they could take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import gcd
from statistics import median
from typing import Literal

from gacprof.hardware.datasheet import GpuFacts
from gacprof.tracing.runs import VECTOR_BYTES, Run, best_alignment
from gacprof.tracing.weights import CheckpointProducts

VOCABULARY = 30_000
"""A weight's side from it on is called a vocabulary where no checkpoint tells: BERT has 30,522
words, the MLP of a Llama of 70 billion parameters a width of 28,672."""
LOAD_BYTES = (16, 4, 2, 1)  # of the loads that kernels are made for
LIKE = 4.0  # products of like size: their arithmetic is within this factor

Cause = Literal[
    "weight", "vocabulary", "head_dim", "tokens", "tokens or weight", "mixed", "memory", "no shape"
]
"""Why a product ran misaligned. A side of a ``weight`` or of a ``vocabulary``, or a number of
``tokens``, is no multiple (of stacked matrices it is not always known which), or sides of several
such causes (``mixed``). Attention pads a ``head_dim``. Or the sizes allow a better kernel and the
``memory`` is off: a pointer, or rows within a larger matrix. ``no shape``: the file has none."""


@dataclass(frozen=True)
class MisalignedProduct:
    """A product that ran in a misaligned kernel, ``count`` times for ``us`` in all.

    ``at_fault`` are the lengths that are no multiple of ``multiple``; ``product`` is its shape,
    ``kernel`` the tier that ran, ``layer`` the module that called it first.
    ``floor_us`` is what the data sheet's rates allow for all runs; ``like_aligned_us`` what they
    would take as near that floor as the trace's aligned products of like size; None where not
    known. ``weights`` and ``dims`` are those of the checkpoint that have these lengths.
    """

    cause: Cause
    at_fault: Mapping[str, int]
    multiple: int
    product: str
    kernel: str
    count: int
    us: float
    floor_us: float | None
    like_aligned_us: float | None
    layer: str = ""
    weights: tuple[str, ...] = ()
    dims: tuple[str, ...] = ()


@dataclass(frozen=True)
class Neighbours:
    """What the other products of a trace tell of one: the ``row_counts`` and ``sides`` of products
    of a matrix and a weight, head_dims of the checkpoint among the latter, and its vocabularies
    (None: no checkpoint); by type and arithmetic how near aligned products came to their floor."""

    row_counts: frozenset[int]
    sides: frozenset[int]
    vocabularies: frozenset[int] | None
    nearness: Mapping[str, Sequence[tuple[int, float]]]


def neighbours_of(
    runs: Sequence[Run], facts: GpuFacts | None, weights: CheckpointProducts
) -> Neighbours:
    """Return what the products of a trace tell of one another."""
    flat = [run.product for run in runs if run.product and not run.product.is_batched]
    sides = {product.N for product in flat} | {product.K for product in flat} | weights.head_dims
    nearness: dict[str, list[tuple[int, float]]] = {}
    for run in runs:
        floor = run.floor_us(facts)
        if run.kind == "aligned" and run.product and run.kernel.dtype and floor and run.us:
            # What comes from a cache is faster than the memory's floor.
            share = min(1.0, floor / run.us)
            nearness.setdefault(run.kernel.dtype, []).append((run.product.flops, share))
    row_counts = frozenset(product.M for product in flat)
    vocabularies = weights.vocabularies if weights.path else None
    return Neighbours(row_counts, frozenset(sides), vocabularies, nearness)


def finding_on(
    run: Run, facts: GpuFacts | None, neighbours: Neighbours, weights: CheckpointProducts
) -> MisalignedProduct:
    """Say why a product ran in a misaligned kernel, and what it could take."""
    floor = run.floor_us(facts)
    candidates = weights.of(run.product)
    names = tuple(dict.fromkeys(chain.from_iterable(product.weights for product in candidates)))
    return MisalignedProduct(
        cause=cause_of(run, neighbours, is_weight=bool(candidates)),
        at_fault=run.lengths_at_fault,
        multiple=best_alignment(run.kernel),
        product="attention" if run.head_dim else str(run.product or ""),
        kernel=f"{run.kernel.mechanism} {run.kernel.layout or ''}".rstrip(),
        count=run.count,
        us=run.us,
        floor_us=floor,
        like_aligned_us=like_aligned_us(run, floor, neighbours),
        layer=run.layer,
        weights=names,
        dims=weights.dims_of(names, run.lengths_at_fault),
    )


def cause_of(run: Run, neighbours: Neighbours, *, is_weight: bool) -> Cause:
    """Return why a product ran misaligned; ``is_weight``: the checkpoint has its lengths."""
    if run.head_dim is not None:
        return "head_dim"
    if run.product is None:
        return "no shape"
    if allowed_alignment(run) > (run.kernel.alignment or 1):
        return "memory"
    causes: set[Cause] = set()
    for length in run.lengths_at_fault.values():
        if run.product.is_batched and not is_weight:
            causes.add(cause_of_stacked(length, neighbours))
        elif neighbours.vocabularies is None:
            causes.add("vocabulary" if length >= VOCABULARY else "weight")
        else:
            causes.add("vocabulary" if length in neighbours.vocabularies else "weight")
    return causes.pop() if len(causes) == 1 else "mixed"


def cause_of_stacked(length: int, neighbours: Neighbours) -> Cause:
    """Return what a side of stacked matrices is: weights are multiplied by whole sequences, and the
    heads of a layer are a side of its weights."""
    is_count = any(count % length == 0 for count in neighbours.row_counts)
    is_part = any(side % length == 0 for side in neighbours.sides)
    if is_count == is_part:
        return "tokens or weight"
    return "tokens" if is_count else "weight"


def allowed_alignment(run: Run) -> int:
    """Return the elements that the kernel's rows could be a multiple of by the sizes alone."""
    itemsize = VECTOR_BYTES // best_alignment(run.kernel)
    divisor = itemsize * gcd(*run.contiguous_lengths.values())
    nbytes = max(nbytes for nbytes in LOAD_BYTES if divisor % nbytes == 0)
    return max(1, nbytes // itemsize)


def like_aligned_us(run: Run, floor_us: float | None, neighbours: Neighbours) -> float | None:
    """Return what a product would take as near its floor as aligned ones of like size."""
    if run.product is None or floor_us is None:
        return None
    like = []
    for flops, share in neighbours.nearness.get(run.kernel.dtype or "", ()):
        if 1 / LIKE <= flops / run.product.flops <= LIKE:
            like.append(share)
    return floor_us / median(like) if like else None

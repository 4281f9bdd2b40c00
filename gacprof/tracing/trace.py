"""The verb ``trace``: which kernels of the user's own trace ran misaligned, why, what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from math import gcd
from pathlib import Path
from statistics import median
from typing import ClassVar, Literal

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import inventory_of
from gacprof.core.errors import ConfigError, MeasurementError
from gacprof.gpus.datasheet import GpuFacts, find_gpu, gpu_facts
from gacprof.tracing.recording import Recording
from gacprof.tracing.runs import VECTOR_BYTES, Kind, Run, best_alignment, runs_of
from gacprof.tracing.summaries import read_ncu_report, read_nsys
from gacprof.tracing.weights import CheckpointProducts, checkpoint_products, weight_runs

MIN_GAIN = 0.02  # of the GPU's time: what is worth a finding
VOCABULARY = 30_000
"""A weight's side from it on is called a vocabulary where no checkpoint tells: BERT has 30,522
words, the MLP of a Llama of 70 billion parameters a width of 28,672."""
LOAD_BYTES = (16, 4, 2, 1)  # of the loads that kernels are made for
COMPARED = 0.9  # of the time of misaligned products: enough to speak of all
LIKE = 4.0  # products of like size: their arithmetic is within this factor

Cause = Literal["weight", "vocabulary", "tokens", "tokens or weight", "mixed", "memory", "no shape"]
"""Why a product ran misaligned. A side of a ``weight`` or of a ``vocabulary``, or a number of
``tokens``, is no multiple (of stacked matrices it is not always known which), or sides of several
such causes (``mixed``). Or the sizes allow a better kernel and the ``memory`` is off: a pointer, or
rows within a larger matrix. ``no shape``: the file does not say."""


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
class TraceReport:
    """The kernels of a trace by what names and shapes say. Shares are fractions of the GPU's time;
    ``causes`` are those of the misaligned products.

    ``gain_at_most`` is what misaligned products take beyond the data sheet's floor, or all that
    they take where that is not known; ``gain_like_aligned`` what would be won if they came as near
    it as aligned products of like size (None: most have none). ``in_graphs`` is the share of CUDA
    graphs, whose kernels have no shapes. Of the ``weight_products`` that have a shape ``matched``
    have the lengths of the checkpoint's weights. ``operators`` counts those of the host.
    ``data_sheet`` is the GPU's key there; empty: no floor is known.
    """

    schema: ClassVar[str] = "gacprof.TraceReport/1"

    trace: str
    gpu: str
    data_sheet: str
    kernels: int
    us: float
    operators: int
    shares: Mapping[Kind, float]
    causes: Mapping[Cause, float]
    products: tuple[MisalignedProduct, ...]
    gain_at_most: float
    gain_like_aligned: float | None
    in_graphs: float
    weight_products: int
    matched: int | None = None
    checkpoint: str = ""

    @property
    def ok(self) -> bool:
        """Whether aligned kernels could save no more than 2 % of the GPU's time."""
        return self.gain_at_most <= MIN_GAIN


def trace(
    path: str | Path,
    *,
    checkpoint: str | Path | Inventory | None = None,
    gpu: str | None = None,
) -> TraceReport:
    """Say which products of a profiler's trace ran in misaligned kernels, why, and what that cost.

    Parameters
    ----------
    path
        A trace of torch.profiler, vLLM or SGLang (.json, .json.gz); or names alone: a kernel
        summary of nsys stats (.csv), an Nsight Compute report (.ncu-rep).
    checkpoint
        The model that ran: its dims are named by the lengths of the products.
    gpu
        The GPU that ran it, such as h100, where the trace names none that is known.

    Returns
    -------
    TraceReport
        Shares of the GPU's time, and the products that ran in misaligned kernels.

    Raises
    ------
    MeasurementError, CheckpointError, ConfigError
    """
    recording = read_recording(Path(path))
    facts = facts_of(recording.device, gpu)
    runs = runs_of(recording.launches)
    weights = CheckpointProducts()
    if checkpoint is not None:
        weights = checkpoint_products(inventory_of(checkpoint))
    of_weights = weight_runs(runs, weights)
    neighbours = neighbours_of(runs, facts, weights)
    total = sum(run.us for run in runs) or 1.0
    shares: dict[Kind, float] = {}
    causes: dict[Cause, float] = {}
    products = []
    for run in runs:
        shares[run.kind] = shares.get(run.kind, 0.0) + run.us / total
        if run.kind == "misaligned":
            of_run = weights if run in of_weights else CheckpointProducts()
            finding = finding_on(run, facts, neighbours, of_run)
            products.append(finding)
            causes[finding.cause] = causes.get(finding.cause, 0.0) + finding.us / total
    gains = [max(0.0, finding.us - (finding.floor_us or 0.0)) for finding in products]
    matched = sum(run.count for run in of_weights if weights.of(run.product))
    return TraceReport(
        trace=str(path),
        gpu=recording.device or (facts.name if facts else ""),
        data_sheet=facts.key if facts else "",
        kernels=sum(run.kernels for run in runs),
        us=sum(run.us for run in runs),
        operators=recording.operators,
        shares=shares,
        causes=causes,
        products=tuple(sorted(products, key=lambda finding: -finding.us)),
        gain_at_most=sum(gains) / total,
        gain_like_aligned=gain_like_aligned(products, total),
        in_graphs=sum(launch.us for launch in recording.launches if launch.is_in_graph) / total,
        weight_products=sum(run.count for run in of_weights),
        matched=None if checkpoint is None else matched,
        checkpoint=weights.path,
    )


def read_recording(path: Path) -> Recording:
    """Read what a profiler wrote, by the file's suffix."""
    if not path.is_file():
        raise MeasurementError(f"{path} is no file: name a profiler's trace (.json, .json.gz)")
    if path.suffix == ".ncu-rep":
        return read_ncu_report(path)
    if path.suffix in (".csv", ".nsys-rep", ".sqlite"):
        return read_nsys(path)
    from gacprof.tracing.kineto import read_kineto

    return read_kineto(path)


def facts_of(device: str, gpu: str | None) -> GpuFacts | None:
    """Return the data sheet of the GPU that a trace names, else of the one that the user names: it
    has to be of the architecture that the trace's name hints at (a slice of a GPU)."""
    recorded = hinted = None
    with suppress(ConfigError):
        hinted = find_gpu(device)
        recorded = gpu_facts(device)
    if gpu is None:
        return recorded
    named = gpu_facts(gpu)
    is_other = hinted is not None and hinted.arch != named.arch
    if is_other or recorded not in (None, named):
        raise ConfigError(f"the trace was recorded on {device}, not on {gpu}: leave --gpu out")
    return named


@dataclass(frozen=True)
class Neighbours:
    """What the other products of a trace tell of one: the ``row_counts`` and ``sides`` of products
    of a matrix and a weight, head_dims of the checkpoint among the latter, and its vocabularies
    (None: there is no checkpoint); by type how near aligned products came to their floor, by their
    arithmetic."""

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
        product=str(run.product or ""),
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


def gain_like_aligned(products: Sequence[MisalignedProduct], total: float) -> float | None:
    """Return the share that would be won at the rates of aligned products; None where too many have
    none of like size."""
    gain = compared = 0.0
    for finding in products:
        if finding.like_aligned_us is not None:
            gain += max(0.0, finding.us - finding.like_aligned_us) / total
            compared += finding.us
    is_enough = compared > COMPARED * sum(finding.us for finding in products)
    return gain if is_enough else None


def like_aligned_us(run: Run, floor_us: float | None, neighbours: Neighbours) -> float | None:
    """Return what a product would take as near its floor as aligned ones of like size."""
    if run.product is None or floor_us is None:
        return None
    like = []
    for flops, share in neighbours.nearness.get(run.kernel.dtype or "", ()):
        if 1 / LIKE <= flops / run.product.flops <= LIKE:
            like.append(share)
    return floor_us / median(like) if like else None

"""The verb ``trace``: which kernels of the user's own trace ran misaligned, why, what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import ClassVar, Literal

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import inventory_of
from gacprof.core.dtypes import ITEMSIZE
from gacprof.core.errors import ConfigError, MeasurementError
from gacprof.gpus.datasheet import GpuFacts, gpu_facts
from gacprof.kernels.names import Kernel, parse
from gacprof.tracing.recording import Launch, RecordedProduct, Recording
from gacprof.tracing.weights import CheckpointProducts, checkpoint_products
from gacprof.workload.products import Axis

MIN_GAIN = 0.02  # of the GPU's time: what is worth a finding
VECTOR_BYTES = 16  # the widest loads, which the best tier uses
NO_TIERS = ("float32", "float64", "complex64", "complex128")
"""What plain multipliers compute: kernels load single elements, so alignment hardly matters."""
VOCABULARY = 20_000
"""A weight's side from it on is called a vocabulary where no checkpoint tells: BERT's 30,522 words
are few."""
MAX_HEAD_DIM = 512  # of known families; a longer side of stacked products is a number of tokens
AXES: Sequence[Axis] = ("N", "K")  # sides of weights
LIKE = 4.0  # products of like size: their arithmetic is within this factor

Kind = Literal["misaligned", "aligned", "no tiers", "not judged", "attention", "other", "unknown"]
"""What a kernel is. A product's name says that it is ``aligned`` or ``misaligned``, that it has
``no tiers`` (gemv, plain float32), or nothing of alignment (``not judged``: engines' kernels,
convolutions). Else it is ``attention``, some ``other`` kernel, or its name is ``unknown``."""
Cause = Literal["weight", "vocabulary", "tokens", "memory", "no shape"]
"""Why a product ran misaligned. A side of a ``weight`` or of a ``vocabulary``, or a number of
``tokens``, is no multiple; or all are and the ``memory`` is off: a pointer, or rows within a larger
matrix. ``no shape``: the file does not say."""


@dataclass(frozen=True)
class MisalignedProduct:
    """A product that ran in a misaligned kernel, ``count`` times for ``us`` in all.

    ``at_fault`` are the lengths that are no multiple of ``multiple``; ``product`` is the operator
    with its shape, ``kernel`` the tier that ran, ``layer`` the module that called it first.
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
    """The kernels of a trace by what names and shapes say. Shares are fractions of the GPU's time.

    ``gain_at_most`` is what misaligned products take beyond the data sheet's floor, or all that
    they take where that is not known; ``gain_like_aligned`` what would be won if they came as near
    it as aligned products of like size (None: there are none). ``in_graphs`` is the share of CUDA
    graphs, whose kernels have no shapes. Of the ``weight_products`` that have a shape ``matched``
    have the lengths of the checkpoint's weights. ``operators`` counts those of the host.
    """

    schema: ClassVar[str] = "gacprof.TraceReport/1"

    trace: str
    gpu: str
    kernels: int
    us: float
    operators: int
    shares: Mapping[Kind, float]
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
        The GPU that ran it, such as h100, where the trace names none.

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
    weights = None if checkpoint is None else checkpoint_products(inventory_of(checkpoint))
    misaligned = [run for run in runs if run.kind == "misaligned"]
    products = [finding_on(run, runs, facts, weights) for run in misaligned]
    of_weights = [run for run in runs if run.product and not run.product.is_batched]
    matched = None
    if weights is not None:
        matched = sum(run.count for run in of_weights if run.product and weights.of(run.product))
    total = sum(run.us for run in runs) or 1.0
    shares: dict[Kind, float] = {}
    for run in runs:
        shares[run.kind] = shares.get(run.kind, 0.0) + run.us / total
    likely = [p.us - p.like_aligned_us for p in products if p.like_aligned_us is not None]
    return TraceReport(
        trace=str(path),
        gpu=recording.device or (facts.name if facts else ""),
        kernels=sum(run.count for run in runs),
        us=sum(run.us for run in runs),
        operators=recording.operators,
        shares=shares,
        products=tuple(sorted(products, key=lambda product: -product.us)),
        gain_at_most=sum(max(0.0, p.us - (p.floor_us or 0.0)) for p in products) / total,
        gain_like_aligned=sum(max(0.0, gain) for gain in likely) / total if likely else None,
        in_graphs=sum(launch.us for launch in recording.launches if launch.is_in_graph) / total,
        weight_products=sum(run.count for run in of_weights),
        matched=matched,
        checkpoint=weights.inventory.path if weights else "",
    )


def read_recording(path: Path) -> Recording:
    """Read what a profiler wrote, by the file's suffix."""
    if not path.is_file():
        raise MeasurementError(f"{path} is no file: name a profiler's trace (.json, .json.gz)")
    if path.suffix in (".csv", ".ncu-rep"):
        from gacprof.tracing.summaries import read_ncu_report, read_nsys

        return read_nsys(path) if path.suffix == ".csv" else read_ncu_report(path)
    from gacprof.tracing.kineto import read_kineto

    return read_kineto(path)


def facts_of(device: str, gpu: str | None) -> GpuFacts | None:
    """Return the data sheet of the GPU that a trace names, else of the one that the user names."""
    recorded = None
    if device:
        try:
            recorded = gpu_facts(device)
        except ConfigError:  # no data sheet: floors are not known
            recorded = None
    if gpu is None:
        return recorded
    if device and gpu_facts(gpu) != recorded:
        raise ConfigError(f"the trace was recorded on {device}, not on {gpu}: leave --gpu out")
    return gpu_facts(gpu)


@dataclass(frozen=True)
class Run:
    """All runs of one product, or of what is none, in kernels of one tier, for ``us`` in all."""

    kernel: Kernel
    product: RecordedProduct | None
    layer: str
    count: int
    us: float

    @property
    def kind(self) -> Kind:
        """What the kernel is."""
        return kind_of_kernel(self.kernel)

    def floor_us(self, facts: GpuFacts | None) -> float | None:
        """What all runs take at the data sheet's rates, by arithmetic or by bytes; None where the
        shape or the rates are not known. Of 186 products in public traces none was faster
        (reports/traces.md)."""
        if facts is None or self.product is None or self.kernel.dtype is None:
            return None
        times = []
        rate = facts.tflops.get(self.kernel.math or "")
        if rate is not None:
            times.append(self.product.flops / rate / 1e6)
        if facts.gb_s is not None:
            moved = self.product.elements * ITEMSIZE[self.kernel.dtype]
            times.append(moved / facts.gb_s / 1e3)
        return self.count * max(times) if times else None


def runs_of(launches: Iterable[Launch]) -> list[Run]:
    """Return the launches, those of one product in kernels of one tier together."""
    runs: dict[object, Run] = {}
    for launch in launches:
        kernel = parse(launch.kernel)
        key = kernel.mechanism, kernel.role, kernel.layout, launch.product
        run = runs.get(key) or Run(kernel, launch.product, launch.layer, 0, 0.0)
        runs[key] = replace(run, count=run.count + launch.count, us=run.us + launch.us)
    return list(runs.values())


def kind_of_kernel(kernel: Kernel) -> Kind:
    """Return what a kernel is, by its name."""
    if kernel.provider == "unknown":
        return "unknown"
    if kernel.role.startswith("attention"):
        return "attention"
    is_product = kernel.role in ("gemm", "gemv", "dot", "convolution")
    if not is_product:
        return "other"
    if kernel.role in ("gemv", "dot") or (kernel.role == "gemm" and kernel.math in NO_TIERS):
        return "no tiers"
    if kernel.role == "convolution" or kernel.dtype is None:
        return "not judged"
    if kernel.family == "nvjet":  # rows come by TMA, whose strides are multiples of 16 bytes
        return "aligned"
    if kernel.alignment is None:
        return "not judged"
    return "aligned" if kernel.alignment >= best_alignment(kernel) else "misaligned"


def best_alignment(kernel: Kernel) -> int:
    """Return how many elements the widest load holds."""
    return VECTOR_BYTES // ITEMSIZE[kernel.dtype] if kernel.dtype else 1


def finding_on(
    run: Run,
    runs: Sequence[Run],
    facts: GpuFacts | None,
    weights: CheckpointProducts | None,
) -> MisalignedProduct:
    """Say why a product ran in a misaligned kernel, and what it could take."""
    floor = run.floor_us(facts)
    at_fault = lengths_at_fault(run)
    finding = MisalignedProduct(
        cause=cause_of(run, at_fault, runs),
        at_fault=at_fault,
        multiple=best_alignment(run.kernel),
        product=str(run.product or ""),
        kernel=f"{run.kernel.mechanism} {run.kernel.layout or ''}".rstrip(),
        count=run.count,
        us=run.us,
        floor_us=floor,
        like_aligned_us=None if floor is None else like_aligned_us(run, floor, runs, facts),
        layer=run.layer,
    )
    if weights is None or run.product is None or finding.cause not in ("weight", "vocabulary"):
        return finding
    candidates = weights.of(run.product)
    if run.product.is_batched or not candidates:
        return finding
    is_vocabulary = {candidate.role.kind for candidate in candidates} == {"vocab"}
    names = [name for candidate in candidates for name in candidate.weights]
    return replace(
        finding,
        cause="vocabulary" if is_vocabulary else "weight",
        weights=tuple(dict.fromkeys(names)),
        dims=weights.dims(run.product, [axis for axis in AXES if axis in at_fault]),
    )


def lengths_at_fault(run: Run) -> dict[str, int]:
    """Return the lengths that are no multiple of what the widest load holds, by dim."""
    if run.product is None:
        return {}
    lengths = {dim: getattr(run.product, dim) for dim in run.kernel.contiguous_dims}
    multiple = best_alignment(run.kernel)
    return {dim: length for dim, length in lengths.items() if length % multiple}


def cause_of(run: Run, at_fault: Mapping[str, int], runs: Sequence[Run]) -> Cause:
    """Return why a product ran misaligned."""
    if run.product is None:
        return "no shape"
    if not at_fault:
        return "memory"
    # The length with the fewest factors of 2 decides which kernel serves.
    length = min(at_fault.values(), key=lambda length: length & -length)
    if not run.product.is_batched:
        return "vocabulary" if length >= VOCABULARY else "weight"
    rows = {other.product.M for other in runs if other.product and other.product.is_batched}
    return "tokens" if length in rows or length > MAX_HEAD_DIM else "weight"


def like_aligned_us(
    run: Run, floor_us: float, runs: Sequence[Run], facts: GpuFacts | None
) -> float | None:
    """Return what a product would take as near its floor as aligned ones of like size."""
    assert run.product is not None
    nearness = []
    for other in runs:
        floor = other.floor_us(facts)
        if floor is None or other.product is None or other.kind != "aligned":
            continue
        ratio = other.product.flops / run.product.flops
        if other.kernel.dtype == run.kernel.dtype and 1 / LIKE <= ratio <= LIKE:
            nearness.append(floor / other.us)
    return floor_us / median(nearness) if nearness else None

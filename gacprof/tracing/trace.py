"""The verb ``trace``: which kernels of the user's own trace ran misaligned, why, what it cost."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import inventory_of
from gacprof.core.errors import ConfigError, MeasurementError
from gacprof.core.results import Table
from gacprof.hardware.datasheet import GpuFacts, find_gpu, gpu_facts
from gacprof.tracing.findings import Cause, MisalignedProduct, finding_on, neighbours_of
from gacprof.tracing.recording import Recording
from gacprof.tracing.runs import Kind, runs_of
from gacprof.tracing.summaries import read_ncu_report, read_nsys
from gacprof.tracing.weights import CheckpointProducts, checkpoint_products, weight_runs

MIN_GAIN = 0.02  # share of the GPU's time that is worth a finding
NOTHING_JUDGED = 0.995  # share of kernels of which nothing is known, rounded to all
COMPARED = 0.9  # share of the misaligned products' time, enough to speak of all


@dataclass(frozen=True)
class TraceReport(Table):
    """A report on a trace's kernels, by what names and shapes say. Shares are fractions of the
    GPU's time; ``causes`` are those of the misaligned products.

    ``gain_at_most`` is the time of the misaligned products beyond the data sheet's floor, or all of
    it where no floor is known (attention); it does not bound what other kernels could save, such as
    ``gemv``. ``gain_like_aligned`` is what would be won if they came as near the floor as aligned
    products of like size (None: most have none). ``in_graphs`` is the share of CUDA graphs, whose
    kernels have no shapes. Of the ``weight_products`` that have a shape ``matched`` have the
    lengths of the checkpoint's weights. ``operators`` counts those of the host. ``data_sheet`` is
    the GPU's key there; empty: no floor is known. ``unknown`` are names of kernels that say
    nothing.
    """

    schema: ClassVar[str] = "gacprof.TraceReport/1"
    rows_in: ClassVar[str] = "products"

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
    unknown: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether aligned kernels in place of the misaligned ones could save no more than 2 % of
        the GPU's time, some of which was judged."""
        dark = self.shares.get("unknown", 0.0) + self.shares.get("not judged", 0.0)
        return self.gain_at_most <= MIN_GAIN and dark < NOTHING_JUDGED


def trace(
    path: str | Path,
    *,
    checkpoint: str | Path | Inventory | None = None,
    gpu: str | None = None,
) -> TraceReport:
    """Find the misaligned products in a profiler's trace: which they are, why, and what they cost.

    Parameters
    ----------
    path
        A trace of torch.profiler, vLLM or SGLang (.json, .json.gz). Or names of kernels alone,
        without shapes: a kernel summary of nsys stats (.csv), an Nsight Compute report (.ncu-rep).
    checkpoint
        The model that ran: the products are then named by its weights.
    gpu
        The GPU that ran it, such as h100, where the trace does not name it.

    Returns
    -------
    TraceReport
        Shares of the GPU's time, and the products that ran in misaligned kernels.

    Raises
    ------
    MeasurementError, CheckpointError, ConfigError

    Examples
    --------
    >>> report = gacprof.trace("tests/fixtures/h200/ragged.json.gz")  # ranks of 107 on an H200
    >>> report.ok, sorted(report.causes)
    (False, ['weight'])
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
        unknown=tuple(run.kernel.name for run in runs if run.kind == "unknown"),
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
    """Return the data sheet of the GPU that a trace names, else of the one that the user names. The
    latter has to be of the architecture that the trace's name hints at (a slice of a GPU)."""
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


def gain_like_aligned(products: Sequence[MisalignedProduct], total: float) -> float | None:
    """Return the share won at the rates of aligned products; None where too few are alike."""
    gain = compared = 0.0
    for finding in products:
        if finding.like_aligned_us is not None:
            gain += max(0.0, finding.us - finding.like_aligned_us) / total
            compared += finding.us
    is_enough = compared > COMPARED * sum(finding.us for finding in products)
    return gain if is_enough else None

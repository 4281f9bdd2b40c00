"""Why a size is slow, and what shows it: counters, compilers, libraries' reports, kernel names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.cliffmap.request import ExplainRequest, OnSamples
from gacprof.core.errors import MapError, MeasurementError
from gacprof.core.files import Record, path_of
from gacprof.core.formatting import Listed
from gacprof.core.request import Request, argument, option, verb
from gacprof.evaluation.request import OnBatch

if TYPE_CHECKING:
    from gacprof.cliffmap import CliffMap
    from gacprof.explaining.causes import Explanation
    from gacprof.kernels import KernelGroup
    from gacprof.kernels.evidence import KernelCounters
    from gacprof.kernels.onednn import CpuImplementation
    from gacprof.kernels.sdpa import BackendChoice


def _explain(request: ExplainRequest) -> Explanation:
    """Why a dim of a map is slow: what serves it, what each cause costs, on what evidence.

    Counters are read from the sweep's folder ``samples``, by default from beside the map's file.
    Raises :class:`MapError` where the map holds no such dim or the folder is of another device.
    """
    from gacprof.cliffmap import CliffMap
    from gacprof.explaining.causes import explain_map
    from gacprof.kernels.evidence import read_counters

    cliff_map = request.cliff_map
    loaded = CliffMap.load(cliff_map)
    folder = None if request.samples is None else Path(request.samples)
    if folder is not None:
        _check_counters(folder, loaded)
    elif isinstance(cliff_map, str | Path) and Path(cliff_map).is_file():
        folder = Path(cliff_map).parent
    counters = read_counters(folder) if folder else {}
    return explain_map(
        loaded.file, request.operator, request.d, request.axis, request.dtype,
        request.fixed or {}, request.flags, counters,
    )  # fmt: skip


explain = verb("explain", ExplainRequest, _explain)


def _check_counters(folder: Path, loaded: CliffMap) -> None:
    """Counters of another device say nothing about this map's cliffs."""
    from gacprof.kernels.evidence import COUNTERS
    from gacprof.sweeping import environment_of

    of, device = environment_of(folder), loaded.environment
    if (of.kind, of.name, of.arch) != (device.kind, device.name, device.arch):
        raise MapError(
            f"{folder} was measured on {of.name} ({of.arch}), the map '{loaded.name}' is of "
            f"{device.name} ({device.arch}): give a sweep of that device with --samples"
        )
    if not (folder / COUNTERS).exists():
        raise MapError(
            f"{folder} holds no counters ({COUNTERS}): gacprof evidence ncu {folder} collects them"
        )


class OnPoints(Request):
    """A request on the points of a sweep."""

    error = MeasurementError

    edges: bool = option(default=False, help="Only the cliffs' edges and their neighbours.")


class CountRequest(OnPoints):
    """Counters at a sweep's points, or those of a ``report`` that exists."""

    samples: str | Path | None = argument(
        default=None, kw_only=False, read=Path, help="A sweep's folder; --report needs none."
    )
    report: str | Path | None = option(
        default=None, read=Path, help="Read this .ncu-rep instead of collecting one."
    )
    device: str = option(default="cuda:0", help="The GPU to count on: cuda:0, cuda:1 …")
    timeout_s: float = option(
        default=1800.0, name="--timeout", read=float, least=1, help="Seconds for ncu, in all."
    )


@dataclass(frozen=True)
class Launch(Record):
    """A kernel launch with its counters; ``point`` is None of a report without a sweep."""

    point: str | None
    counters: KernelCounters

    def as_dict(self) -> dict[str, Any]:
        return {"point": self.point} | self.counters.as_dict()


@dataclass(frozen=True)
class KernelLaunches(Record):
    """``problem`` says why counters are missing, and how to get them."""

    launches: list[Launch]
    problem: str


def _count_kernels(request: CountRequest) -> KernelLaunches:
    """Count with Nsight Compute at a sweep's points, or read a report that exists. Counters are
    kept in the folder, where ``build_map`` and ``explain`` find them.

    Raises :class:`MeasurementError` for a sweep of a CPU and a report that cannot be read; that
    ncu or a permission is missing is said in the result.
    """
    from gacprof.extras.evidence.collecting import count
    from gacprof.extras.evidence.ncu import read_report

    report = None if request.report is None else Path(request.report)
    if request.samples is not None:
        folder = path_of(request.samples, MeasurementError, "a sweep's folder")
        known, problem = count(folder, request.edges, report, request.device, request.timeout_s)
        launches = [Launch(str(point), one) for point, of in known.items() for one in of]
        return KernelLaunches(launches, problem)
    if report is None:
        raise MeasurementError("give a sweep's folder, or --report FILE.ncu-rep, or both")
    return KernelLaunches([Launch(None, one) for one in read_report(report)], "")


count_kernels = verb("count_kernels", CountRequest, _count_kernels)


class CpuRequest(OnPoints, OnSamples):
    """Which implementations of the CPU's libraries serve a sweep's points."""


def _ask_cpu_libraries(request: CpuRequest) -> Listed[CpuImplementation]:
    """Ask oneDNN and MKL which implementation serves each point. Kept in the folder, where
    ``build_map`` finds it. Raises :class:`MeasurementError` for a sweep of another device."""
    from gacprof.extras.evidence.collecting import ask_libraries

    folder = path_of(request.samples, MeasurementError, "a sweep's folder")
    return Listed(ask_libraries(folder, request.edges), f"points of {folder}")


ask_cpu_libraries = verb("ask_cpu_libraries", CpuRequest, _ask_cpu_libraries)


class NamesRequest(Request):
    """Kernel names of one call."""

    error = MeasurementError

    kernels: Sequence[str] = argument(
        kw_only=False, many=True,
        help="Kernel names, in order of launch; - reads them from stdin, by line.",
    )  # fmt: skip


def _read_kernel_names(request: NamesRequest) -> Listed[KernelGroup]:
    """What kernel names mean, as groups of what prepared, did and completed a piece of work. What
    no rule knows is ``unknown`` with its name kept."""
    from gacprof.kernels import attach

    return Listed(attach(request.kernels), "kernels")


read_kernel_names = verb("read_kernel_names", NamesRequest, _read_kernel_names)


class SdpaRequest(Request):
    """One attention call, by the rules for an architecture or, without one, on the GPU at hand."""

    error = MapError

    head_dim: int = option(kw_only=False, read=int, least=1, help="Of queries and keys.")
    arch: str | None = option(
        default=None, help="By rules, for this chip: sm80 … Default: the GPU at hand."
    )
    torch: str | None = option(default=None, help="With --arch. Default: installed.")
    cudnn: int | None = option(default=None, read=int, help="With --arch, as 91002.")
    v_head_dim: int | None = option(default=None, read=int, least=1, help="Default: --head-dim.")
    dtype: str = option(
        default="float16", choices=("float16", "bfloat16", "float32"),
        help="float16, bfloat16 or float32.",
    )  # fmt: skip
    mask: str = option(default="none", help="none, float or bool.")
    causal: bool = option(default=False, help="A causal mask.")
    batch: int = option(default=1, like=OnBatch)
    heads: int = option(default=32, read=int, least=1, help="Query heads.")
    kv_heads: int | None = option(default=None, read=int, least=1, help="Default: --heads.")
    q_len: int = option(default=2048, read=int, least=1, help="Query tokens.")
    kv_len: int | None = option(default=None, read=int, least=1, help="Default: --q-len.")


def _sdpa_backend(request: SdpaRequest) -> BackendChoice:
    """Which backend serves an attention call, and why each of the others does not.

    With ``arch`` by rules of that PyTorch release; without, PyTorch itself is asked about the GPU
    at hand. Raises :class:`MapError` for a call that no backend serves.
    """
    from gacprof.kernels.sdpa import Question, ask, choose_backend

    r, d = request, request.head_dim
    keys = r.batch, r.kv_heads or r.heads, r.kv_len or r.q_len
    question = Question(
        r.arch or "", (r.batch, r.heads, r.q_len, d), (*keys, d), (*keys, r.v_head_dim or d),
        r.dtype, r.torch or metadata.version("torch"), r.cudnn, r.mask, r.causal,
    )  # fmt: skip
    return choose_backend(question) if r.arch else ask(question)


sdpa_backend = verb("sdpa_backend", SdpaRequest, _sdpa_backend)

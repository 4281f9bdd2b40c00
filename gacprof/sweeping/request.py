"""What a sweep measures and how it runs, as one value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.cliffmap.request import CurveRequest
from gacprof.cliffmap.source import Tokens
from gacprof.core import Progress
from gacprof.core.errors import SuiteError
from gacprof.core.request import RUN, Request, argument, hook, option
from gacprof.core.texts import budget_seconds, first_and_last, shapes_or_name, workload
from gacprof.devices.worker import BLOCK_TIMEOUT_S

if TYPE_CHECKING:
    import torch

    from gacprof.checkpoint import Inventory
    from gacprof.core.points import Flag
    from gacprof.sweeping.suite import Suite

    Model = str | Path | Inventory | torch.nn.Module

OWN_CURVE = "A curve of your own in place of a suite"
SHAPES = "A model's shapes in place of a suite"


class Running(Request):
    """How a sweep runs. With ``resume`` the sweep in ``out`` goes on; its suite need not be named
    again. ``budget_s`` ends it; 16 calls that take longer than ``timeout_s`` cost their worker
    process."""

    error = SuiteError

    resume: bool = option(default=False, group=RUN, help="Go on with the sweep in --out.")
    budget_s: float | None = option(
        default=None, name="--budget", read=budget_seconds, above=0, metavar="8m", group=RUN,
        help="End after this time; --resume takes the rest.",
    )  # fmt: skip
    timeout_s: float = option(
        default=BLOCK_TIMEOUT_S, name="--timeout", read=float, least=0.1, group=RUN,
        help="Seconds for one block before a worker is replaced.",
    )  # fmt: skip
    timer: str = option(
        default="auto", group=RUN, help="A GPU's timer: auto, cuda-graph or cuda-events."
    )
    isolate: bool = option(
        default=True, group=RUN, help="Measure in worker processes, or in this one."
    )
    progress: Progress | None = hook(default=None)


class SweepRequest(Running):
    """What :func:`gacprof.sweep` is asked: a suite (by name, file or value; or an own
    :func:`~gacprof.operator`'s ``over``).

    Or the shapes of a ``model`` (a checkpoint's path or inventory, or a module in memory) at the
    token counts ``tokens`` (default: 1 and 1024; weights are left aside), and what its dims could
    become within ± the share ``window``: what a diagnosis and a plan need. With a ``preset``
    (``vllm,tp=4,marlin``) the nearest sizes that the engine takes are among them.

    Or, before compression, the factor pairs that the linear layers of the dense model
    ``ranks_of`` (or weights of these (out, in) shapes) would be cut into, over ``ranks`` from
    the first to the last: what :func:`gacprof.safe_ranks` needs.

    Or the curve of one ``operator`` over one ``axis``, ``ranks`` its first and last dim, the other
    dims ``fixed``.
    """

    suite: Suite | Mapping[str, Any] | str | Path | None = argument(
        default=None, kw_only=False,
        help="A suite's name (quick, full, cpu, paper …) or a TOML file.",
    )  # fmt: skip
    model: Model | None = option(
        default=None, name="--for", group=SHAPES,
        help="This checkpoint's own shapes, and what its dims may become.",
    )  # fmt: skip
    ranks_of: Model | Sequence[tuple[int, int]] | None = option(
        default=None, name="--ranks", read=shapes_or_name, metavar="DENSE|OUTxIN,…", group=SHAPES,
        help="The factor pairs that this dense checkpoint's linear layers, or weights of these "
        "shapes, would be cut into.",
    )  # fmt: skip
    ranks: tuple[int, int] | None = option(
        default=None, name="--range", read=first_and_last, metavar="FIRST:LAST", group=SHAPES,
        help="Ranks with --ranks, dims with --op.",
    )  # fmt: skip
    tokens: Tokens | None = option(
        default=None, read=workload, metavar="M,M,…", group=SHAPES,
        help="Token counts to serve, with --for and --ranks. Default: 1,1024.",
    )  # fmt: skip
    operator: str | None = option(default=None, like=CurveRequest, group=OWN_CURVE)
    axis: str | None = option(default=None, like=CurveRequest, group=OWN_CURVE)
    fixed: Mapping[str, int] | None = option(default=None, like=CurveRequest, group=OWN_CURVE)
    flags: Mapping[str, Flag] | None = option(default=None, like=CurveRequest, group=OWN_CURVE)
    dtype: str = option(
        default="auto", group=SHAPES, help="Compute dtype, with --for, --ranks, --op."
    )
    window: float = option(
        default=0.25, read=float, least=0, most=4, group=SHAPES,
        help="Candidates within ± this share (and 32), with --for.",
    )  # fmt: skip
    preset: str | None = option(
        default=None, metavar="ENGINE[,…]", group=SHAPES,
        help="With --for: sizes that this engine takes too, as vllm,tp=4,marlin.",
    )  # fmt: skip
    device: str | None = option(
        default=None, group=RUN,
        help="cpu, cuda, cuda:N, or all (every GPU). Default: the first GPU, else the CPU.",
    )  # fmt: skip
    out: str | Path | None = option(
        default=None, read=Path, group=RUN, help="Folder for the samples. Default: one in runs/."
    )
    exhaustive: bool = option(default=False, group=RUN, help="Measure every point, refine nothing.")
    lock_clocks_mhz: int | None = option(
        default=None, name="--lock-clocks", read=int, least=1, metavar="MHZ", group=RUN,
        help="Lock the SM clock meanwhile (needs root).",
    )  # fmt: skip

    @property
    def own_curve(self) -> dict[str, Any]:
        """The suite of the one curve of ``operator``. Raises :class:`SuiteError`."""
        if self.suite is not None:
            raise SuiteError(f"give one of a suite ('{self.suite}') and a curve of your own (--op)")
        if self.axis is None or self.ranks is None:
            raise SuiteError(
                "--op goes with --axis and --range: --op linear --axis K --range 64:128"
            )
        first, last = self.ranks
        curve: dict[str, Any] = {
            "operator": self.operator, "axis": self.axis, "values": [{"from": first, "to": last}],
            "dims": dict(self.fixed or {}), "flags": dict(self.flags or {}),
        }  # fmt: skip
        if self.dtype != "auto":
            curve["dtype"] = self.dtype
        return {"name": f"{self.operator}-{self.axis}", "sweep": [curve]}


class OnGpu(Request):
    """A request on a GPU that need not be here."""

    gpu: str | None = option(
        default=None, group=RUN,
        help="With --dry-run: what it takes of this GPU (h100 …), which need not be "
        "here.",
    )  # fmt: skip


class EstimateRequest(OnGpu, SweepRequest):
    """What :func:`gacprof.estimate_sweep` is asked."""

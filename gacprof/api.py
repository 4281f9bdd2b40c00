"""The two arrows of the chain that have no room of their own: suite → samples → map."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import SuiteError
from gacprof.sweeping import RunSummary, Suite, load_suite, run_sweep, sweeper

if TYPE_CHECKING:
    import torch

    from gacprof.checkpoint import Inventory
    from gacprof.cliffmap import CliffMap
    from gacprof.core import Progress
    from gacprof.diagnosing.workload import Tokens


def sweep(
    suite: Suite | str | Path | None = None,
    *,
    model: str | Path | Inventory | torch.nn.Module | None = None,
    ranks_of: str | Path | Inventory | torch.nn.Module | None = None,
    ranks: tuple[int, int] | None = None,
    tokens: Tokens | None = None,
    dtype: str = "auto",
    window: float = 0.25,
    device: str | None = None,
    out: str | Path,
    resume: bool = False,
    budget_s: float | None = None,
    isolate: bool = True,
    progress: Progress | None = None,
) -> RunSummary:
    """Measure a suite (by name, file or value) on a device; samples go to the folder ``out``.

    It measures in processes of its own, one after another, unless ``isolate`` is false: then a
    point that crashes takes the caller with it, and noise between processes is not seen.

    Or measure the shapes of a ``model`` (a checkpoint's path or inventory, or a module in memory)
    at the token counts ``tokens`` (default: 1 and 1024; weights are left aside), and what its
    dims could become within ± the share ``window``: what a diagnosis and a plan need.

    Or, before compression, measure the factor pairs that the linear layers of the dense model
    ``ranks_of`` would be cut into, over ``ranks`` from the first to the last: what
    :func:`gacprof.safe_ranks` needs.

    Raises :class:`SuiteError`, :class:`MeasurementError`, :class:`CheckpointError` or, for
    tokens that are none, :class:`PlanError`.
    """
    if sum(given is not None for given in (suite, model, ranks_of)) != 1:
        raise SuiteError(
            "give one of a suite, a model whose shapes are to be measured, and ranks_of"
        )
    if (ranks_of is None) != (ranks is None):
        raise SuiteError("ranks_of and ranks go together: ranks=(64, 256), for example")
    if ranks_of is not None:
        chosen = _suite_of_ranks(ranks_of, ranks or (0, 0), tokens, dtype)
    elif suite is None:
        chosen = _suite_of(model, tokens, dtype, window)
    elif tokens is not None:
        raise SuiteError("tokens go with a model; a suite names its own dims")
    else:
        chosen = suite if isinstance(suite, Suite) else load_suite(suite)
    processes = chosen.timing.processes
    with sweeper(device, isolate=isolate, processes=processes) as opened:
        return run_sweep(chosen, opened, out, resume=resume, budget_s=budget_s, progress=progress)


def _suite_of(model: Any, tokens: Tokens | None, dtype: str, window: float) -> Suite:
    from gacprof.checkpoint import inventory_for
    from gacprof.diagnosing.workload import workload_of
    from gacprof.sweeping.for_checkpoint import suite_for

    counts = sorted(workload_of(tokens))
    return suite_for(inventory_for(model), counts, dtype=dtype, window=window)


def _suite_of_ranks(model: Any, ranks: tuple[int, int], tokens: Tokens | None, dtype: str) -> Suite:
    from gacprof.checkpoint import inventory_for
    from gacprof.diagnosing.workload import workload_of
    from gacprof.sweeping.for_checkpoint import suite_for_ranks_of

    return suite_for_ranks_of(inventory_for(model), ranks, sorted(workload_of(tokens)), dtype=dtype)


def build_map(samples: str | Path, name: str | None = None) -> CliffMap:
    """The cliff map of a sweep's folder, its cliffs' causes named where evidence tells them.

    Evidence is the kernels recorded with the samples, and what ``gacprof evidence`` left
    beside them. Raises :class:`MeasurementError` or :class:`MapError`.
    """
    from gacprof.explain.of_run import build_explained

    return build_explained(Path(samples), name)

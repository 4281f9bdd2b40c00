"""Read Nsight Compute reports as a DataFrame, without GPU and Nsight (extra ``ncu``)."""

from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import pandas as pd

from gacprof.core.errors import INSTALL, MeasurementError
from gacprof.core.files import shipped_table
from gacprof.kernels.names import parse

METRICS_FILE = Path(__file__).with_name("ncu.toml")
METRICS = shipped_table(METRICS_FILE, dict[str, str])
"""Columns of :func:`read_ncu`, by the counter that ``ncu --metrics`` collects for them."""
CAPABILITY = "device__attribute_compute_capability_"


def read_ncu(path: str | Path) -> pd.DataFrame:
    """Return the kernel launches of an Nsight Compute report.

    Parameters
    ----------
    path
        An ``.ncu-rep`` file.

    Returns
    -------
    DataFrame
        One row a launch, in order: kernel (name), mechanism, provider, family, role, alignment,
        arch, ranges (NVTX ranges around it), and a column for each of :data:`METRICS`; NaN where a
        counter was not collected.

    Raises
    ------
    MeasurementError
        For a file that is missing, foreign or without a launch, and without ``ncu_report``.
    """
    if find_spec("ncu_report") is None:
        raise MeasurementError(f"Nsight Compute reports need ncu_report: {INSTALL.format('ncu')}")
    import ncu_report

    try:
        context = ncu_report.load_report(str(path))
        ranges = [context.range_by_idx(i) for i in range(context.num_ranges())]
        actions: list[Any] = []
        for part in ranges:
            actions += [part.action_by_idx(i) for i in range(part.num_actions())]
    except (RuntimeError, SystemError, ValueError) as error:
        raise MeasurementError(f"{path} cannot be read as a report: {error}") from None
    if not actions:
        raise MeasurementError(f"{path} holds no kernel launch: name a whole .ncu-rep file")
    return pd.DataFrame([_launch(action) for action in actions])


def _launch(action: Any) -> dict[str, Any]:
    kernel = parse(str(action.name(action.NameBase_DEMANGLED) or action.name()))
    major, minor = (_number(action, CAPABILITY + part) for part in ("major", "minor"))
    row: dict[str, Any] = {"kernel": kernel.name, "mechanism": kernel.mechanism}
    for field in ("provider", "family", "role", "alignment"):
        row[field] = getattr(kernel, field)
    row["arch"] = "" if major is None or minor is None else f"sm{int(major)}{int(minor)}"
    state = action.nvtx_state()
    domains = [state.domain_by_id(i) for i in state.domains()] if state is not None else []
    ranges = chain.from_iterable(domain.push_pop_ranges() for domain in domains)
    row["ranges"] = " / ".join(map(str, ranges))  # the outermost first
    return row | {key: _number(action, name) for key, name in METRICS.items()}


def _number(action: Any, name: str) -> float | None:
    metric = action.metric_by_name(name)
    if metric is None or not metric.has_value():
        return None
    value = metric.value()
    return float(value) if isinstance(value, int | float) else None

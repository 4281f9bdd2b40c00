"""What a row of a lint takes on its GPU, by others' measurements of the engine where those are
installed: at its padded sizes, in all of its layers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING

from gacprof.core.errors import GacprofError, MapError
from gacprof.core.formatting import counted
from gacprof.demands.evaluate import Judged
from gacprof.demands.targets import Gpu
from gacprof.linting.judging import TORCH, padded_shape

if TYPE_CHECKING:
    from gacprof.cliffmap.source import Interval

ENGINES = {"vllm": "vllm", "sglang": "sglang", "tensorrt-llm": "trtllm"}
"""Engines of the demands by the names of the measurements; of others nothing was measured."""
ROWS = (1, 1024)
"""Tokens of a decode step and of a prefill."""

HOST = (
    "{engine} in {dtype}: no times at {tokens}, the host bounds those that were measured, "
    "whatever the size"
)

RowTimes = Mapping[str, "Interval"]
"""By token count. The head runs at one row, whatever the count."""
Times = Callable[[Judged], "RowTimes | None"]


def times(gpu: Gpu, engine: str, notes: list[str]) -> Times:
    """What gives a row's times; None where nothing was measured of the GPU or the engine, where it
    is not installed, and for experts, which run together. A time that the host bounds says nothing
    of the product: it is left out, and ``notes`` gets a line."""
    nothing = gpu.is_open or gpu.amd or engine not in ENGINES
    loaded = "gacprof.elsewhere.data" in sys.modules
    if nothing or not (loaded or find_spec("aiconfigurator_core")):
        return lambda judged: None  # numpy is not imported to find that nothing was measured
    from gacprof.elsewhere import data
    from gacprof.elsewhere.needs import SCHEMES
    from gacprof.elsewhere.table import ElsewhereTable
    from gacprof.rules import target

    try:
        table = ElsewhereTable(target(gpu.name, TORCH), data.installed(), ENGINES[engine])
    except GacprofError:
        return lambda judged: None

    def of(judged: Judged) -> RowTimes | None:
        shape, product = padded_shape(judged), judged.product
        is_head = product.role == "head"
        dtype = "none" if is_head else judged.scheme.kind
        layers = 1 if is_head else product.layers  # a tied head is computed too
        if shape is None or dtype not in SCHEMES or not layers:
            return None
        found: dict[str, Interval] = {}
        count = layers * (product.copies or 1)
        for m in ROWS:
            rows = 1 if is_head else m
            try:
                if table.levels(SCHEMES[dtype]).host_bound(rows, *shape):
                    note = HOST.format(
                        engine=engine, dtype=SCHEMES[dtype], tokens=counted(rows, "token")
                    )
                    if note not in notes:
                        notes.append(note)
                    continue
                time = table.time(SCHEMES[dtype], rows, *shape).times(count).interval
            except MapError:  # the engine was not measured in this data type
                return None
            if time is not None:
                found[str(m)] = time
        return found or None

    return of

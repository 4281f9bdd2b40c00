"""gacprof: which tensor dimensions your GPU serves well, why, and how to move a model onto them.

The chain, one function an arrow::

    gacprof.sweep("quick", out="runs/own")            # or model="model/": its own shapes
    cliff_map = gacprof.build_map("runs/own")         # or gacprof.load_map("a100-published")
    diagnosis = gacprof.diagnose("model/", cliff_map)
    plan = gacprof.plan("model/", cliff_map, budget=0.85)
    gacprof.realign("model/", plan, "model-aligned/")
    gacprof.verify("model/", "model-aligned/")
    gacprof.bench(["model/", "model-aligned/"])

For a GPU that is not at hand, its name takes a map's place: ``gacprof.diagnose("model/", "h100")``.

Nothing heavy is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.3.0"

_MODULES = {
    "gacprof.check.bench": ("bench",),
    "gacprof.check.perplexity": ("perplexity",),
    "gacprof.check.verify": ("verify",),
    "gacprof.checkpoint.load": ("load_model",),
    "gacprof.checkpoint.scan": ("scan",),
    "gacprof.cliffmap.build": ("build_map",),
    "gacprof.cliffmap.cliffmap": ("CliffMap", "load_map", "shipped_maps"),
    "gacprof.cliffmap.tables": ("candidates", "map_table"),
    "gacprof.core.errors": ("GacprofError",),
    "gacprof.devices.datasheet": ("gpus",),
    "gacprof.diagnosing.diagnosis": ("Diagnosis", "diagnose"),
    "gacprof.diagnosing.explain": ("explain",),
    "gacprof.diagnosing.safe_ranks": ("safe_ranks",),
    "gacprof.diagnosing.source": ("open_source",),
    "gacprof.compress.align": ("align",),
    "gacprof.compress.compress": ("compress",),
    "gacprof.export.export": ("export",),
    "gacprof.sweeping.fleet": ("sweep_fleet",),
    "gacprof.lint.lint": ("lint",),
    "gacprof.virtual.ask": ("dispatch",),
    "gacprof.virtual.run": ("virtual",),
    "gacprof.kernels.ncu": ("read_ncu",),
    "gacprof.operators.own": ("operator",),
    "gacprof.planning.plan": ("Plan",),
    "gacprof.planning.pareto": ("pareto",),
    "gacprof.planning.planner": ("plan",),
    "gacprof.realigning.in_memory": ("realign_model",),
    "gacprof.realigning.realign": ("realign",),
    "gacprof.reporting.page": ("report",),
    "gacprof.sweeping.suite": ("Suite", "load_suite"),
    "gacprof.sweeping.sweep": ("sweep",),
}
"""Public names by the module that has them."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [*sorted(_MODULE_OF), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'gacprof' has no attribute '{name}'")
    return getattr(import_module(_MODULE_OF[name]), name)

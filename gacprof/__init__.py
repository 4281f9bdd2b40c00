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

``_MODULES`` is the one list of what is public. Nothing heavy is imported before it is used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.3.0"

_MODULES = {
    "gacprof.check.bench": ("BenchResult", "bench"),
    "gacprof.check.perplexity": ("Perplexities", "perplexity"),
    "gacprof.check.verify": ("Verification", "verify"),
    "gacprof.checkpoint.load": ("load_model",),
    "gacprof.checkpoint.scan": ("scan",),
    "gacprof.cliffmap.build": ("build_map",),
    "gacprof.cliffmap.cliffmap": ("CliffMap", "load_map", "shipped_maps"),
    "gacprof.cliffmap.tables": ("candidates",),
    "gacprof.compress.align": ("align",),
    "gacprof.compress.compress": ("Compression", "compress"),
    "gacprof.core.errors": ("GacprofError",),
    "gacprof.devices.at_hand": ("gpus",),
    "gacprof.diagnosing.diagnosis": ("Diagnosis", "diagnose"),
    "gacprof.diagnosing.explain": ("Explanation", "explain"),
    "gacprof.diagnosing.safe_ranks": ("safe_ranks",),
    "gacprof.diagnosing.source": ("open_source",),
    "gacprof.export.export": ("Exported", "export"),
    "gacprof.kernels.dispatch": ("DispatchTable",),
    "gacprof.kernels.ncu": ("read_ncu",),
    "gacprof.lint.lint": ("lint",),
    "gacprof.lint.report": ("LintGrid", "LintReport"),
    "gacprof.operators.own": ("operator",),
    "gacprof.planning.plan": ("Plan",),
    "gacprof.planning.pareto": ("pareto",),
    "gacprof.planning.planner": ("plan",),
    "gacprof.realigning.in_memory": ("realign_model",),
    "gacprof.realigning.realign": ("realign",),
    "gacprof.reporting.page": ("report",),
    "gacprof.reporting.tables": ("table",),
    "gacprof.sweeping.fleet": ("sweep_fleet",),
    "gacprof.sweeping.suite": ("Suite", "load_suite"),
    "gacprof.sweeping.sweep": ("SweepSummary", "sweep"),
    "gacprof.tracing.trace": ("TraceReport", "trace"),
    "gacprof.virtual.ask": ("DispatchChanges", "dispatch"),
    "gacprof.virtual.run": ("virtual",),
}
"""Public names by the module that has them."""

MODULE_OF: dict[str, str] = {}  # the module of each public name
for _module, _names in _MODULES.items():
    MODULE_OF |= dict.fromkeys(_names, _module)

__all__ = [*sorted(MODULE_OF), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in MODULE_OF:
        raise AttributeError(f"module 'gacprof' has no attribute '{name}'")
    return getattr(import_module(MODULE_OF[name]), name)


class _Package(ModuleType):
    """A package in which a function stays where a subpackage has its name: importing
    ``gacprof.lint.report`` would bind ``gacprof.lint`` to that subpackage."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(value, ModuleType) or name not in MODULE_OF:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

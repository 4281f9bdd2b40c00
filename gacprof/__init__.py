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
What needs no measurement at all:

>>> gacprof.lint("tests/fixtures/configs/qwen3-30b-a3b.json", gpu="h100", tp=8).outcome
'ok'
>>> [verdict.size for verdict in gacprof.candidates(107, "h100", dim="K")]
[80, 96, 112, 128]
>>> gacprof.table("h100")[["operator", "dtype", "dim", "multiple"]].head(2)
  operator    dtype dim  multiple
0   linear  float16   N         8
1   linear  float16   K         8
>>> gacprof.dispatch("h100").sdpa(107, causal=True).backend  # PyTorch's choice for attention
'flash'

``_MODULES`` lists what is public. Nothing heavy is imported before it is used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gacprof.check.bench import BenchResult as BenchResult
    from gacprof.check.bench import bench as bench
    from gacprof.check.perplexity import Perplexities as Perplexities
    from gacprof.check.perplexity import perplexity as perplexity
    from gacprof.check.verify import Verification as Verification
    from gacprof.check.verify import verify as verify
    from gacprof.checkpoint.load import load_model as load_model
    from gacprof.checkpoint.scan import scan as scan
    from gacprof.cliffmap.build import build_map as build_map
    from gacprof.cliffmap.cliffmap import CliffMap as CliffMap
    from gacprof.cliffmap.cliffmap import load_map as load_map
    from gacprof.cliffmap.cliffmap import shipped_maps as shipped_maps
    from gacprof.cliffmap.tables import candidates as candidates
    from gacprof.compress.align import align as align
    from gacprof.compress.compress import Compression as Compression
    from gacprof.compress.compress import compress as compress
    from gacprof.core.errors import GacprofError as GacprofError
    from gacprof.devices.at_hand import gpus as gpus
    from gacprof.diagnosing.diagnosis import Diagnosis as Diagnosis
    from gacprof.diagnosing.diagnosis import diagnose as diagnose
    from gacprof.diagnosing.explain import Explanation as Explanation
    from gacprof.diagnosing.explain import explain as explain
    from gacprof.diagnosing.safe_ranks import safe_ranks as safe_ranks
    from gacprof.diagnosing.source import open_source as open_source
    from gacprof.export.export import Exported as Exported
    from gacprof.export.export import export as export
    from gacprof.kernels.dispatch import DispatchTable as DispatchTable
    from gacprof.kernels.ncu import read_ncu as read_ncu
    from gacprof.lint.lint import lint as lint
    from gacprof.lint.report import LintGrid as LintGrid
    from gacprof.lint.report import LintReport as LintReport
    from gacprof.operators.own import operator as operator
    from gacprof.planning.pareto import pareto as pareto
    from gacprof.planning.plan import Plan as Plan
    from gacprof.planning.planner import plan as plan
    from gacprof.realigning.in_memory import realign_model as realign_model
    from gacprof.realigning.realign import realign as realign
    from gacprof.reporting.page import report as report
    from gacprof.reporting.tables import table as table
    from gacprof.sweeping.fleet import sweep_fleet as sweep_fleet
    from gacprof.sweeping.suite import Suite as Suite
    from gacprof.sweeping.suite import load_suite as load_suite
    from gacprof.sweeping.sweep import SweepSummary as SweepSummary
    from gacprof.sweeping.sweep import sweep as sweep
    from gacprof.tracing.trace import TraceReport as TraceReport
    from gacprof.tracing.trace import trace as trace
    from gacprof.virtual.ask import DispatchChanges as DispatchChanges
    from gacprof.virtual.ask import dispatch as dispatch
    from gacprof.virtual.run import virtual as virtual

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
"""Public names by the module that has them; type checkers read the imports above."""

MODULE_OF: dict[str, str] = {}  # the module of each public name
for _module, _names in _MODULES.items():
    MODULE_OF |= dict.fromkeys(_names, _module)

__all__ = [*sorted(MODULE_OF), "__version__"]


if not TYPE_CHECKING:  # else every name would be there, and of any type

    def __getattr__(name: str) -> Any:
        if name not in MODULE_OF:
            raise AttributeError(f"module 'gacprof' has no attribute '{name}'")
        return getattr(import_module(MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """A package in which a function stays where a subpackage has its name: importing
    ``gacprof.lint.report`` would bind ``gacprof.lint`` to that subpackage."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not isinstance(value, ModuleType) or name not in MODULE_OF:
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

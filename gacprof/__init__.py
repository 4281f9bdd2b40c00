"""gacprof: which tensor dimensions your GPU serves well, why, and how to move a model onto them.

The chain, one function an arrow::

    gacprof.sweep(model="model/", out="runs/own")     # or a suite: "quick"
    m = gacprof.build_map("runs/own")            # or CliffMap.load("a100-published")
    found = gacprof.diagnose("model/", m)
    made = gacprof.plan("model/", m, budget=0.85)
    gacprof.realign("model/", made, "model-aligned/")
    gacprof.verify("model/", "model-aligned/")
    gacprof.bench(["model/", "model-aligned/"])
    gacprof.evaluate(["model/", "model-aligned/"], text="text.txt")

For a GPU that is not at hand, by rules, and with times by others' measurements where the extra
``elsewhere`` is installed (a ``config.json`` alone will do for those)::

    gacprof.diagnose("model/", gacprof.open_source(gpu="h100", engine="vllm"))

Before compression, in the loop that picks ranks::

    gacprof.sweep(ranks_of="dense/", ranks=(64, 256), out="runs/ranks")
    gacprof.safe_ranks(layer, gacprof.build_map("runs/ranks"))     # layer: an nn.Linear

Or all of it in one call, from the dense model::

    gacprof.compress("dense/", "small/", method="svd-llm", ratio=0.15, cliff_map=m, calib="text")

``align`` is its choice of sizes alone, for compressors of your own.

Around it: ``scan`` and ``load_model`` read a checkpoint; without a map ``realign`` takes
``minimal``, ``optimal``, ``uniform`` or ``fuse``; ``import_gguf`` makes a folder of a GGUF file;
``export`` writes it for the engine that serves it, and ``bench_engine`` times it there;
``pareto`` sets plans over many budgets side by side, under the same ``Constraints``;
``explain`` says why a dim is slow; ``shipped_maps`` names the maps that come along;
``operator`` makes a function of yours one that sweeps know; ``report`` makes a page of what
the others left. ``gpus`` and ``doctor`` say what is known and what is here; ``candidates``,
``intersect``, ``diff_maps``, ``check_map``, ``map_table``, ``export_map`` and ``draw_map`` read
maps. Each takes a request, or its arguments; each command is one of them. What the caller can mend
is raised as a :class:`GacprofError`.

Nothing heavy is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_NAMES = {
    "gacprof.api.evidence": (
        "ask_cpu_libraries", "compile_probes", "count_kernels", "explain",
        "read_kernel_names", "sdpa_backend",
    ),
    "gacprof.api.gpus": ("compare_rules", "doctor", "gpus", "measured_elsewhere", "rule_table"),
    "gacprof.api.maps": (
        "build_map", "candidates", "check_map", "diff_maps", "draw_map",
        "export_map", "intersect", "list_maps", "map_table",
    ),
    "gacprof.api.sweeps": ("estimate_sweep", "sweep", "sweep_fleet"),
    "gacprof.checkpoint": ("scan",),
    "gacprof.checkpoint.load": ("load_model",),
    "gacprof.cliffmap": ("CliffMap", "shipped_maps"),
    "gacprof.extras.compress.align": ("align",),
    "gacprof.extras.compress.request": ("CompressRequest",),
    "gacprof.extras.compress.run": ("compress",),
    "gacprof.core.errors": ("GacprofError",),
    "gacprof.diagnosing": ("diagnose",),
    "gacprof.diagnosing.request": ("DiagnoseRequest",),
    "gacprof.diagnosing.ranks": ("safe_ranks",),
    "gacprof.diagnosing.sources": ("open_source",),
    "gacprof.demonstrating.run": ("demo",),
    "gacprof.evaluation": (
        "BenchRequest", "EvaluateRequest", "VerifyRequest", "bench", "evaluate", "verify",
    ),
    "gacprof.evaluation.harness": ("run_tasks",),
    "gacprof.extras.serve.engines.bench": ("bench_engine",),
    "gacprof.extras.serve": ("export",),
    "gacprof.extras.serve.request": ("ExportRequest",),
    "gacprof.linting": ("LintRequest", "lint"),
    "gacprof.operators.own": ("operator",),
    "gacprof.planning": ("Plan", "plan"),
    "gacprof.planning.pareto": ("pareto",),
    "gacprof.planning.request": ("Constraints", "ParetoRequest", "PlanRequest"),
    "gacprof.reporting.making": ("report",),
    "gacprof.resizing": ("Fuse", "Padding", "Uniform", "import_gguf", "realign"),
    "gacprof.resizing.request": ("RealignRequest",),
    "gacprof.sweeping": ("Suite",),
    "gacprof.sweeping.request": ("SweepRequest",),
}  # fmt: skip
"""Public names by the module that has them; imported on first use."""

_WHERE = {name: module for module, names in _NAMES.items() for name in names}

_COMMANDS = {"eval": "evaluate", "fleet": "sweep_fleet"}
"""Commands whose function has another name: Python has theirs, or they are groups of verbs."""

__all__ = [
    "BenchRequest", "CliffMap", "CompressRequest", "Constraints", "DiagnoseRequest",
    "EvaluateRequest", "ExportRequest", "Fuse", "GacprofError", "LintRequest", "Padding",
    "ParetoRequest", "Plan", "PlanRequest", "RealignRequest", "Suite", "SweepRequest", "Uniform",
    "VerifyRequest", "__version__", "align", "ask_cpu_libraries", "bench", "bench_engine",
    "build_map", "candidates", "check_map", "compare_rules", "compile_probes", "compress",
    "count_kernels", "demo", "diagnose", "diff_maps", "doctor", "draw_map", "estimate_sweep",
    "evaluate", "explain", "export", "export_map", "gpus", "import_gguf", "intersect", "lint",
    "list_maps", "load_model", "map_table", "measured_elsewhere", "open_source", "operator",
    "pareto", "plan", "read_kernel_names", "realign", "report", "rule_table", "run_tasks",
    "safe_ranks", "scan", "sdpa_backend", "shipped_maps", "sweep", "sweep_fleet", "verify",
]  # fmt: skip

if TYPE_CHECKING:
    from gacprof.api.evidence import (
        ask_cpu_libraries,
        compile_probes,
        count_kernels,
        explain,
        read_kernel_names,
        sdpa_backend,
    )
    from gacprof.api.gpus import compare_rules, doctor, gpus, measured_elsewhere, rule_table
    from gacprof.api.maps import (
        build_map,
        candidates,
        check_map,
        diff_maps,
        draw_map,
        export_map,
        intersect,
        list_maps,
        map_table,
    )
    from gacprof.api.sweeps import estimate_sweep, sweep, sweep_fleet
    from gacprof.checkpoint import scan
    from gacprof.checkpoint.load import load_model
    from gacprof.cliffmap import CliffMap, shipped_maps
    from gacprof.core.errors import GacprofError
    from gacprof.demonstrating.run import demo
    from gacprof.diagnosing import diagnose
    from gacprof.diagnosing.ranks import safe_ranks
    from gacprof.diagnosing.request import DiagnoseRequest
    from gacprof.diagnosing.sources import open_source
    from gacprof.evaluation import (
        BenchRequest,
        EvaluateRequest,
        VerifyRequest,
        bench,
        evaluate,
        verify,
    )
    from gacprof.evaluation.harness import run_tasks
    from gacprof.extras.compress.align import align
    from gacprof.extras.compress.request import CompressRequest
    from gacprof.extras.compress.run import compress
    from gacprof.extras.serve import export
    from gacprof.extras.serve.engines.bench import bench_engine
    from gacprof.extras.serve.request import ExportRequest
    from gacprof.linting import LintRequest, lint
    from gacprof.operators.own import operator
    from gacprof.planning import Plan, plan
    from gacprof.planning.pareto import pareto
    from gacprof.planning.request import Constraints, ParetoRequest, PlanRequest
    from gacprof.resizing import Fuse, Padding, Uniform, import_gguf, realign
    from gacprof.resizing.request import RealignRequest
    from gacprof.sweeping import Suite
    from gacprof.sweeping.request import SweepRequest


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        hint = f": the function is gacprof.{_COMMANDS[name]}" if name in _COMMANDS else ""
        raise AttributeError(f"module 'gacprof' has no attribute '{name}'{hint}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return __all__

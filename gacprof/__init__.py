"""gacprof: which tensor dimensions your GPU serves well, why, and how to move a model onto them.

The chain, one function an arrow::

    gacprof.sweep(model="model/", out="runs/own")     # or a suite: "quick"
    m = gacprof.build_map("runs/own")            # or CliffMap.load("a100-published")
    found = gacprof.diagnose("model/", m)
    made = gacprof.plan("model/", m, budget=0.85)
    gacprof.realign("model/", made, "model-aligned/")
    gacprof.verify("model/", "model-aligned/")
    gacprof.bench(["model/", "model-aligned/"])

Before compression, in the loop that picks ranks::

    gacprof.sweep(ranks_of="dense/", ranks=(64, 256), out="runs/ranks")
    gacprof.safe_ranks(layer, gacprof.build_map("runs/ranks"))     # layer: an nn.Linear

Nothing heavy is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "CliffMap": "gacprof.cliffmap",
    "Plan": "gacprof.planning",
    "bench": "gacprof.evaluation",
    "build_map": "gacprof.api",
    "diagnose": "gacprof.diagnosing",
    "load_model": "gacprof.checkpoint.load",
    "plan": "gacprof.planning",
    "realign": "gacprof.resizing",
    "safe_ranks": "gacprof.cliffmap.ranks",
    "scan": "gacprof.checkpoint",
    "sweep": "gacprof.api",
    "verify": "gacprof.evaluation",
}
"""Public name → the module that has it; imported on first use."""

__all__ = [
    "CliffMap",
    "Plan",
    "__version__",
    "bench",
    "build_map",
    "diagnose",
    "load_model",
    "plan",
    "realign",
    "safe_ranks",
    "scan",
    "sweep",
    "verify",
]

if TYPE_CHECKING:
    from gacprof.api import build_map, sweep
    from gacprof.checkpoint import scan
    from gacprof.checkpoint.load import load_model
    from gacprof.cliffmap import CliffMap
    from gacprof.cliffmap.ranks import safe_ranks
    from gacprof.diagnosing import diagnose
    from gacprof.evaluation import bench, verify
    from gacprof.planning import Plan, plan
    from gacprof.resizing import realign


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'gacprof' has no attribute '{name}'")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return __all__

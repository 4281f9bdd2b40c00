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

import re
from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_STUB = __loader__.get_data(f"{__file__}i").decode()  # a file's or a zip's
_WHERE = {name: module for module, name in re.findall(r"^from (\S+) import (\w+)", _STUB, re.M)}
"""Public names by the module that has them, as the stub lists them for type checkers too."""

_COMMANDS = {"eval": "evaluate", "fleet": "sweep_fleet"}
"""Commands whose function has another name: Python has theirs, or they are groups of verbs."""

__all__ = [*sorted(_WHERE), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        hint = f": the function is gacprof.{_COMMANDS[name]}" if name in _COMMANDS else ""
        raise AttributeError(f"module 'gacprof' has no attribute '{name}'{hint}")
    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return __all__

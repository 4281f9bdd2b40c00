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
``__init__.pyi`` lists what is public. Nothing heavy is imported before it is used.
"""

from lazy_loader import attach_stub

__version__ = "0.3.0"
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)

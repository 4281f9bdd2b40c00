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

``__init__.pyi`` lists what is public. Nothing heavy is imported before it is used.
"""

from lazy_loader import attach_stub

__version__ = "0.3.0"
__getattr__, __dir__, __all__ = attach_stub(__name__, __file__)

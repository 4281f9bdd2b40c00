"""Why a dim is slower than another: ranked causes, each with its share and its evidence.

The method is a path. From the dim in question to the one it is compared with leads a chain of
measured dims, each step of which takes away one cause: 107 → 112 takes away padding, 112 → 128
the unfilled template. What a step's latency falls by is that cause's share. Steps that nothing
known accounts for are ``unexplained``; nothing is guessed and nothing interpolated.
"""

from gacprof.explain.causes.explain import explain, explain_edge, explain_map
from gacprof.explain.causes.value import Cause, Explanation, Where

__all__ = ["Cause", "Explanation", "Where", "explain", "explain_edge", "explain_map"]

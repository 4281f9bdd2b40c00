"""The table of rules: all families, in the order in which they are asked.

The first rule that claims a name decides, so the specific stand before the general. A new
source of kernels is one new file in ``families/`` and one line here.
"""

from __future__ import annotations

from gacprof.kernels.families import (
    aten,
    attention,
    cublas,
    cudnn,
    cutlass,
    native,
    nvjet,
    runtime,
    triton,
    xmma,
)
from gacprof.kernels.families.rule import Rule

RULES: tuple[Rule, ...] = (
    *nvjet.RULES,
    *xmma.RULES,
    *native.RULES,
    *attention.RULES,
    *cutlass.RULES,
    *cudnn.RULES,
    *triton.RULES,
    *aten.RULES,
    *cublas.RULES,
    *runtime.RULES,
)

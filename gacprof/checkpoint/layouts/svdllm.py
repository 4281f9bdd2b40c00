"""SVD-LLM: ``q_v_proj`` [r, in] runs first, ``q_u_proj`` [out, r] second, for every linear.

The names replace ``q_proj`` and its like; OPT's ``out``, ``fc1``, ``fc2`` too. No config says
the ranks, and ``in_features`` of pickled modules may disagree with the weights: shapes count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.assemble import assemble
from gacprof.checkpoint.layouts.base import Contents, Findings, Sizes
from gacprof.checkpoint.layouts.linear import Linear, bias_of, dense_linears
from gacprof.checkpoint.layouts.plain import mirror_config

_INNER = re.compile(r"(.*\.)(q|k|v|o|out|gate|up|down|fc1|fc2)_v_proj\.weight", re.DOTALL)


class SvdLlm:
    name = "svd-llm"

    def recognise(self, contents: Contents) -> bool:
        return any(True for _ in _pairs(contents))

    def describe(self, contents: Contents) -> Findings:
        pairs = list(_pairs(contents))
        linears = [*pairs, *dense_linears(contents, pairs)]
        note = (
            "no plain transformers class has these factored weights: use gacprof.load_model or "
            "SVD-LLM's own code"
        )
        return assemble(contents, linears, notes=[note])

    def mirror(self, inventory: Inventory, sizes: Sizes) -> dict[str, dict[str, Any]]:
        return mirror_config(inventory, sizes)


def _pairs(contents: Contents) -> Iterator[Linear]:
    for name in contents.tensors:
        found = _INNER.fullmatch(name)
        if not found:
            continue
        parent, stem = found.groups()
        module = parent + (stem if stem.startswith("fc") else f"{stem}_proj")
        outer = f"{parent}{stem}_u_proj"
        if f"{outer}.weight" in contents.tensors:
            biases = bias_of(contents, outer)
            yield Linear(module, (f"{outer}.weight",), inner=name, biases=biases)

"""SVD-LLM: ``q_v_proj`` [r, in] runs first, ``q_u_proj`` [out, r] second, for every linear.

The names replace ``q_proj`` and its like; OPT's ``out``, ``fc1``, ``fc2`` too. No config says
the ranks, and ``in_features`` of pickled modules may disagree with the weights: shapes count. The
attention of its own Llama (component/svd_llama.py) has LlamaRotaryEmbedding's default base.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.layouts.linear import Linear, bias_of
from gacprof.compressors.compressor import Compressor

_INNER = re.compile(r"(.*\.)(q|k|v|o|out|gate|up|down|fc1|fc2)_v_proj\.weight", re.DOTALL)


class SvdLlm(Compressor):
    name = "svd-llm"
    classes = ("component.svd_",)

    def found(self, contents: Contents) -> Iterator[Linear]:
        for name in contents.tensors:
            match = _INNER.fullmatch(name)
            if not match:
                continue
            parent, stem = match.groups()
            module = parent + (stem if stem.startswith("fc") else f"{stem}_proj")
            outer = f"{parent}{stem}_u_proj"
            if f"{outer}.weight" in contents.tensors:
                biases = bias_of(contents, outer)
                yield Linear(module, (f"{outer}.weight",), inner=name, biases=biases)

    def notes(self, contents: Contents, found: Sequence[Linear]) -> Iterator[str]:
        yield (
            "no plain transformers class has these factored weights: use gacprof.load_model or "
            "SVD-LLM's own code"
        )

"""SVD-LLM: ``q_v_proj`` [r, in] runs first, ``q_u_proj`` [out, r] second, for every linear.

The names replace ``q_proj`` and its like; OPT's ``out``, ``fc1``, ``fc2`` too, and (ours) Mixtral's
``w1``. No config says the ranks, and ``in_features`` of pickled modules may disagree with the
weights: shapes count. The attention of its own Llama (component/svd_llama.py) has
LlamaRotaryEmbedding's default base.

The method (arXiv 2403.07378): one ratio for all layers; the SVD of W·S with S the Cholesky factor
of the inputs' second moments, so that a cut singular value is an error of the output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.layouts.linear import Linear, bias_of
from gacprof.compressors.compressor import Compressor
from gacprof.compressors.method import FactorNames, LowRank, Target

_INNER = re.compile(r"(.*\.)(q|k|v|o|out|gate|up|down|fc1|fc2|w1|w2|w3)_v_proj\.weight", re.DOTALL)


class SvdLlm(Compressor):
    name = "svd-llm"
    classes = ("component.svd_",)

    def found(self, contents: Contents) -> Iterator[Linear]:
        for name in contents.tensors:
            match = _INNER.fullmatch(name)
            if not match:
                continue
            parent, stem = match.groups()
            module = parent + (stem if stem[-1].isdigit() else f"{stem}_proj")
            outer = f"{parent}{stem}_u_proj"
            if f"{outer}.weight" in contents.tensors:
                biases = bias_of(contents, outer)
                yield Linear(module, (f"{outer}.weight",), inner=name, biases=biases)

    def notes(self, contents: Contents, found: Sequence[Linear]) -> Iterator[str]:
        yield (
            "no plain transformers class has these factored weights: use gacprof.load_model or "
            "SVD-LLM's own code"
        )


_STEM = re.compile(r"(.*\.)(?:(q|k|v|o|out|gate|up|down)_proj|(fc1|fc2|w1|w2|w3))", re.DOTALL)


class PlainSvd(LowRank):
    """Blind to what a layer sees; one ratio for all layers. The baseline of every publication."""

    name = "svd"
    layout = "svd-llm"

    def names(self, target: Target) -> FactorNames | None:
        """SVD-LLM's names; None for a layer that it has no name for."""
        match = _STEM.fullmatch(target.name)
        if match is None:
            return None
        stem = match[1] + (match[2] or match[3])
        biases = (f"{stem}_u_proj.bias",) if target.bias else ()
        return FactorNames(f"{stem}_v_proj.weight", (f"{stem}_u_proj.weight",), biases)


class Whitened(PlainSvd):
    name = "svd-llm"
    reads = "moments"

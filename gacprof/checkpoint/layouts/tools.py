"""The compression tools whose checkpoints are known by name: their layouts, and what their models
compute. Other packages bring theirs by entry points.

ASVD         ``X.BLinear`` [r, in] runs first, ``X.ALinear`` [out, r] second and has the bias. The
             config's ``truncation_ranks`` has the rank of every factored module
             (hahnyuan/ASVD4LLM, modeling_asvd_llama.py)
PaLU         one ``X.VT`` [Σrᵢ, in] for all head groups, then ``X.U.{i}`` [out/G, rᵢ] per group:
             group ``i`` owns the rows from ``Σ_{j<i} rⱼ``. The config's ``head_wise_ranks`` has the
             list of every module (shadowpa0327/Palu, palu/model/modules/svd_linear.py)
SVD-LLM      ``q_v_proj`` [r, in] runs first, ``q_u_proj`` [out, r] second, for every linear; OPT's
             ``out``, ``fc1``, ``fc2`` too, and (ours) Mixtral's ``w1``. No config says the ranks,
             and ``in_features`` of pickled modules may disagree with the weights: shapes count
LLM-Pruner   a whole model pickled as ``{'model', 'tokenizer'}``, plain names, widths and heads
             different per layer. Its config keeps the sizes from before pruning; the modules'
             ``num_heads`` and the shapes are right. Only its own classes in the pickle distinguish
             it from other tools: without them the layout is ``per-layer-widths``
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.layouts.layout import Compressor
from gacprof.checkpoint.layouts.linear import Linear, bias_of
from gacprof.checkpoint.layouts.slicegpt import SliceGpt
from gacprof.core.plugins import brought, instance


class Asvd(Compressor):
    name = "asvd"
    rank_key = "truncation_ranks"
    prefix = "ASVD"
    inner, outer = ".BLinear", ".ALinear"
    note = (
        "a plain transformers model loads this folder without an error and leaves the factored "
        "weights random: use gacprof.load_model or ASVD's own class"
    )


class Palu(Compressor):
    name = "palu"
    rank_key = "head_wise_ranks"
    prefix = "Palu"
    inner, outer = ".VT", ".U"
    note = (
        "a plain transformers Llama, Mistral or Qwen2 model loads these tensors without an error "
        "and leaves k_proj and v_proj random: use gacprof.load_model or PaLU's own class"
    )

    def found(self, contents: Contents) -> Iterable[Linear]:
        return (x for x in super().found(contents) if x.outer[0].endswith(".U.0.weight"))


_INNER = re.compile(r"(.*\.)(q|k|v|o|out|gate|up|down|fc1|fc2|w1|w2|w3)_v_proj\.weight", re.DOTALL)


class SvdLlm(Compressor):
    name = "svd-llm"
    classes = ("component.svd_",)
    note = (
        "no plain transformers class has these factored weights: use gacprof.load_model or "
        "SVD-LLM's own code"
    )

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


class LlmPruner(Compressor):
    name = "llm-pruner"
    classes = ("LLMPruner.",)

    def recognise(self, contents: Contents) -> bool:
        """A pickled model of LLM-Pruner's own classes."""
        return any(self.has_class(str(m.get("class"))) for m in contents.attributes.values())


_OWN: tuple[Compressor, ...] = (Palu(), Asvd(), SvdLlm(), SliceGpt(), LlmPruner())


@cache
def compressors() -> tuple[Compressor, ...]:
    """In order of asking; those of other packages, classes by entry points, come last."""
    others = brought("compressors", lambda found: instance(found, Compressor))
    return (*_OWN, *others.values())

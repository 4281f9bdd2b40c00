"""PaLU: one ``X.VT`` [Σrᵢ, in] for all head groups, then ``X.U.{i}`` [out/G, rᵢ] per group.

``VT``'s output is cut at the prefix sums of the ranks, so group ``i`` owns the rows from
``Σ_{j<i} rⱼ``. The config's ``head_wise_ranks`` has the list of every module, and its
``palullama``, ``palumistral``, ``paluqwen2`` are those models with other k and v
(shadowpa0327/Palu, palu/model/modules/svd_linear.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.layouts.linear import Linear, factor_chains
from gacprof.compressors.compressor import Compressor


class Palu(Compressor):
    name = "palu"
    rank_key = "head_wise_ranks"
    prefix = "Palu"

    def found(self, contents: Contents) -> Iterator[Linear]:
        for linear in factor_chains(contents, ".VT", ".U"):
            if linear.outer[0].endswith(".U.0.weight"):
                yield linear

    def notes(self, contents: Contents, found: Sequence[Linear]) -> Iterator[str]:
        yield (
            "a plain transformers Llama, Mistral or Qwen2 model loads these tensors without an "
            "error and leaves k_proj and v_proj random: use gacprof.load_model or PaLU's own class"
        )
        yield from self.rank_notes(contents, found)

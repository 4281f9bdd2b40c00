"""ASVD: ``X.BLinear`` [r, in] runs first, ``X.ALinear`` [out, r] second and has the bias.

The config's ``truncation_ranks`` has the rank of every factored module; ASVD's own model class
builds its layers from it (hahnyuan/ASVD4LLM, modeling_asvd_llama.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.layouts.linear import Linear, factor_chains
from gacprof.compressors.compressor import Compressor


class Asvd(Compressor):
    name = "asvd"
    rank_key = "truncation_ranks"
    prefix = "ASVD"

    def found(self, contents: Contents) -> Iterable[Linear]:
        return factor_chains(contents, ".BLinear", ".ALinear")

    def notes(self, contents: Contents, found: Sequence[Linear]) -> Iterator[str]:
        yield (
            "a plain transformers model loads this folder without an error and leaves the factored "
            "weights random: use gacprof.load_model or ASVD's own class"
        )
        yield from self.rank_notes(contents, found)

"""ASVD: ``X.BLinear`` [r, in] runs first, ``X.ALinear`` [out, r] second and has the bias.

The config's ``truncation_ranks`` has the rank of every factored module; ASVD's own model class
builds its layers from it (hahnyuan/ASVD4LLM, modeling_asvd_llama.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.assemble import assemble
from gacprof.checkpoint.layouts.base import Contents, Findings, Sizes
from gacprof.checkpoint.layouts.linear import Linear, bias_of, dense_linears
from gacprof.checkpoint.layouts.plain import made_plain, mirror_config

_INNER, _OUTER = ".BLinear.weight", ".ALinear.weight"


class Asvd:
    name = "asvd"

    def recognise(self, contents: Contents) -> bool:
        return any(True for _ in _pairs(contents))

    def describe(self, contents: Contents) -> Findings:
        pairs = list(_pairs(contents))
        linears = [*pairs, *dense_linears(contents, pairs)]
        return assemble(contents, linears, notes=_notes(contents, pairs))

    def mirror(self, inventory: Inventory, sizes: Sizes) -> dict[str, dict[str, Any]]:
        files = mirror_config(inventory, sizes)
        ranks = files.get("config.json", {}).get("truncation_ranks")
        if isinstance(ranks, dict):
            new = {m: sizes.get(f"{m}:rank", rank) for m, rank in ranks.items()}
            left = {module: rank for module, rank in new.items() if rank is not None}
            files["config.json"]["truncation_ranks"] = left
            if not left:
                made_plain(files["config.json"], "truncation_ranks", "ASVD")
        return files


def _pairs(contents: Contents) -> Iterator[Linear]:
    for name in contents.tensors:
        module = name.removesuffix(_INNER)
        outer = module + _OUTER
        if module != name and outer in contents.tensors:
            biases = bias_of(contents, f"{module}.ALinear")
            yield Linear(module, (outer,), inner=name, biases=biases)


def _notes(contents: Contents, pairs: list[Linear]) -> Iterator[str]:
    yield (
        "a plain transformers model loads this folder without an error and leaves the factored "
        "weights random: use gacprof.load_model or ASVD's own class"
    )
    declared = contents.config.get("truncation_ranks")
    if not isinstance(declared, dict):
        yield "config.json has no truncation_ranks, which ASVD's own class needs"
        return
    for pair in pairs:
        rank = contents.shape(pair.outer[0])[1]
        if declared.get(pair.name) != rank:
            yield (
                f"{pair.name}: config says rank {declared.get(pair.name)}, the tensors have "
                f"{rank}; the tensors are believed"
            )

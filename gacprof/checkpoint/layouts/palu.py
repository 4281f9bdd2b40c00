"""PaLU: one ``X.VT`` [Σrᵢ, in] for all head groups, then ``X.U.{i}`` [out/G, rᵢ] per group.

``VT``'s output is cut at the prefix sums of the ranks, so group ``i`` owns the rows from
``Σ_{j<i} rⱼ``. The config's ``head_wise_ranks`` has the list of every module
(shadowpa0327/Palu, palu/model/modules/svd_linear.py). Only k and v are factored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.assemble import assemble
from gacprof.checkpoint.layouts.base import Contents, Findings, Sizes
from gacprof.checkpoint.layouts.linear import Linear, dense_linears
from gacprof.checkpoint.layouts.plain import made_plain, mirror_config

_INNER = ".VT.weight"


class Palu:
    name = "palu"

    def recognise(self, contents: Contents) -> bool:
        return any(True for _ in _groups(contents))

    def describe(self, contents: Contents) -> Findings:
        groups = list(_groups(contents))
        linears = [*groups, *dense_linears(contents, groups)]
        return assemble(contents, linears, notes=_notes(contents, groups))

    def mirror(self, inventory: Inventory, sizes: Sizes) -> dict[str, dict[str, Any]]:
        files = mirror_config(inventory, sizes)
        declared = files.get("config.json", {}).get("head_wise_ranks")
        if isinstance(declared, dict):
            new = {m: _resized(m, ranks, sizes) for m, ranks in declared.items()}
            left = {m: r for m, r in new.items() if r != []}
            files["config.json"]["head_wise_ranks"] = left
            if not left:
                made_plain(files["config.json"], "head_wise_ranks", "Palu")
        return files


def _resized(module: str, ranks: Any, sizes: Sizes) -> Any:
    """The list of one module; empty where its factors are gone."""
    if not isinstance(ranks, list):
        return ranks
    names = [_dim_name(module, i, len(ranks)) for i in range(len(ranks))]
    new = [sizes.get(name, rank) for name, rank in zip(names, ranks, strict=True)]
    return [rank for rank in new if rank is not None]


def _dim_name(module: str, i: int, groups: int) -> str:
    return f"{module}:rank" + (f".{i}" if groups > 1 else "")


def _groups(contents: Contents) -> Iterator[Linear]:
    for name in contents.tensors:
        module = name.removesuffix(_INNER)
        if module == name or f"{module}.U.0.weight" not in contents.tensors:
            continue
        outer: list[str] = []
        while f"{module}.U.{len(outer)}.weight" in contents.tensors:
            outer.append(f"{module}.U.{len(outer)}.weight")
        biases = [f"{module}.U.{i}.bias" for i in range(len(outer))]
        biased = all(bias in contents.tensors for bias in biases)
        yield Linear(module, tuple(outer), inner=name, biases=tuple(biases) if biased else ())


def _notes(contents: Contents, groups: list[Linear]) -> Iterator[str]:
    yield (
        "a plain transformers Llama, Mistral or Qwen2 model loads these tensors without an error "
        "and leaves k_proj and v_proj random: use gacprof.load_model or PaLU's own class"
    )
    declared = contents.config.get("head_wise_ranks")
    if not isinstance(declared, dict):
        yield "config.json has no head_wise_ranks, which PaLU's own class needs"
        return
    for group in groups:
        ranks = [contents.shape(outer)[1] for outer in group.outer]
        if declared.get(group.name) != ranks:
            yield (
                f"{group.name}: config says ranks {declared.get(group.name)}, the tensors have "
                f"{ranks}; the tensors are believed"
            )

"""From linear layers to modules and dims: what all layouts share.

A layout lists its :class:`Linear` layers; here each becomes a module with its GEMMs, each
factor pair a rank dim, each MLP one width dim that couples gate, up and down.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gacprof.checkpoint.inventory import Dim, Feed, Gemm, Module, Place
from gacprof.checkpoint.layouts.attention import find_attentions
from gacprof.checkpoint.layouts.base import Contents, Findings
from gacprof.checkpoint.layouts.linear import Linear, check_shapes
from gacprof.checkpoint.layouts.names import is_embedding, layer_of, role_of
from gacprof.checkpoint.layouts.width import find_widths


def assemble(
    contents: Contents,
    linears: Sequence[Linear],
    *,
    ordered: bool = True,
    dims: Iterable[Dim] = (),
    notes: Iterable[str] = (),
) -> Findings:
    """Modules, rank and width dims, attentions of ``linears``.

    ``ordered`` says whether the layout's factors keep their trailing entries least important;
    ``dims`` are further dims of the layout's own. Raises :class:`CheckpointError` where
    factors do not fit each other.
    """
    check_shapes(contents, linears)
    ranks = [dim for linear in linears for dim in _ranks(contents, linear, ordered)]
    widths, remarks = find_widths(contents, linears)
    every = sorted((*ranks, *widths, *dims), key=lambda d: _order(d.layer, d.role, d.name))
    modules = [*_embeddings(contents), *(_module(contents, linear) for linear in linears)]
    modules.extend(_tied_head(contents, modules))
    modules.sort(key=lambda m: _order(m.layer, m.role, m.name))
    attentions, more = find_attentions(contents, linears)
    return Findings(
        tuple(_with_dims(modules, every)),
        tuple(every),
        attentions,
        (*notes, *remarks, *more),
    )


_ROLES = ("embedding", "q", "k", "v", "qkv", "o", "gate", "up", "gate_up", "down", "mlp")
_LAST = 1 << 30


def _order(layer: int | None, role: str, name: str) -> tuple[int, int, list[tuple[int, str]]]:
    """As the model runs: embedding, layers, the rest; within a layer by role, then by name."""
    first = -1 if layer is None and role == "embedding" else _LAST if layer is None else layer
    place = _ROLES.index(role) if role in _ROLES else len(_ROLES)
    pieces = re.split(r"([0-9]+)", name)  # numbers compare by length first: 9 before 10
    return first, place, [(len(p) if p[:1].isdecimal() else 0, p) for p in pieces]


def _ranks(contents: Contents, linear: Linear, ordered: bool) -> list[Dim]:
    """One rank dim per outer factor, at its offset in the inner one's output."""
    if linear.inner is None:
        return []
    start, found = 0, []
    n_in = linear.in_features(contents)
    for i, outer in enumerate(linear.outer):
        n_out = contents.shape(outer)[linear.axes[0]]
        size = contents.shape(outer)[linear.axes[1]]
        found.append(
            Dim(
                name=f"{linear.name}:rank" + (f".{i}" if len(linear.outer) > 1 else ""),
                kind="rank",
                size=size,
                places=(
                    Place(linear.inner, linear.axes[0], start),
                    Place(outer, linear.axes[1]),
                ),
                feeds=(Feed(linear.inner, "N"), Feed(outer, "K")),
                params_per_unit=n_in + n_out,
                layer=layer_of(linear.name),
                role=role_of(linear.name),
                dense_size=min(n_in, n_out) if size < min(n_in, n_out) else None,
                padding="refused" if linear.frozen else "exact",
                why=linear.frozen,
                ordered=ordered and not linear.frozen,
            )
        )
        start += size
    return found


def _module(contents: Contents, linear: Linear) -> Module:
    n_out, n_in = linear.out_features(contents), linear.in_features(contents)
    biased = bool(linear.biases)
    if linear.packed or linear.inner is None:
        gemms = [Gemm(linear.outer[0], n_out, n_in, biased)]
    else:
        out_axis, in_axis = linear.axes
        gemms = [Gemm(linear.inner, contents.shape(linear.inner)[out_axis], n_in)]
        for outer in linear.outer:
            shape = contents.shape(outer)
            gemms.append(Gemm(outer, shape[out_axis], shape[in_axis], biased))
    grouped = len(linear.outer) > 1
    return Module(
        name=linear.name,
        role=role_of(linear.name),
        layer=layer_of(linear.name),
        kind="grouped" if grouped else "factored" if linear.inner else "dense",
        in_features=n_in,
        out_features=n_out,
        dtype=linear.dtype(contents),
        gemms=tuple(gemms),
    )


def _embeddings(contents: Contents) -> Iterable[Module]:
    for name, info in contents.tensors.items():
        module = name.removesuffix(".weight")
        if name.endswith(".weight") and len(info.shape) == 2 and is_embedding(module):
            rows, width = info.shape
            yield Module(
                module, "embedding", layer_of(module), "embedding", rows, width, info.dtype, ()
            )


def _tied_head(contents: Contents, modules: Sequence[Module]) -> list[Module]:
    """The head GEMM that reads the embedding's weight, where the head has none of its own."""
    if not contents.config.get("tie_word_embeddings", False):
        return []
    if any(m.role == "head" for m in modules):
        return []
    for table in modules:
        last = table.name.rsplit(".", 1)[-1]
        if table.kind == "embedding" and last in ("embed_tokens", "wte", "word_embeddings"):
            gemm = Gemm(f"{table.name}.weight", table.in_features, table.out_features)
            return [
                Module(
                    "lm_head",
                    "head",
                    None,
                    "dense",
                    table.out_features,
                    table.in_features,
                    table.dtype,
                    (gemm,),
                )
            ]
    return []


def _with_dims(modules: Iterable[Module], dims: Iterable[Dim]) -> Iterable[Module]:
    """Each module with the names of the dims that feed its GEMMs."""
    by_weight: dict[str, list[str]] = {}
    for dim in dims:
        for feed in dim.feeds:
            names = by_weight.setdefault(feed.weight, [])
            if dim.name not in names:
                names.append(dim.name)
    for module in modules:
        names = [n for gemm in module.gemms for n in by_weight.get(gemm.weight, ())]
        yield replace(module, dims=tuple(dict.fromkeys(names)))

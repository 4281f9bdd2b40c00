"""SliceGPT: the residual stream is cut, and ``attn_shortcut_Q``, ``mlp_shortcut_Q`` carry it.

Every stretch of the residual stream between two shortcuts is one dim: it is written in the
weights that produce it (o, down, embedding), in those that read it (q, k, v, gate, up, head)
and in the two shortcut matrices [in, out] at its ends. The norms have no weights and divide by
the *original* hidden size, so zeros in the stream change nothing
(microsoft/TransformerCompression, slicegpt/rotate.py, modules.py). The side JSON has all sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gacprof.checkpoint.inventory import Dim, Feed, Inventory, Place
from gacprof.checkpoint.layouts.assemble import assemble
from gacprof.checkpoint.layouts.base import Contents, Findings, Sizes
from gacprof.checkpoint.layouts.linear import Linear, check_shapes, dense_linears
from gacprof.checkpoint.layouts.names import is_embedding, layer_of, role_of
from gacprof.checkpoint.layouts.plain import mirror_config
from gacprof.core.errors import CheckpointError

_ATTENTION, _MLP = ".attn_shortcut_Q", ".mlp_shortcut_Q"
_READ_BY = {"attn": ("q", "k", "v", "qkv"), "mlp": ("gate", "up", "gate_up")}
_WRITTEN_BY = {"attn": ("o",), "mlp": ("down",)}


@dataclass(frozen=True)
class Stretch:
    """The residual stream between two shortcuts. ``keys`` are its entries in the side JSON."""

    name: str
    layer: int | None
    places: tuple[Place, ...]
    feeds: tuple[Feed, ...]
    keys: tuple[tuple[str, ...], ...]


class SliceGpt:
    name = "slicegpt"

    def recognise(self, contents: Contents) -> bool:
        return any(name.endswith(_ATTENTION) for name in contents.tensors)

    def describe(self, contents: Contents) -> Findings:
        linears = [*_shortcuts(contents), *dense_linears(contents)]
        check_shapes(contents, linears)
        dims = [_dim(contents, stretch) for stretch in _stretches(contents, linears)]
        return assemble(contents, linears, dims=dims, notes=_notes(contents))

    def mirror(self, inventory: Inventory, sizes: Sizes) -> dict[str, dict[str, Any]]:
        files = mirror_config(inventory, sizes)
        contents = Contents(inventory.tensors, inventory.config, inventory.side)
        linears = [*_shortcuts(contents), *dense_linears(contents)]
        for file, side in _slicing(inventory.side):
            new = {k: dict(v) if isinstance(v, dict) else v for k, v in side.items()}
            for stretch in _stretches(contents, linears):
                size = sizes.get(stretch.name)
                for key in stretch.keys if size is not None else ():
                    table = new.get(key[0])
                    if len(key) == 1:
                        new[key[0]] = size
                    elif isinstance(table, dict) and key[1] in table:
                        table[key[1]] = size
            files[file] = new
        return files


def _slicing(side: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for file, content in side.items():
        if "embedding_dimensions" in content:
            yield file, dict(content)


def _shortcuts(contents: Contents) -> list[Linear]:
    """Each shortcut is a GEMM of its own; its matrix is stored as [in, out]."""
    return [
        Linear(name, (name,), axes=(1, 0))
        for name in contents.tensors
        if name.endswith((_ATTENTION, _MLP))
    ]


def _stretches(contents: Contents, linears: Sequence[Linear]) -> list[Stretch]:
    """The residual stream in order: after the embedding, then after each block."""
    blocks = list(_blocks(contents, linears))
    last = [linear for linear in linears if role_of(linear.name) == "head"]
    tables = [
        Place(name, 1)
        for name, info in contents.tensors.items()
        if name.endswith(".weight")
        and len(info.shape) == 2
        and is_embedding(name.removesuffix(".weight"))
    ]
    stretches = [_first(blocks[0], tables)]
    for i, block in enumerate(blocks):
        following = blocks[i + 1] if i + 1 < len(blocks) else None
        stretches.append(_after(block, following, last))
    return stretches


@dataclass(frozen=True)
class _Block:
    """One shortcut with the weights that read its input and write its output."""

    layer: int
    kind: str
    path: str
    shortcut: str
    readers: tuple[Linear, ...]
    writers: tuple[Linear, ...]


def _blocks(contents: Contents, every: Sequence[Linear]) -> Iterator[_Block]:
    paths = [n.removesuffix(_ATTENTION) for n in contents.tensors if n.endswith(_ATTENTION)]
    for path in sorted(paths, key=lambda p: layer_of(p) or 0):
        linears = [x for x in every if x.name.startswith(f"{path}.")]
        parallel = f"{path}{_MLP}" not in contents.tensors
        halves = (("attn", "mlp"),) if parallel else (("attn",), ("mlp",))
        for half in halves:
            reads = [role for kind in half for role in _READ_BY[kind]]
            writes = [role for kind in half for role in _WRITTEN_BY[kind]]
            yield _Block(
                layer_of(path) or 0,
                half[0] if not parallel else "block",
                path,
                f"{path}{_ATTENTION if half[0] == 'attn' else _MLP}",
                tuple(x for x in linears if role_of(x.name) in reads),
                tuple(x for x in linears if role_of(x.name) in writes),
            )


def _first(block: _Block, tables: list[Place]) -> Stretch:
    places, feeds = _read(block)
    keys = (("embedding_dimensions", "0"), *_input_keys(block))
    return Stretch("embedding:hidden", None, (*tables, *places), tuple(feeds), keys)


def _after(block: _Block, following: _Block | None, heads: Sequence[Linear]) -> Stretch:
    places, feeds = [Place(block.shortcut, 1)], [Feed(block.shortcut, "N")]
    for writer in block.writers:
        places.append(Place(writer.outer[0], writer.axes[0]))
        places.extend(Place(bias, 0) for bias in writer.biases)
        feeds.append(Feed(writer.outer[0], "N"))
    keys = _output_keys(block)
    if following is not None:
        more, fed = _read(following)
        keys += _input_keys(following)
    else:
        more = [Place(head.reads, head.axes[1]) for head in heads]
        fed = [Feed(head.reads, "K") for head in heads]
        keys += (("head_dimension",),)
    name = f"{block.path}.{block.kind}:hidden"
    return Stretch(name, block.layer, (*places, *more), (*feeds, *fed), keys)


def _read(block: _Block) -> tuple[list[Place], list[Feed]]:
    places = [Place(block.shortcut, 0), *(Place(x.reads, x.axes[1]) for x in block.readers)]
    feeds = [Feed(block.shortcut, "K"), *(Feed(x.reads, "K") for x in block.readers)]
    return places, feeds


def _input_keys(block: _Block) -> tuple[tuple[str, ...], ...]:
    return _keys(block, "input")


def _output_keys(block: _Block) -> tuple[tuple[str, ...], ...]:
    return _keys(block, "output")


def _keys(block: _Block, side: str) -> tuple[tuple[str, ...], ...]:
    kinds = {"attn": ("attention",), "mlp": ("mlp",), "block": ("attention", "mlp")}[block.kind]
    return tuple((f"{kind}_{side}_dimensions", str(block.layer)) for kind in kinds)


def _dim(contents: Contents, stretch: Stretch) -> Dim:
    sizes = {contents.shape(place.tensor)[place.axis] for place in stretch.places}
    if len(sizes) != 1:
        raise CheckpointError(
            f"{stretch.name}: the weights at this stretch of the residual stream have sizes "
            f"{sorted(sizes)[:6]}, which should be one"
        )
    size = sizes.pop()
    original = _original_hidden(contents)
    cost = sum(contents.tensors[p.tensor].numel // max(1, size) for p in stretch.places)
    return Dim(
        name=stretch.name,
        kind="hidden",
        size=size,
        places=stretch.places,
        feeds=stretch.feeds,
        params_per_unit=cost,
        layer=stretch.layer,
        role="hidden",
        dense_size=original if original is not None and original > size else None,
    )


def _original_hidden(contents: Contents) -> int | None:
    for _, side in _slicing(contents.side):
        if type(side.get("hidden_size")) is int:
            return int(side["hidden_size"])
    hidden = contents.config.get("hidden_size")
    return hidden if type(hidden) is int else None


def _notes(contents: Contents) -> Iterator[str]:
    yield (
        "norms divide by the original hidden size and have no weights: only gacprof.load_model "
        "or SliceGPT's own loader runs this model right"
    )
    if not any(True for _ in _slicing(contents.side)):
        yield "the slicing config (JSON beside the weights) is missing; SliceGPT's loader needs it"

"""Every product of a model as one rank runs it, from its config alone.

A product is y[M, N] = x[M, K] · W[N, K]ᵀ; M is left open. With t tensor-parallel ranks, a column
split gives a rank N/t, a row split K/t; keys and values are repeated where ranks outnumber their
heads; experts are split by e ranks of their own. Engines fuse q with k and v, gate with up, and
what else reads one input: such a product has *shards*, since demands are on each of them.

Beside products there are *counts* that ranks share: heads, groups, experts, the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from gacprof.demands.configs import Config

FUSED = ("qkv", "gate_up", "qkv_a", "in_proj")
"""Products that an engine may fuse."""


@dataclass(frozen=True)
class Size:
    """A size as one rank holds it, from ``whole`` over ``parts``. ``value`` is None where config
    fields are ``missing`` or the parts are not even; ``by_heads``: a count of its own says so."""

    value: int | None
    whole: int | None = None
    parts: int = 1
    missing: tuple[str, ...] = ()
    by_heads: bool = False

    @property
    def is_uneven(self) -> bool:
        return self.whole is not None and self.value is None


@dataclass(frozen=True)
class ModelProduct:
    """``kind`` is dense, expert, vocab or count; ``split`` column, row or replicated. ``layers`` of
    it there are and ``copies`` in each on one rank (experts), None where the config does not say.
    ``fields`` are the config's names of what sizes it. ``modules`` are the checkpoint's names."""

    name: str
    role: str
    kind: str
    split: str
    n: Size
    k: Size
    shards: tuple[tuple[str, Size], ...] = ()
    gated: bool = True
    layers: int | None = None
    copies: float | None = 1
    fields: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ranks:
    """How an engine shares a model out: ``tp`` ranks, ``experts`` of them for each expert,
    ``shared`` for shared experts; ``expert_parallel`` ranks share out whole experts. ``fused`` are
    the products that the engine fuses; ``whole_blocks``: widths are dealt out in blocks of 32;
    ``uneven``: what the engine deals out although it does not divide (widths, kv_heads)."""

    tp: int = 1
    experts: int = 1
    shared: int = 1
    expert_parallel: int = 1
    fused: frozenset[str] = frozenset(FUSED)
    whole_blocks: bool = False
    uneven: frozenset[str] = frozenset()


LETTERS = {"attention": "*", "mamba": "M", "experts": "E", "dense": "-"}
"""Kinds of layers in Nemotron-H's ``hybrid_override_pattern``."""


class Sizes:
    """A config's sizes, shared by ranks, and in how many layers they are found."""

    def __init__(self, config: Config, ranks: Ranks) -> None:
        self.config, self.ranks, self.family = config, ranks, config.meaning
        self.hidden = self.size("hidden_size")
        self.layers = config.get("layers")
        expert = self.family.expert
        self.has_experts = bool(expert) and (
            config.get(expert) is not None or self.family.experts_only
        )

    def size(self, *names: str, parts: int = 1, times: int = 1, by_heads: bool = False) -> Size:
        """The product of config fields, shared by ``parts``."""
        values = [self.get(name) for name in names]
        found = zip(names, values, strict=True)
        gone = tuple(self.config.spelling(name) for name, value in found if value is None)
        if gone:
            return Size(None, parts=parts, missing=gone)
        whole = times * prod(value for value in values if value is not None)
        if "widths" in self.ranks.uneven and not by_heads:
            return Size(-(-whole // parts), whole, parts)
        return shared(whole, parts, by_heads)

    def get(self, name: str) -> int | None:
        """A size; where the config is silent, what its family means by that."""
        if name == "head_dim":
            return self._head_dim()
        if name == "kv_heads":
            return self._kv_heads()
        if name == "mamba_head_dim":
            return self._mamba_head_dim()
        given, ratio = self.config.get(name), self.family.mlp_ratio
        if given is None and name == "intermediate_size" and ratio:
            hidden = self.config.get("hidden_size")
            return ratio * hidden if hidden else None
        return given

    def _head_dim(self) -> int | None:
        given = self.config.get("head_dim") or self.family.head_dim
        hidden, heads = self.config.get("hidden_size"), self.config.get("heads")
        if given or not hidden or not heads or hidden % heads:
            return given
        return hidden // heads

    def _kv_heads(self) -> int | None:
        values, means = self.config.values, self.family.kv_heads
        is_new = values.get("new_decoder_architecture") is True
        if values.get("multi_query") is True and not is_new:  # Falcon, GPTBigCode
            return 1
        given = self.config.get("kv_heads")
        if given or isinstance(means, int):
            return given or int(means or 0) or None
        return self.config.get("heads") if means == "heads" else None

    def _mamba_head_dim(self) -> int | None:
        """``auto``: the inner width, a multiple of the hidden size, over the heads."""
        config, heads = self.config, self.config.get("mamba_heads")
        if config.values.get(config.spelling("mamba_head_dim")) not in ("auto", None):
            return config.get("mamba_head_dim")
        times, hidden = config.get("mamba_expand"), config.get("hidden_size")
        inner = config.get("mamba_d_ssm") or (times * hidden if times and hidden else None)
        return inner // heads if inner and heads and inner % heads == 0 else None

    def of_heads(self, heads: str, dim: str, times: int = 1) -> Size:
        """Heads shared out whole; of keys and values each rank has one at least."""
        count, parts = self.get(heads), self.ranks.tp
        if heads == "kv_heads" and count and count < parts and parts % count == 0:
            return self.size(dim, times=times)
        if heads == "kv_heads" and count and "kv_heads" in self.ranks.uneven:
            return self.size(dim, times=-(-count // parts) * times)
        size = self.size(heads, dim, parts=parts, times=times, by_heads=True)
        return replace(size, value=None) if count and count % parts else size

    def of_dims(self, *dims: str) -> Size:
        """Heads · (the sum of these dims), shared out by heads."""
        values = [self.config.get(dim) for dim in dims]
        count, parts = self.config.get("heads"), self.ranks.tp
        gone = [dim for dim, value in zip(dims, values, strict=True) if value is None]
        gone += [] if count else [self.config.spelling("heads")]
        if gone or not count:
            return Size(None, missing=tuple(gone))
        whole = count * sum(value for value in values if value is not None)
        return Size(None if count % parts else whole // parts, whole, parts, by_heads=True)

    def column(
        self, name: str, role: str, n: Size, layers: int | None, fields: tuple[str, ...],
        *modules: str, k: Size | None = None, split: str = "column",
    ) -> ModelProduct:  # fmt: skip
        """A dense product of the hidden state; ``modules`` are the ends of its modules' names."""
        named = tuple(f"model.layers.{{}}.{module}" for module in modules)
        spelled = tuple(map(self.config.spelling, fields))
        k = k or self.hidden
        return ModelProduct(name, role, "dense", split, n, k, layers=layers, fields=spelled,
                       modules=named)  # fmt: skip

    def row(
        self, name: str, role: str, k: Size, layers: int | None, fields: tuple[str, ...],
        *modules: str,
    ) -> ModelProduct:  # fmt: skip
        """A dense product that adds to the hidden state, of what the ranks hold of ``k``."""
        n = self.hidden
        return self.column(name, role, n, layers, fields, *modules, k=k, split="row")

    def layers_of(self, kind: str) -> int | None:
        """In how many layers a kind of product lies; None where the config does not say."""
        config, total = self.config, self.layers
        pattern = config.values.get("hybrid_override_pattern")
        if isinstance(pattern, str) and pattern:
            return pattern.count(LETTERS[kind]) if kind in LETTERS else total
        if total is None:
            return None
        if kind in ("dense", "experts"):
            if not self.has_experts or self.family.dense_too:
                return total
            first = config.get("first_k_dense_replace") or config.listed("mlp_only_layers")
            return min(first, total) if kind == "dense" else max(0, total - first)
        types = config.values.get("layer_types")
        if isinstance(types, list) and kind in ("attention", "linear_attention"):
            linear = sum(each == "linear_attention" for each in types)
            return linear if kind == "linear_attention" else len(types) - linear
        every = config.get("full_attention_interval")
        if every and config.get("linear_num_value_heads"):
            return total // every if kind == "attention" else total - total // every
        is_open = kind == "mamba" and self.family.name != "hybrid"
        return None if kind == "linear_attention" or is_open else total


def shared(whole: int, parts: int, by_heads: bool = False) -> Size:
    """A number shared by so many, None where it is not even."""
    return Size(None if whole % parts else whole // parts, whole, parts, by_heads=by_heads)

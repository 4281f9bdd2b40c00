"""Every product of a model as one rank runs it, from its config alone.

A product is y[M, N] = x[M, K] · W[N, K]ᵀ; M is left open. With t tensor-parallel ranks, a column
split gives a rank N/t, a row split K/t; keys and values are repeated where ranks outnumber their
heads; experts are split by e ranks of their own. Engines fuse q with k and v, gate with up, and
what else reads one input: such a product has *shards*, since demands are on each of them.

Beside products there are *counts* that ranks share: heads, groups, experts, the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

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
class Product:
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

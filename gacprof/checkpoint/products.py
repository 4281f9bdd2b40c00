"""The matrix products of a checkpoint as one tensor-parallel rank runs them.

Tensor parallelism after Megatron splits q, k, v, gate and up along N and o and down along K; a
factor pair is split at its outer side, so that ranks stay whole. A width of 1368 on eight TP ranks
is one of 171 on each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from numbers import Real
from types import MappingProxyType
from typing import TYPE_CHECKING

from gacprof.checkpoint.inventory import Dim, Inventory, Module, NewSizes
from gacprof.core.dtypes import DTYPES, compute_dtype, dtype_name
from gacprof.core.errors import ConfigError
from gacprof.core.sizes import ZERO, Gemm, Interval, Side, SizeSource, Use

Tokens = Mapping[int, float] | Sequence[int]

DEFAULT_TOKENS: Mapping[int, float] = MappingProxyType({1: 1.0, 1024: 1.0})
"""One decode step and one prefill of 1024 tokens (the papers' sequence length), equally."""

AS_STORED: NewSizes = MappingProxyType({})

if TYPE_CHECKING:  # what diagnosing needs does without numpy
    import numpy as np
    from numpy.typing import NDArray

    Mask = bool | NDArray[np.bool]
    Lengths = int | NDArray[np.int64]
    ManySizes = Mapping[str, int | NDArray[np.int64] | None]
    """Sizes by dim name, as :data:`NewSizes`, or columns of them, all equally long."""
MERGED = 0
"""Stands in a column for None: the rank is merged."""

PADDED_TO = (64, 8)
"""Multiples that coupled dims are taken to be padded to where a dim is judged beside them: one of
64 hides nothing of a smaller period. These are what a sweep of a model measures, too."""

COLUMN_ROLES = frozenset({"q", "k", "v", "qkv", "gate", "up", "gate_up"})
"""Roles whose output features the TP ranks share (Megatron-LM's column-parallel layers)."""
ROW_ROLES = frozenset({"o", "down"})
"""Roles whose input features they share (row-parallel layers)."""


def workload(tokens: Tokens | None, source: SizeSource) -> dict[int, float]:
    """Token counts and their weights: counts alone weigh 1 each; None means those that the source
    holds, else :data:`DEFAULT_TOKENS`.

    Raises :class:`ConfigError` for counts or weights that are not positive.
    """
    if tokens is None:
        tokens = list(source.tokens) or DEFAULT_TOKENS
    weights = dict(tokens) if isinstance(tokens, Mapping) else dict.fromkeys(tokens, 1.0)
    amounts = [*weights, *weights.values()]
    is_number = all(isinstance(n, Real) and 0 < n < inf for n in amounts)
    if not weights or not is_number or min(weights) < 1:
        raise ConfigError(f"tokens {weights}: give positive counts, such as 1 1024")
    return weights


class Products:
    """The products of a checkpoint, run for a workload.

    Parameters
    ----------
    inventory
        The checkpoint.
    tokens
        Rows of x and how often each count runs.
    tp
        Tensor-parallel ranks that share the products.
    dtype
        The type that all products are computed in; by default each module's own.

    Raises
    ------
    ConfigError
        Where ``tp`` ranks cannot share the attention's heads.
    """

    def __init__(
        self,
        inventory: Inventory,
        tokens: Mapping[int, float],
        tp: int = 1,
        dtype: str | None = None,
    ) -> None:
        if tp < 1:
            raise ConfigError(f"tp is {tp}: give the number of TP ranks, 1 or more")
        self.inventory = inventory
        self.tokens = tokens
        self.tp = tp
        self.dtype = dtype and compute_dtype(dtype)
        self.plain_dtype = self.dtype or plain_dtype(inventory)
        self._kv_heads = {a.layer: a.kv_heads for a in inventory.attentions}
        for a in inventory.attentions:
            if a.heads % tp or (a.kv_heads % tp and tp % a.kv_heads):
                raise ConfigError(
                    f"{tp} TP ranks cannot share the {a.heads} heads ({a.kv_heads} of keys and "
                    f"values) of layer {a.layer}: choose a tp that divides them"
                )

    def dtype_of(self, module: Module) -> str:
        """The type that a module's products are computed in. Packed and integer weights are
        turned into the model's plain type first; float8 is multiplied as it is."""
        stored = dtype_name(module.dtype)
        if self.dtype is not None:
            return self.dtype
        return stored if stored in DTYPES and stored != "int8" else self.plain_dtype

    def gemms(self, module: Module, sizes: NewSizes = AS_STORED) -> list[Gemm]:
        """A module's products, undivided, with dims at these sizes: one dense product where a
        rank of it is merged (None)."""
        lengths = self.lengths(module, sizes)
        if is_merged(module, sizes):
            is_biased = any(gemm.bias for gemm in module.gemms)
            n, k = dense_lengths(module, lengths)
            return [Gemm(module.name, int(n), int(k), is_biased)]
        pairs = zip(module.gemms, lengths, strict=True)
        return [Gemm(gemm.weight, int(n), int(k), gemm.bias) for gemm, (n, k) in pairs]

    def lengths(self, module: Module, sizes: ManySizes) -> list[tuple[Lengths, Lengths]]:
        """N and K of a module's products, undivided, with dims at these sizes; a merged rank
        counts as it is stored."""
        lengths: list[tuple[Lengths, Lengths]] = []
        for gemm in module.gemms:
            sides: dict[str, Lengths] = {"N": gemm.N, "K": gemm.K}
            for dim in self.inventory.fed_by.get(gemm.weight, ()):
                for feed in dim.feeds:
                    if feed.weight == gemm.weight:
                        sides[feed.axis] = sides[feed.axis] + growth(dim, sizes)
            lengths.append((sides["N"], sides["K"]))
        return lengths

    def uses_of(self, dim: Dim, sizes: NewSizes = AS_STORED) -> list[Use]:
        """The dim's part in every product that it feeds, at each token count, whatever its own
        size. Other dims have the sizes named, else those stored."""
        uses = []
        for module in self.inventory.modules_of[dim.name]:
            size = dim.size
            products = self.gemms(module, {**sizes, dim.name: size})
            longer_products = self.gemms(module, {**sizes, dim.name: size + 1})
            for i, (gemm, longer) in enumerate(zip(products, longer_products, strict=True)):
                if gemm == longer:
                    continue
                n_tp, k_tp = self.shares(module, i, len(products))
                n_times, k_times = longer.N - gemm.N, longer.K - gemm.K
                n = Side(gemm.N - n_times * size, n_times, n_tp)
                k = Side(gemm.K - k_times * size, k_times, k_tp)
                dtype = self.dtype_of(module)
                uses += [Use(gemm, n, k, m, dtype, w) for m, w in self.tokens.items()]
        return uses

    def shares(self, module: Module, index: int, count: int) -> tuple[int, int]:
        """The number of TP ranks that share N, and K, of the ``index``-th of ``count`` products
        of a module. Groups of factors are held whole."""
        role = module.role.removeprefix("expert_")
        if module.kind == "grouped" and count > 1:
            return 1, 1
        ranks = self.tp
        if role in ("k", "v"):
            ranks = min(ranks, self._kv_heads.get(module.layer or 0, ranks))
        shares_n = role in COLUMN_ROLES and index == count - 1
        shares_k = role in ROW_ROLES and index == 0
        return (ranks if shares_n else 1), (ranks if shares_k else 1)

    def local_gemms(self, module: Module, sizes: NewSizes = AS_STORED) -> Iterator[Gemm | None]:
        """A module's products as one TP rank runs them; None where ranks cannot share one."""
        products = self.gemms(module, sizes)
        for i, gemm in enumerate(products):
            n_tp, k_tp = self.shares(module, i, len(products))
            if gemm.N % n_tp or gemm.K % k_tp:
                yield None
            else:
                yield Gemm(gemm.weight, gemm.N // n_tp, gemm.K // k_tp, gemm.bias)

    def time_us(
        self, source: SizeSource, modules: Sequence[Module], sizes: NewSizes = AS_STORED
    ) -> Interval | None:
        """The time of the workload in these modules' products; None where that of one isn't
        known. Equal products are looked up once."""
        counts: Counter[tuple[int, int, bool, str]] = Counter()
        for module in modules:
            for gemm in self.local_gemms(module, sizes):
                if gemm is None:
                    return None
                counts[gemm.N, gemm.K, gemm.bias, self.dtype_of(module)] += 1
        total = ZERO
        for (n, k, bias, dtype), count in counts.items():
            time = self.product_us(source, Gemm("", n, k, bias), dtype)
            if time is None:
                return None
            total += time.scaled(count)
        return total

    def product_us(self, source: SizeSource, gemm: Gemm, dtype: str) -> Interval | None:
        """The time of one product at all token counts of the workload; None where not known."""
        total = ZERO
        for tokens, weight in self.tokens.items():
            time = source.latency_us(gemm, tokens, dtype)
            if time is None:
                return None
            total += time.scaled(weight)
        return total


def growth(dim: Dim, sizes: ManySizes) -> Lengths:
    """Return how much longer than stored a dim is; 0 where it is merged."""
    size = sizes.get(dim.name, dim.size)
    return 0 if size is None else (size - dim.size) * (size != MERGED)


def is_merged(module: Module, sizes: ManySizes) -> Mask:
    """Return whether a rank of the module is merged, for each of the sizes."""
    merged: Mask = False
    for name in module.dims:
        size = sizes.get(name, 1)
        merged = merged | (True if size is None else size == MERGED)
    return merged


def dense_lengths(
    module: Module, lengths: Sequence[tuple[Lengths, Lengths]]
) -> tuple[Lengths, Lengths]:
    """Return N and K of the dense weight in place of a module's factors of these lengths."""
    n = module.out_features + lengths[-1][0] - module.gemms[-1].N
    k = module.in_features + lengths[0][1] - module.gemms[0].K
    return n, k


def plain_dtype(inventory: Inventory) -> str:
    """The compute type of what isn't quantised: that of most modules, else the config's."""
    types = (dtype_name(module.dtype) for module in inventory.modules if module.gemms)
    counts = Counter(dtype for dtype in types if dtype in DTYPES and dtype != "int8")
    if counts:
        return counts.most_common(1)[0][0]
    config = inventory.config
    named = dtype_name(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return named if named in DTYPES else "bfloat16"


def coupled_dims(inventory: Inventory, dim: Dim) -> list[Dim]:
    """Return the other dims of the products that a dim feeds."""
    weights = dict.fromkeys(feed.weight for feed in dim.feeds)
    dims = {other.name: other for weight in weights for other in inventory.fed_by.get(weight, ())}
    dims.pop(dim.name, None)
    return list(dims.values())


def padded_neighbours(
    inventory: Inventory, dim: Dim, multiple: int, sizes: NewSizes = AS_STORED
) -> dict[str, int]:
    """Return the coupled dims of a dim that can be padded, at the next multiples of their
    ``sizes``. A merged one is none."""
    padded = {}
    for other in coupled_dims(inventory, dim):
        size = sizes.get(other.name, other.size)
        if size is not None and other.padding == "exact":
            padded[other.name] = -(-size // multiple) * multiple
    return padded

"""The matrix products of a checkpoint as one device runs them, and a dim's part in them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from gacprof.checkpoint.inventory import Dim, Inventory, Module, NewSizes
from gacprof.checkpoint.layouts.names import parent_of
from gacprof.checkpoint.storage import PLAIN, Storage
from gacprof.core.dtypes import DTYPES, compute_dtype, dtype_name
from gacprof.core.sizes import ZERO, Gemm, Interval, Side, SizeSource, Use
from gacprof.workload.deployment import Deployment
from gacprof.workload.roles import Role, role_of_module
from gacprof.workload.sharing import Sharing

Axis = Literal["N", "K"]
AS_STORED: NewSizes = MappingProxyType({})

if TYPE_CHECKING:  # what diagnosing needs does without numpy
    import numpy as np
    from numpy.typing import NDArray

    Mask = bool | NDArray[np.bool]
    Lengths = int | NDArray[np.int64]
    ManySizes = Mapping[str, int | NDArray[np.int64] | None]
    """Sizes by dim name, as :data:`NewSizes`, or columns of them, all equally long."""
MERGED = 0  # stands in a column for None: the rank is merged
PADDED_TO = (64, 8)
"""Coupled dims count as padded to these multiples where a dim is judged or measured beside them: a
multiple of 64 hides no smaller period."""
ALWAYS_FUSED = frozenset({"in_proj", "in_proj_qkvz", "in_proj_ba", "w1/w3"})
"""Products that are stored as one, or that every kernel of experts multiplies as one."""


@dataclass(frozen=True)
class Product:
    """A matrix product as one device runs it.

    ``parts`` are those of several ``weights`` that are multiplied together; ``module`` is the first
    one's, with ``{}`` for the layer's number. ``N`` and ``K`` are 0 where a config doesn't say
    them, None where ranks cannot share them evenly; ``whole`` is the stored length of the
    ``shared_side`` that ``ranks`` ranks share. ``rows`` are rows of x, and how often each number of
    them runs; empty where not known.
    """

    weights: tuple[str, ...]
    module: str
    layer: int | None
    role: Role
    N: int | None
    K: int | None
    shared_side: Literal["N", "K", ""]
    whole: int
    ranks: int
    rows: Mapping[int, float]
    dtype: str
    bias: bool
    model_storage: Storage
    parts: tuple[Product, ...] = ()

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of its parts."""
        return tuple(dict.fromkeys(part.module for part in self.parts or (self,)))

    @property
    def storage(self) -> Storage:
        """How its weights are stored: embedding and head stay 16 bit but in GGUF files, MXFP4 is a
        format of experts; some small roles, and what the config's ignore list names, stay plain."""
        form = self.model_storage.form
        of_experts = form == "mxfp4" and self.model_storage.tool != "ct"
        is_plain = {"vocab": form != "gguf", "dense": of_experts}
        if self.role.is_plain or is_plain.get(self.role.kind, False):
            return PLAIN
        return self.model_storage.of_modules(self.modules)


class Products:
    """The products of a checkpoint, run for a workload.

    ``tokens`` are rows of x and how often each count runs; ``tp`` ranks share the products, ``ep``
    of them deal out whole experts; they are computed in ``dtype``, by default each module's own.
    Raises :class:`ConfigError` where ranks cannot share the heads of a layer; for a ``deployment``
    the side is None there.
    """

    def __init__(
        self,
        inventory: Inventory,
        tokens: Mapping[int, float],
        tp: int = 1,
        dtype: str | None = None,
        *,
        ep: int = 1,
        deployment: Deployment | None = None,
    ) -> None:
        self.inventory = inventory
        self.tokens = tokens
        self.tp = tp
        self.dtype = dtype and compute_dtype(dtype)
        self.plain_dtype = self.dtype or plain_dtype(inventory)
        self.sharing = Sharing(inventory, deployment or Deployment(tp=tp, ep=ep, tokens=tokens))
        self.rows_of = self.sharing.rows_of
        self.fused = ALWAYS_FUSED
        if deployment is None:
            self.sharing.refuse_uneven_heads()
        elif deployment.engine is not None:
            self.fused |= deployment.engine.fused

    def dtype_of(self, module: Module) -> str:
        """Return the type of a module's products, the plain one for packed and integer weights."""
        stored = dtype_name(module.dtype)
        if self.dtype is not None:
            return self.dtype
        return stored if stored in DTYPES and stored != "int8" else self.plain_dtype

    def together(self, modules: Iterable[Module]) -> list[list[Module]]:
        """Groups of modules that are multiplied as one: dense ones of one parent that are fused."""
        groups: dict[object, list[Module]] = {}
        for i, module in enumerate(modules):
            fused = role_of_module(module).fused
            # factor pairs run alone: each has an inner product of its own
            is_fused = len(module.gemms) == 1 and fused in self.fused
            key = (parent_of(module.name), fused) if is_fused else i  # i: by itself
            groups.setdefault(key, []).append(module)
        return list(groups.values())

    def gemms(
        self, module: Module, sizes: NewSizes = AS_STORED, others: Sequence[Module] = ()
    ) -> list[Gemm]:
        """Return a module's products on all ranks, N of ``others`` added; merged ones as one."""
        lengths = self.lengths(module, sizes, others)
        if is_merged(module, sizes):
            is_biased = any(gemm.bias for gemm in module.gemms)
            n, k = dense_lengths(module, lengths)
            return [Gemm(module.name, int(n), int(k), is_biased)]
        pairs = zip(module.gemms, lengths, strict=True)
        return [Gemm(gemm.weight, int(n), int(k), gemm.bias) for gemm, (n, k) in pairs]

    def lengths(
        self, module: Module, sizes: ManySizes, others: Sequence[Module] = ()
    ) -> list[tuple[Lengths, Lengths]]:
        """Return N and K of a module's products on all ranks, a merged rank as it is stored."""
        lengths: list[tuple[Lengths, Lengths]] = []
        for gemm in module.gemms:
            sides: dict[str, Lengths] = {"N": gemm.N, "K": gemm.K}
            for dim in self.inventory.fed_by.get(gemm.weight, ()):
                for feed in dim.feeds:
                    if feed.weight == gemm.weight:
                        sides[feed.axis] = sides[feed.axis] + growth(dim, sizes)
            lengths.append((sides["N"], sides["K"]))
        if lengths:
            n, k = lengths[-1]
            lengths[-1] = (n + self._beyond_stored(module), k)
        for other in others:
            n, k = lengths[0]
            lengths[0] = (n + self.lengths(other, sizes)[0][0], k)
        return lengths

    def _beyond_stored(self, module: Module) -> int:
        """Return what all ranks hold of N beyond its length: repeated heads, padded rows."""
        count, n = len(module.gemms), module.gemms[-1].N
        local = self.sharing.local(module, n)
        if self._shared_side(module, count - 1, count) != "N" or local is None:
            return 0
        return local * self.shares(module, count - 1, count)[0] - n

    def uses_of(self, dim: Dim, sizes: NewSizes = AS_STORED) -> list[Use]:
        """Return the dim's part in every product that it feeds, at each number of rows. Other dims
        have the sizes named, else those stored. None where the rows of one product aren't known."""
        uses = []
        size = dim.size
        for module, *others in self.together(self.inventory.modules_of[dim.name]):
            dtype, rows = self.dtype_of(module), self.rows_of(module)
            if not rows:
                return []  # a sum without it would look complete
            gemms = self.gemms(module, {**sizes, dim.name: size}, others)
            # lengths are linear in the size: two sizes tell how often a side has it
            longer_gemms = self.gemms(module, {**sizes, dim.name: size + 1}, others)
            for i, (gemm, longer) in enumerate(zip(gemms, longer_gemms, strict=True)):
                n_tp, k_tp = self.shares(module, i, len(gemms))
                n_times, k_times = longer.N - gemm.N, longer.K - gemm.K
                n = Side(gemm.N - n_times * size, n_times, n_tp)
                k = Side(gemm.K - k_times * size, k_times, k_tp)
                if gemm != longer:
                    uses += [Use(gemm, n, k, m, dtype, weight) for m, weight in rows.items()]
        return uses

    def step_of(self, dim: Dim) -> int:
        """Return the multiple of a dim's sizes that gives its ranks whole words and scales."""
        roles = [role_of_module(module) for module in self.inventory.modules_of[dim.name]]
        return dim.step_on(max((self.sharing.ranks[role.shared_by] for role in roles), default=1))

    def shares(self, module: Module, index: int, count: int) -> tuple[int, int]:
        """Return the number of ranks that share N, and K, of one of a module's products."""
        side = self._shared_side(module, index, count)
        ranks = self.sharing.ranks[role_of_module(module).shared_by]
        return (ranks if side == "N" else 1), (ranks if side == "K" else 1)

    def _shared_side(self, module: Module, index: int, count: int) -> Literal["N", "K", ""]:
        """Return the side of one of a module's products that ranks share; groups are held whole."""
        split = role_of_module(module).split
        if module.kind == "grouped" and count > 1:
            return ""
        if split == "column" and index == count - 1:  # the outer factor: ranks stay whole
            return "N"
        return "K" if split == "row" and index == 0 else ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the config leaves open, so that products are not judged or not as they are run."""
        warnings = []
        modules = [module for module in self.inventory.modules if module.gemms]
        dtypes = sorted({self.dtype_of(module) for module in modules})
        if len(dtypes) > 1:
            stored = " and ".join(dtypes)
            warnings.append(
                f"weights are {stored}, and each product is judged in its own type: an engine "
                "casts all to one, which --dtype names"
            )
        if not all(map(self.rows_of, modules)):
            warnings.append(
                "experts are neither judged nor timed: the config doesn't say how many there are "
                "and a token goes to (num_experts, num_experts_per_tok)"
            )
        return tuple(warnings)

    def on_device(self, modules: Sequence[Module], sizes: NewSizes = AS_STORED) -> list[Product]:
        """Return these modules' products on one device."""
        products: list[Product] = []
        for group in self.together(modules):
            parts = list(chain.from_iterable(self._products(module, sizes) for module in group))
            if len(group) > 1:
                lengths = [part.N for part in parts]
                n = None if None in lengths else 0  # one unknown part leaves the sum unknown
                if all(lengths):
                    n = sum(filter(None, lengths))
                weights = tuple(part.weights[0] for part in parts)
                whole = sum(part.whole for part in parts)
                parts = [replace(parts[0], weights=weights, N=n, whole=whole, parts=tuple(parts))]
            products += parts
        return products

    def _products(self, module: Module, sizes: NewSizes) -> Iterator[Product]:
        """Return a module's products on one device."""
        gemms = self.gemms(module, sizes)
        for i, gemm in enumerate(gemms):
            side = self._shared_side(module, i, len(gemms))
            whole = gemm.K if side == "K" else gemm.N
            if side == "N":
                whole -= self._beyond_stored(module)
            part = self.sharing.local(module, whole)
            yield Product(
                weights=(gemm.weight,),
                module=re.sub(r"\.layers\.\d+\.", ".layers.{}.", module.name),
                layer=module.layer,
                role=role_of_module(module),
                N=part if side == "N" else gemm.N,
                K=part if side == "K" else gemm.K,
                shared_side=side,
                whole=whole,
                ranks=self.sharing.rank_count(module, role_of_module(module).counted),
                rows=self.rows_of(module),
                dtype=self.dtype_of(module),
                bias=gemm.bias,
                model_storage=self.sharing.storage,
            )

    def time_us(
        self, source: SizeSource, modules: Sequence[Module], sizes: NewSizes = AS_STORED
    ) -> Interval | None:
        """Return the time of the workload in these modules on one device; None where not known."""
        # layers repeat: a source is asked once for equal products
        counts: Counter[tuple[Gemm, str, tuple[tuple[int, float], ...]]] = Counter()
        for product in self.on_device(modules, sizes):
            if not product.N or not product.K:
                return None
            gemm = Gemm("", product.N, product.K, product.bias)
            counts[gemm, product.dtype, tuple(product.rows.items())] += 1
        total = ZERO
        for (gemm, dtype, rows), count in counts.items():
            time = self.product_us(source, gemm, dtype, dict(rows))
            if time is None:
                return None
            total += time.scaled(count)
        return total

    def product_us(
        self, source: SizeSource, gemm: Gemm, dtype: str, rows: Mapping[int, float]
    ) -> Interval | None:
        """Return the time of a product at all of these rows; None where it is not known."""
        total = ZERO
        for length, weight in rows.items():
            time = source.latency_us(gemm, length, dtype)
            if time is None:
                return None
            total += time.scaled(weight)
        return total if rows else None


def products(inventory: Inventory, deployment: Deployment) -> list[Product]:
    """Return what one device of a deployment multiplies."""
    model = Products(inventory, deployment.tokens, deployment.tp, deployment=deployment)
    return model.on_device(inventory.modules)


def side_uses(
    axis: Axis, other: int, tokens: Mapping[int, float], dtype: str, bias: bool = False
) -> list[Use]:
    """Return uses of a dim that is one side of a product beside a fixed ``other`` one."""
    gemm, n, k = Gemm("", other, 1, bias), Side(other), Side(0, 1)
    if axis == "N":
        gemm, n, k = Gemm("", 1, other, bias), Side(0, 1), Side(other)
    return [Use(gemm, n, k, count, dtype, weight) for count, weight in tokens.items()]


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
    """Return the compute type of what isn't quantised: that of most modules, else the config's."""
    types = (dtype_name(module.dtype) for module in inventory.modules if module.gemms)
    counts = Counter(dtype for dtype in types if dtype in DTYPES and dtype != "int8")
    if counts:
        return counts.most_common(1)[0][0]
    config = inventory.config
    named = dtype_name(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return named if named in DTYPES else "bfloat16"


def coupled_dims(inventory: Inventory, dim: Dim) -> list[Dim]:
    """Return the other dims of the products that a dim feeds."""
    dims: dict[str, Dim] = {}
    for feed in dim.feeds:
        dims |= {other.name: other for other in inventory.fed_by[feed.weight]}
    dims.pop(dim.name, None)
    return list(dims.values())


def padded_neighbours(
    inventory: Inventory, dim: Dim, multiple: int, sizes: NewSizes = AS_STORED
) -> dict[str, int]:
    """Return the coupled dims that can be padded, at the next multiples of their ``sizes``."""
    padded = {}
    for other in coupled_dims(inventory, dim):
        size = sizes.get(other.name, other.size)
        if size is not None and other.padding == "exact":
            padded[other.name] = -(-size // multiple) * multiple
    return padded

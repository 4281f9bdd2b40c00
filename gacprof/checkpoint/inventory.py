"""Describe a checkpoint as plain values: its tensors, linear layers, products and adjustable dims.

A layout (``layouts/``) turns :class:`Contents` into an :class:`Inventory`. A :class:`Dim` is a
dimension that may change without changing the model's interface (a rank, an MLP width), with
*every* place where its size is written and every GEMM axis that it feeds: resizing it means
resizing all of its places together.
"""

import hashlib
import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, ClassVar, Literal

from gacprof.checkpoint.layouts.names import template_of
from gacprof.core.errors import CheckpointError
from gacprof.core.results import Table
from gacprof.core.sizes import Gemm

NewSizes = Mapping[str, int | None]
"""New sizes by dim name; ``None``: the factors are merged (multiplied) into one dense weight."""
is_derived = re.compile(
    r"(.*\.)?(rotary_emb\.(inv_freq|cos_cached|sin_cached)|position_ids"
    r"|(attn|attention)\.(masked_)?bias)"
).fullmatch
"""Whether a tensor, by its name, is one that models make for themselves; old ones store it."""


@dataclass(frozen=True)
class TensorInfo:
    """One stored tensor, from its header. ``dtype`` is torch's name (``float16``).

    ``offset`` and ``nbytes`` locate its bytes in ``file``, which is relative to the folder. A view
    that is not contiguous has a ``stride`` in elements: element ``i`` then lies at
    ``offset + itemsize · Σ iₐ·strideₐ``, and ``nbytes`` still counts the tensor's own elements.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str
    offset: int | None
    nbytes: int
    stride: tuple[int, ...] | None = None

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def stored_at(self) -> object:
        """What tensors have in common that share their bytes (tied embeddings)."""
        return self.file, self.offset or self.name, self.shape, self.stride


@dataclass(frozen=True)
class Contents:
    """A checkpoint before its tensors have a meaning: what containers and side files say.

    ``config`` is the folder's config.json, else a pickled model's. ``side`` holds other JSON files
    that must stay true (SliceGPT's), by file name, ``attributes`` what a pickled model's modules
    say of themselves (``class``, ``num_heads`` …), by module name. ``factors`` are the user's name
    patterns of factor pairs, ``metadata`` is that of each safetensors file; ``left_out`` are
    tensors that shards hold and their index does not name.
    """

    tensors: Mapping[str, TensorInfo]
    config: Mapping[str, Any] = field(default_factory=dict)
    side: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    factors: tuple[str, str] | None = None
    container: str = "memory"
    metadata: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    has_index: bool = False
    warnings: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.tensors[tensor].shape

    @cached_property
    def by_template(self) -> Mapping[str, Sequence[str]]:
        """The names of tensors by their template (:mod:`gacprof.checkpoint.layouts.names`)."""
        names: dict[str, list[str]] = {}
        for name in self.tensors:
            names.setdefault(template_of(name), []).append(name)
        return names

    def below(self, module: str) -> Sequence[str]:
        """Return the names of the tensors in a module, at any depth."""
        first = bisect_left(self._sorted_names, f"{module}.")
        last = bisect_left(self._sorted_names, f"{module}/", first)  # "/" comes right after "."
        return self._sorted_names[first:last]

    @cached_property
    def _sorted_names(self) -> Sequence[str]:
        return sorted(self.tensors)


@dataclass(frozen=True)
class AttentionHeads:
    """One scaled-dot-product attention per layer; head_dim as SDPA sees it, never a rank."""

    layer: int
    heads: int
    kv_heads: int
    head_dim: int


Fill = int | Literal["last", "group", "size"]
"""What a new entry holds: these bits; the last entry once more (a scale); the number of its group.
``size``: the entry is the dim's size itself, ``unit`` times."""


@dataclass(frozen=True)
class Place:
    """A place where a dim is written: entries of ``tensor`` along ``axis``, from ``start`` on.

    A unit of the dim has ``unit`` entries: 2 where gate and up alternate, 1/8 where a word holds
    eight weights, 1/128 where a group of 128 shares a scale; the last entry may be of fewer.
    ``group`` is the length of the groups that ``fill`` numbers. Several dims may share an axis
    (PaLU's groups in VT); where one grows, the starts of the later ones move along.
    """

    tensor: str
    axis: int
    start: int = 0
    unit: Fraction = Fraction(1)
    fill: Fill = 0
    group: int = 0

    def entries(self, size: Any) -> Any:
        """Return how many entries a dim of this size has here; takes columns of sizes, too."""
        if self.fill == "size":
            return 1
        return -(-size * self.unit.numerator // self.unit.denominator)

    def growth(self, size: Any, new: Any) -> Any:
        """Return how many entries a dim gains here that grows from one size to another."""
        return self.entries(new) - self.entries(size)


@dataclass(frozen=True)
class Feed:
    """A GEMM axis that a dim feeds: the axis ``N`` or ``K`` of the GEMM of ``weight``.

    An axis after resizing is its old size plus, over all feeds of it, the new minus the old size: a
    dim that feeds it twice (gate and up fused in one weight) is listed twice.
    """

    weight: str
    axis: Literal["N", "K"]


MAX_SIZE = 2**20  # more than any layer has: published vocabularies have 2^18 entries
ALIGNED = 16  # ranks may be padded to a multiple: 16 bytes of an 8-bit type, 32 of a 16-bit one


@dataclass(frozen=True)
class Dim:
    """A dimension that may change, by its ``name`` (``model.layers.0.self_attn.q_proj:rank``).

    ``params_per_unit`` is how many parameters one more unit costs. ``padding`` says whether zeros
    keep the function in real arithmetic, ``why`` why they do not. ``ordered`` is true where the
    trailing entries are the least important, so that cutting them is the best cut, ``never_cut`` is
    why it can only be padded. ``dense_size`` of a rank is the dense weight's size where that is
    larger, else None. New sizes are multiples of ``step``: a packed word, a group of scales.
    """

    name: str
    kind: Literal["rank", "width", "hidden"]
    size: int
    places: tuple[Place, ...]
    feeds: tuple[Feed, ...]
    params_per_unit: int
    layer: int | None = None
    role: str = ""
    dense_size: int | None = None
    padding: Literal["exact", "refused"] = "exact"
    why: str = ""
    ordered: bool = False
    never_cut: str = ""
    step: int = 1

    @property
    def adjustable(self) -> bool:
        """True where a plan may give it another size at all."""
        return self.padding == "exact"

    def refusal(self, size: int) -> str:
        """Return why the dim cannot be given this size; empty where it can."""
        if size == self.size:
            return ""
        is_whole = isinstance(size, Integral) and not isinstance(size, bool)
        if not is_whole or not 1 <= size <= MAX_SIZE:
            return f"sizes are whole numbers from 1 to {MAX_SIZE}"
        if self.padding == "refused":
            return self.why
        if size < self.size and self.never_cut:
            return f"it can only be padded: {self.never_cut}"
        if size % self.step:
            return f"its weights are stored in units of {self.step}"
        return ""

    @property
    def scale_step(self) -> int:
        """The units that share words and scales of quantised weights; 1 where none do."""
        return math.lcm(*(place.unit.denominator for place in self.places))

    def step_on(self, ranks: int) -> int:
        """Return the multiple of sizes that gives each rank whole words and scales of its own."""
        is_shared = ranks > 1 and self.scale_step > 1
        return math.lcm(self.step, self.scale_step * ranks) if is_shared else self.step

    @property
    def max_size(self) -> int:
        """The largest size worth choosing: of a rank the dense weight's, aligned."""
        if self.dense_size is None:
            return MAX_SIZE
        return max(-(-self.dense_size // ALIGNED) * ALIGNED, self.size)


@dataclass(frozen=True)
class Module:
    """A linear layer of the model as its author names it, dense or as a chain of factors.

    ``gemms`` are in the order of execution, ``dims`` the names of dims that it takes part in.
    ``role`` is a row of ``workload/roles.toml``, else expert_router, other.
    """

    name: str
    role: str
    layer: int | None
    kind: Literal["dense", "factored", "grouped", "embedding"]
    in_features: int
    out_features: int
    dtype: str
    gemms: tuple[Gemm, ...]
    dims: tuple[str, ...] = ()

    @property
    def weights(self) -> list[str]:
        """The tensors of its weights, in the order of execution."""
        return [gemm.weight for gemm in self.gemms]

    @property
    def biases(self) -> list[str]:
        """Its biases; of factors the outer ones have some."""
        biased = [gemm.weight for gemm in self.gemms if gemm.bias]
        return [weight.removesuffix("weight") + "bias" for weight in biased]

    @property
    def parameters(self) -> list[str]:
        return self.weights + self.biases


MIN_GROUP = 16  # inputs that share a scale: no kernel takes fewer


@dataclass(frozen=True)
class ScaleGroups:
    """The groups of ``size`` inputs of every quantised weight that share a scale, and the places
    whose entries are such groups, or number them. ``why``: there can be no finer ones."""

    size: int
    places: tuple[Place, ...]
    why: str = ""

    def refusal(self, size: int) -> str:
        """Return why there can be no groups of this size; empty where there can."""
        if not MIN_GROUP <= size < self.size or self.size % size:
            return f"groups of {self.size} inputs are split into equal parts of {MIN_GROUP} or more"
        return self.why


@dataclass(frozen=True, kw_only=True)
class Inventory(Contents, Table):
    """A checkpoint as its headers describe it. No tensor data was read to make one.

    ``path`` is what was scanned: a folder, a weights file in it, or a hub id. ``side_files`` belong
    to the checkpoint besides its weights (config, tokenizer, remote code), to be copied along.
    ``groups`` are those of quantised weights that share a scale; ``has_scales``: there are some.
    """

    rows_in: ClassVar[str] = "dims"

    path: str
    layout: str
    modules: tuple[Module, ...]
    dims: tuple[Dim, ...]
    attentions: tuple[AttentionHeads, ...]
    side_files: tuple[str, ...] = ()
    groups: ScaleGroups | None = None
    has_scales: bool = False

    @property
    def folder(self) -> str:
        """The folder that ``TensorInfo.file`` and ``side_files`` are relative to."""
        path = Path(self.path)
        return str(path.parent) if path.is_file() else self.path

    @cached_property
    def fingerprint(self) -> str:
        """A digest over every tensor's name, dtype and shape: a plan is bound to it."""
        digest = hashlib.sha256()
        for name in sorted(self.tensors):
            info = self.tensors[name]
            digest.update(f"{name}\0{info.dtype}\0{info.shape}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    @property
    def is_quantised(self) -> bool:
        """True where weights are packed, or the config says so."""
        return self.has_scales or bool(self.config.get("quantization_config"))

    @cached_property
    def has_own_head(self) -> bool:
        """True where weights of the head are stored, and not as a second name of the embedding."""
        tables: set[object] = set()
        heads: set[object] = set()
        for module in self.modules:
            if module.kind == "embedding":
                tables.add(self.tensors[f"{module.name}.weight"].stored_at)
            elif module.role == "head":
                heads.update(self.tensors[weight].stored_at for weight in module.weights)
        return not heads <= tables

    @property
    def main_dtype(self) -> str | None:
        """The dtype that most modules with a matrix product are stored in."""
        counts = Counter(module.dtype for module in self.modules if module.gemms)
        return max(counts, key=counts.__getitem__, default=None)

    @property
    def parameters(self) -> int:
        """Stored parameters, each once, without what models make for themselves."""
        return sum(info.numel for info in self.stored_once if not is_derived(info.name))

    @cached_property
    def stored_once(self) -> Sequence[TensorInfo]:
        """The tensors; of several names of the same bytes (tied embeddings) the first."""
        infos: dict[object, TensorInfo] = {}
        for info in self.tensors.values():
            infos.setdefault(info.stored_at, info)
        return list(infos.values())

    def dim(self, name: str) -> Dim:
        """Return the dim of this name. Raises :class:`CheckpointError` where there is none."""
        if name not in self._dims:
            raise CheckpointError(
                f"{self.path} has no dim '{name}': gacprof diagnose lists them, --factors names "
                "factor pairs that are not known"
            )
        return self._dims[name]

    def ranks_of(self, module: Module) -> list[Dim]:
        """Return the ranks among a module's dims."""
        return [self._dims[name] for name in module.dims if self._dims[name].kind == "rank"]

    def merge_refusal(self, module: Module) -> str:
        """Return why a module's factors cannot be merged into a dense weight; empty where they
        can. A tensor beside them (a dense weight, a scale, the bias of one group) would be lost."""
        ranks = self.ranks_of(module)
        beside = set(self.below(module.name)) - set(module.parameters)
        if beside:
            return f"{min(beside)} stands beside its factors"
        switch = "attention_bias" if module.role in ("q", "k", "v", "qkv", "o") else "mlp_bias"
        if module.biases and self.config.get(switch) is False:
            return f"its factors have a bias, and by the config's {switch} the weight has none"
        return next((rank.why for rank in ranks if rank.why), "")

    def is_mergeable(self, dim: Dim) -> bool:
        """Return whether a dim is the rank of factor pairs that can be merged."""
        modules = self.modules_of[dim.name]
        is_rank = dim.kind == "rank" and all(module.kind == "factored" for module in modules)
        return is_rank and not any(map(self.merge_refusal, modules))

    @cached_property
    def fed_by(self) -> Mapping[str, Sequence[Dim]]:
        """The dims that feed an axis of the product of a weight, by the weight's name."""
        by_weight: dict[str, list[Dim]] = {}
        for dim in self.dims:
            for weight in dict.fromkeys(feed.weight for feed in dim.feeds):
                by_weight.setdefault(weight, []).append(dim)
        return by_weight

    @cached_property
    def written_in(self) -> Mapping[str, Sequence[str]]:
        """The names of the dims that are written in a tensor, by the tensor's name."""
        names: dict[str, list[str]] = {}
        for dim in self.dims:
            for tensor in dict.fromkeys(place.tensor for place in dim.places):
                names.setdefault(tensor, []).append(dim.name)
        return names

    @cached_property
    def modules_of(self) -> Mapping[str, Sequence[Module]]:
        """The modules that a dim takes part in, by the dim's name."""
        by_dim: dict[str, list[Module]] = {dim.name: [] for dim in self.dims}
        for module in self.modules:
            for name in module.dims:
                by_dim[name].append(module)
        return by_dim

    @cached_property
    def _dims(self) -> dict[str, Dim]:
        return {dim.name: dim for dim in self.dims}

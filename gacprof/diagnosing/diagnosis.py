"""The verb ``diagnose``: what each size of a model costs, and the size to pad it to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import ClassVar, Literal

from gacprof.checkpoint.coverage import Gap, in_words
from gacprof.checkpoint.inventory import Dim, Feed, Inventory, NewSizes
from gacprof.checkpoint.scan import inventory_of
from gacprof.checkpoint.tensor_fit import unrecognised
from gacprof.core.results import Table
from gacprof.core.sizes import (
    Interval,
    SizeSource,
    SizeVerdict,
    Use,
    Verdict,
    seems_safe,
    seems_slow,
)
from gacprof.diagnosing.sizes import SizeTable, better_size, window_of
from gacprof.diagnosing.slowdown import Slowdown, slowdown
from gacprof.diagnosing.source import attention_dtype, kernel_lines, open_source, products_for
from gacprof.workload.deployment import Tokens
from gacprof.workload.products import AS_STORED, Axis, Products, side_uses

FIXED_REACH = 64
"""How far above a fixed size a better one is looked for: alignments, tiles and templates repeat
within it."""


def diagnose(
    checkpoint: str | Path | Inventory,
    source: str | Path | SizeSource,
    *,
    tokens: Tokens | None = None,
    tp: int = 1,
    dtype: str | None = None,
) -> Diagnosis:
    """Find the sizes of a model that a GPU serves badly, and the size to pad each to.

    Only the headers of the weights are read.

    Parameters
    ----------
    checkpoint
        A model's folder, a weights file, or a model on the hub.
    source
        Where the answers come from: your own measurement (a map or a run folder), a shipped map, or
        a GPU's name such as h100.
    tokens
        Numbers of tokens in a call, such as 1 1024. By default those that the source knows.
    tp
        Tensor-parallel ranks: how many GPUs share each matrix.
    dtype
        The type that products are computed in. By default the weights' own.

    Returns
    -------
    Diagnosis
        A finding on every dim, on misaligned sizes that cannot be changed, and the times.

    Raises
    ------
    CheckpointError, MapError, ConfigError

    Examples
    --------
    >>> diagnosis = gacprof.diagnose("tests/fixtures/checkpoints/asvd_mha_r1", "h100")
    >>> finding = diagnosis.dims[0]
    >>> finding.dim.size, finding.action, finding.target_size
    (76, 'pad', 80)
    >>> diagnosis.counts["misaligned"]
    12
    """
    inventory = inventory_of(checkpoint)
    size_source = open_source(source)
    products = products_for(inventory, size_source, tokens=tokens, tp=tp, dtype=dtype)
    table = SizeTable(products, size_source)
    findings = tuple(dim_finding(table, dim) for dim in inventory.dims)
    targets = {finding.dim.name: finding.target_size for finding in findings}
    padded = {name: size for name, size in targets.items() if size is not None}
    return Diagnosis(
        checkpoint=inventory.path,
        layout=inventory.layout,
        source=size_source.name,
        provenance=size_source.provenance,
        tokens=products.tokens,
        tp=tp,
        dtype=products.plain_dtype,
        parameters=inventory.parameters,
        dims=findings,
        fixed=(
            # beside padded dims: an odd one would hide what the fixed side costs
            *fixed_findings(products, size_source, padded),
            *head_findings(products, size_source),
        ),
        latency_us=products.time_us(size_source, inventory.modules),
        better_us=products.time_us(size_source, inventory.modules, targets),
        slowdown=slowdown(products, size_source),
        kernels=kernel_lines(products.sharing, size_source, attention_dtype(products)),
        warnings=(*inventory.warnings, *products.warnings),
        gaps=tuple(unrecognised(inventory)),
    )


def dim_finding(table: SizeTable, dim: Dim) -> DimFinding:
    """Judge a dim's size beside padded coupled dims, since two odd dims hide each other's cost.

    If it is misaligned as stored but safe beside padded dims, the answer depends on those dims:
    undecided, keep.
    """
    padded = table.beside_padded(dim, dim.size, window_of(dim.size)[1])
    stored = table.verdict(dim, dim.size)
    now = padded.of(dim.size) or stored
    estimate = now.estimate
    if table.products.sharing.storage.form != "none":
        estimate = None  # others measured no kernels of quantised weights
    is_new = now.verdict != stored.verdict or now.cause == "alignment"
    if now.verdict == "unknown" or not is_new:
        now = stored
    elif now.verdict == "safe" and stored.verdict == "misaligned":
        reason = "whether another size is faster depends on the dims of its products"
        now = replace(now, verdict="undecided", reason=reason, cause="other_side")
    now = replace(now, estimate=estimate)
    step = table.products.step_of(dim)
    next_whole = -(-dim.size // step) * step
    if next_whole > dim.size:
        ranks, unit = step // dim.scale_step, dim.scale_step
        reason = (
            f"{dim.size / ranks:g} on each of {ranks} ranks is {dim.size / ranks / unit:g} groups "
            f"of {unit} weights: an engine refuses that, pads it, or answers wrongly (gacprof lint "
            "says which)"
        )
        now = replace(now, verdict="misaligned", reason=reason, cause="split_scales")
    better = None
    if seems_slow(now):
        better = padded.next_choice(dim.size, dim.max_size, step)
    if better is None and next_whole > dim.size:
        better = table.verdict(dim, next_whole)
    action: Action = "keep"
    if now.verdict == "unknown" and getattr(table.source, "virtual_gpu", None) is None:
        action = "measure"
    size: int | None = dim.size
    if better is not None and dim.padding == "exact":
        action = "pad"
        size = better.size
    if action != "measure" and table.is_merged_faster(dim, size):
        action = "merge"
        size = None
    return DimFinding(dim, now, better, action, size)


def fixed_findings(
    products: Products, source: SizeSource, sizes: NewSizes = AS_STORED
) -> list[FixedFinding]:
    """Return the sides that no dim feeds and that are (or may be) misaligned on a TP rank, equal
    ones together; dims have ``sizes``. Sides and rows that are not known are not judged."""
    fed = set(chain.from_iterable(dim.feeds for dim in products.inventory.dims))
    places: dict[tuple[Axis, int, int, tuple[Use, ...]], list[str]] = {}
    for product in products.on_device(products.inventory.modules, sizes):
        if not product.N or not product.K or not product.rows:
            continue
        sides: list[tuple[Axis, int, int]] = [("N", product.N, product.K)]
        sides.append(("K", product.K, product.N))
        for axis, size, other in sides:
            if fed.isdisjoint(Feed(weight, axis) for weight in product.weights):
                stored = product.whole if axis == product.shared_side else size
                side = side_uses(axis, other, product.rows, product.dtype, product.bias)
                place = axis, stored, size, tuple(side)
                places.setdefault(place, []).extend(product.weights)
    findings = []
    for (axis, stored, size, uses), weights in places.items():
        larger = source.sizes(uses, size + 1, size + FIXED_REACH)
        verdicts = source.judge(uses, [size, *larger])
        now = verdicts[0]
        if products.sharing.storage.form != "none":
            now = replace(now, estimate=None)
        if seems_slow(now):
            better = better_size(verdicts, size, source.tolerance)
            findings.append(FixedFinding(axis, tuple(weights), now, better, stored))
    return findings


def head_findings(products: Products, source: SizeSource) -> list[FixedFinding]:
    """Return the attentions whose head_dim is misaligned or may be, with the next safe size."""
    layers: dict[tuple[int, int, int], list[str]] = {}
    for attention in products.inventory.attentions:
        shape = attention.head_dim, *products.sharing.heads_on_rank(attention)
        layers.setdefault(shape, []).append(f"layer {attention.layer}")
    dtype = attention_dtype(products)
    findings = []
    for (head_dim, heads, kv_heads), places in layers.items():
        if heads % kv_heads:
            continue  # PyTorch refuses these heads at any size
        now = source.head_dim(head_dim, heads, kv_heads, dtype)
        if now.verdict == "unknown" or seems_safe(now, source.tolerance):
            continue  # few head_dims are slow: only for those are larger ones judged
        larger = range(head_dim + 1, head_dim + FIXED_REACH + 1)
        verdicts = [source.head_dim(size, heads, kv_heads, dtype) for size in larger]
        better = better_size(verdicts, head_dim, source.tolerance)
        findings.append(FixedFinding("head_dim", tuple(places), now, better, head_dim))
    return findings


Action = Literal["keep", "pad", "merge", "measure"]
"""``pad`` to the better size; ``merge`` the factor pair into its dense weight, which is surely
faster; ``measure`` what the source does not know; else ``keep``."""


@dataclass(frozen=True)
class DimFinding:
    """A dim, the verdict on its size beside padded coupled dims, and the size to pad it to.
    ``target_size`` is the size after the action, None where factors are merged."""

    dim: Dim
    now: SizeVerdict
    better: SizeVerdict | None
    action: Action
    target_size: int | None


@dataclass(frozen=True)
class FixedFinding:
    """A size that only another model would have (a vocabulary, a hidden size, a head_dim), which is
    misaligned or may be. ``places`` are weights, or layers of an attention. ``now`` and ``better``
    are sizes on one TP rank, ``stored`` is the size in the file (None: not noted)."""

    axis: Literal["N", "K", "head_dim"]
    places: tuple[str, ...]
    now: SizeVerdict
    better: SizeVerdict | None
    stored: int | None = None


@dataclass(frozen=True)
class Diagnosis(Table):
    """The findings on a checkpoint. ``latency_us`` is the time of the workload in all products as
    stored, ``better_us`` after every finding's action; None where a product's time is not known.
    ``slowdown`` estimates what misaligned products cost; None where others measured too little.

    ``source`` and ``provenance`` say whose verdicts these are. Plain products are computed in
    ``dtype``. ``kernels`` are lines on attention and norms, of a GPU that isn't at hand. ``gaps``
    are matrices that were not recognised, and products of the config that no tensor has.
    """

    schema: ClassVar[str] = "gacprof.Diagnosis/1"
    rows_in: ClassVar[str] = "dims"

    checkpoint: str
    layout: str
    source: str
    provenance: str
    tokens: Mapping[int, float]
    tp: int
    dtype: str
    parameters: int
    dims: tuple[DimFinding, ...]
    fixed: tuple[FixedFinding, ...]
    latency_us: Interval | None
    better_us: Interval | None
    slowdown: Slowdown | None = None
    kernels: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()

    @property
    def counts(self) -> Mapping[Verdict, int]:
        """The number of dims by verdict."""
        return Counter(finding.now.verdict for finding in self.dims)

    @property
    def not_recognised(self) -> str:
        """The ``gaps`` in words, the first of each kind."""
        return in_words(self.gaps)

    @property
    def ok(self) -> bool:
        """Whether everything was recognised, every size is known, and nothing is to be padded or
        merged."""
        is_known = all(finding.now.verdict != "unknown" for finding in self.dims)
        return not self.gaps and is_known and all(f.action == "keep" for f in self.dims)

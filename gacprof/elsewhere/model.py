"""What a model's matrix products take on a GPU that others measured, as they are and at good sizes.

Levels are from elsewhere and hold for aligned sizes. What a misaligned size costs beside its level
is taken from the rules, where it was published for the architecture; else it is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp
from pathlib import Path
from typing import Any

from gacprof.checkpoint import inventory_for
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.products import Ranks
from gacprof.cliffmap.source import Tokens, workload_of
from gacprof.core.errors import GacprofError, MapError
from gacprof.core.files import Record
from gacprof.demands import model as demanded
from gacprof.demands.configs import Config
from gacprof.demands.products import Ranks as Shared
from gacprof.demands.quantisation import of_config
from gacprof.elsewhere import data
from gacprof.elsewhere.data import Measurements
from gacprof.elsewhere.levels import NAMES, NO_TIME, Interval, Level, Levels, table_dtype
from gacprof.kernels import fa2
from gacprof.rules import gemm
from gacprof.rules.target import Target, target

EXPERTS = "routed experts run in one grouped kernel, whose times are not read yet"
SCHEMES = {
    "none": "bfloat16", "fp8_tensor": "fp8", "fp8_channel": "fp8", "fp8_block": "fp8_block",
    "nvfp4": "nvfp4", "int8_w8a8": "sq", "int8_w8a16": "int8_wo", "int4": "int4_wo",
    "awq": "int4_wo", "gptq": "int4_wo",
}  # fmt: skip
"""A config's quantisation → the tables' data type."""
PUBLISHED_WORK = 512 * 4096 * 4000
"""M · N · K of the product whose misaligned K was published (:data:`gemm.PAPER`). A smaller one may
be bound by its launch or by memory, and lose nothing: its bounds begin at its level."""
NOTES = (
    "times are others' single measurements of aligned sizes by CUDA graph, interpolated; bounds "
    "are from leaving sizes out and from how far frameworks differ",
    "matrix products alone: no attention, normalisation, communication or launch gaps",
    "the head is taken at one row, that of the last token",
)


@dataclass(frozen=True)
class Need(Record):
    """One product of a rank, ``count`` times a step: y[M, n] = x[M, k] · W[n, k]ᵀ in ``dtype``, a
    name of the tables. ``one_row``: it runs at one row, however many tokens there are."""

    name: str
    n: int
    k: int
    count: float
    dtype: str
    one_row: bool = False


@dataclass(frozen=True)
class Cost(Record):
    """What a product takes in all its repetitions at one token count. ``good`` is the time at the
    next sizes of the best tier, ``now`` that at its own sizes, ``saved`` the difference; None where
    not known, with what is ``missing``."""

    tokens: int
    good: Interval | None
    now: Interval | None
    saved: Interval | None
    missing: str = ""


@dataclass(frozen=True)
class ProductTime(Record):
    """A product, the sizes at which it is of the best tier, and its costs by token count."""

    need: Need
    best_n: int
    best_k: int
    costs: tuple[Cost, ...]


@dataclass(frozen=True)
class Total(Record):
    """Sums over the products at one token count. ``open`` products have sizes of an unknown cost:
    ``now`` is None then, and ``saved`` is what the others save. ``unknown`` products have no time,
    and are left out."""

    tokens: int
    good: Interval
    now: Interval | None
    saved: Interval
    open: int
    unknown: int


@dataclass(frozen=True)
class ModelTimes(Record):
    """The whole answer; ``sources`` are frameworks with versions, ``left_out`` products without a
    time, with the reason."""

    model: str
    gpu: str
    engine: str
    dtypes: tuple[str, ...]
    tp: int
    totals: tuple[Total, ...]
    products: tuple[ProductTime, ...]
    left_out: tuple[str, ...]
    sources: tuple[str, ...]
    notes: tuple[str, ...]


def times_elsewhere(
    model: str | Path | Inventory | Mapping[str, Any],
    gpu: str,
    *,
    engine: str | None = None,
    tokens: Tokens | None = None,
    dtype: str | None = None,
    tp: int = 1,
) -> ModelTimes:
    """What a model's matrix products take on a GPU that others measured, in µs with bounds.

    ``model`` is a config (a mapping, or the path of a ``config.json`` or of a folder without
    weights), a checkpoint or an inventory. ``engine`` is vllm, sglang or trtllm, by default the
    median of all; ``dtype`` what its linear layers are computed in. Raises :class:`MapError` for
    what was not measured, naming what was, and where the measurements are not installed.
    """
    from gacprof.linting.reading import config_named, is_config

    measured = data.installed()
    if isinstance(model, Mapping) or (isinstance(model, str | Path) and is_config(model)):
        named = config_named(model)
        name, (needs, left_out) = named.name, needs_of_config(named.config, tp, dtype)
    else:
        inventory = inventory_for(model)
        name, (needs, left_out) = inventory.path, needs_of_weights(inventory, tp, dtype)
    return model_times(
        name, needs, measured, gpu, tokens=tokens, engine=engine, left_out=left_out, tp=tp
    )


def needs_of_config(
    config: Config, tp: int = 1, dtype: str | None = None
) -> tuple[list[Need], list[str]]:
    """The products of a config, as engines fuse them, on one of ``tp`` ranks; and what is left out.

    Raises :class:`MapError` for a quantisation that no table has, unless a ``dtype`` is given.
    """
    ranks = Shared(tp=tp, experts=tp, shared=tp)
    linear = table_dtype(dtype) if dtype else _scheme(config)
    found, left_out = [], []
    for product in demanded.products(config, ranks):
        if product.kind == "count" or product.role == "embedding":
            continue
        if product.kind == "expert":
            left_out.append(f"{product.name}: {EXPERTS}")
        elif product.kind == "vocab":
            n = -(-(product.n.whole or 0) // tp)
            if n and product.k.value:
                found.append(Need("lm_head", n, product.k.value, 1, "bfloat16", one_row=True))
        elif product.n.value and product.k.value and product.layers is not None:
            count = product.layers * (product.copies or 1)
            found.append(Need(product.name, product.n.value, product.k.value, count, linear))
        else:
            gone = ", ".join((*product.n.missing, *product.k.missing))
            why = f"the config lacks {gone}" if gone else f"{tp} ranks cannot share it out"
            why = "the config does not say in how many layers" if product.layers is None else why
            left_out.append(f"{product.name}: {why}")
    return [need for need in found if need.count], left_out


def needs_of_weights(
    inventory: Inventory, tp: int = 1, dtype: str | None = None
) -> tuple[list[Need], list[str]]:
    """The products of a checkpoint's weights, one a weight, equal ones of a role together."""
    ranks, counts = Ranks(inventory, tp), dict[Need, int]()
    left_out: dict[str, str] = {}
    for module in inventory.modules:
        if module.role.startswith("expert_"):
            left_out[module.role] = f"{module.role}: {EXPERTS}"
            continue
        for i, gemm_ in enumerate(module.gemms):
            local = ranks.local(gemm_)
            name = module.role if len(module.gemms) == 1 else f"{module.role} factor {i + 1}"
            if local is None:
                left_out[name] = f"{name}: {tp} ranks cannot share it out"
                continue
            is_head = module.role == "head"
            own = ranks.dtype_of(gemm_.weight)
            used = table_dtype(dtype) if dtype and not is_head else NAMES.get(own, own)
            need = Need(name, *local, 1, used, is_head)
            counts[need] = counts.get(need, 0) + 1
    return [replace(need, count=count) for need, count in counts.items()], list(left_out.values())


def model_times(
    model: str,
    needs: Sequence[Need],
    measured: Measurements,
    gpu: str,
    *,
    tokens: Tokens | None = None,
    engine: str | None = None,
    left_out: Iterable[str] = (),
    tp: int = 1,
) -> ModelTimes:
    """Price these products on a GPU. Raises :class:`MapError` for a GPU, an engine or a data type
    that was not measured, naming those that were."""
    surfaces = measured.surfaces(gpu)
    used = sorted({need.dtype for need in needs})
    levels = {dtype: Levels(surfaces, dtype, engine) for dtype in used}
    about, note = _rules(gpu)
    counts = list(workload_of(tokens))
    priced, sources = [], set[str]()
    for need in needs:
        held = levels[need.dtype]
        sources |= {f"{s.framework} {s.version}" for s in held.used}
        priced.append(_priced(need, held, about, counts))
    gone = [f"{p.need.name}: {c.missing}" for p in priced for c in p.costs if c.good is None]
    totals = tuple(_total([p.costs[i] for p in priced], m) for i, m in enumerate(counts))
    return ModelTimes(
        model, measured.gpu(gpu), engine or "", tuple(used), tp, totals, tuple(priced),
        tuple(dict.fromkeys([*left_out, *gone])), tuple(sorted(sources)),
        (f"measured elsewhere: aiconfigurator-core {measured.version}", *NOTES, *note),
    )  # fmt: skip


def _priced(need: Need, levels: Levels, about: Target | None, tokens: Sequence[int]) -> ProductTime:
    ours = _ours(need.dtype)
    multiple = _best_multiple(about, ours)
    best_n, best_k = (-(-size // multiple) * multiple for size in (need.n, need.k))
    costs = []
    for m in tokens:
        rows = 1 if need.one_row else m
        good, now = levels.at(rows, best_n, best_k), levels.at(rows, need.n, need.k)
        if isinstance(good, str) or isinstance(now, str):
            costs.append(Cost(m, None, None, None, good if isinstance(good, str) else str(now)))
            continue
        relative = _relative(about, ours, rows, need.n, need.k)
        costs.append(_cost(need, m, good, now, relative))
    return ProductTime(need, best_n, best_k, tuple(costs))


def _cost(need: Need, m: int, good: Level, now: Level, relative: float | str) -> Cost:
    then = good.time.times(need.count)
    if isinstance(relative, str):
        return Cost(m, then, None, None, relative)
    own = now.time.times(need.count)
    if relative == 1.0:
        return Cost(m, then, own, NO_TIME)
    rows = 1 if need.one_row else m
    least = relative if rows * need.n * need.k >= PUBLISHED_WORK else 1.0
    slow = Interval(own.low * least, own.value * relative, own.high * relative)
    left_out = exp(now.left_out), exp(good.left_out)
    low = own.value * least / left_out[0] - then.value * left_out[1]
    high = own.value * relative * left_out[0] - then.value / left_out[1]
    differ = exp(now.differ)
    saved = Interval(
        low / differ if low > 0 else low * differ,
        slow.value - then.value,
        high * differ if high > 0 else high / differ,
    )
    return Cost(m, then, slow, saved)


def _relative(about: Target | None, dtype: str, m: int, n: int, k: int) -> float | str:
    """The published time of such sizes beside aligned ones; or why it is not known."""
    measure = "measure it there: gacprof sweep --for MODEL"
    if about is None or dtype not in about.chip.tiers:
        aligned = n % 32 == 0 and k % 32 == 0  # as all sizes that were measured
        return 1.0 if aligned else f"what N={n}, K={k} cost is not known; {measure}"
    tier = gemm.tier(about, dtype, m, n, k)
    if tier == 1:
        return 1.0
    cost = gemm.relative_cost(about, dtype, m, n, k)
    if tier is None or cost is None:
        what = f"tier {tier}" if tier else "no kernel"
        return f"N={n}, K={k} are of {what}: what that costs was not published; {measure}"
    return cost


def _best_multiple(about: Target | None, dtype: str) -> int:
    """What sizes of the best tier are multiples of; 32 without rules, as all that was measured."""
    if about is None or dtype not in about.chip.tiers:
        return 32
    demanded_multiple, _ = gemm.DEMANDS.get(dtype, (1, 1))
    return max(gemm.levels(about, dtype)[0].elements, demanded_multiple)


def _total(costs: Sequence[Cost], m: int) -> Total:
    def added(times: Iterator[Interval | None]) -> Interval:
        return sum((time for time in times if time is not None), NO_TIME)

    known = [cost for cost in costs if cost.good is not None]
    is_open = sum(cost.now is None for cost in known)
    now = None if is_open else added(cost.now for cost in known)
    good, saved = added(cost.good for cost in known), added(cost.saved for cost in known)
    return Total(m, good, now, saved, is_open, len(costs) - len(known))


def _rules(gpu: str) -> tuple[Target | None, list[str]]:
    """The rules of the GPU, and what they leave open."""
    try:
        about = target(gpu, tuple(fa2.RECORDS)[-1])
    except GacprofError:
        return None, [f"no rules for {gpu} are known: what misaligned sizes cost is open"]
    if about.arch not in gemm.RELATIVE:
        return about, [f"what misaligned sizes cost was not published for {about.arch}"]
    return about, [
        f"what misaligned sizes cost: {gemm.PAPER}, of K alone; on H100 the published times of "
        "both may be bound by the host, and the true cost larger"
    ]


def _ours(named: str) -> str:
    """The rules' data type of a table's; empty where rules say nothing of it."""
    return {"bfloat16": "bfloat16", "fp8": "float8_e4m3", "sq": "int8"}.get(named, "")


def _scheme(config: Config) -> str:
    scheme = of_config(config.whole)
    kind = scheme.kind if scheme else "none"
    if kind not in SCHEMES:
        raise MapError(
            f"no times of {kind} were measured elsewhere: name a data type that was (--dtype)"
        )
    return SCHEMES[kind]

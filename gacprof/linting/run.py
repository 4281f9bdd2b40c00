"""Judge a model from its config: every product of a rank, a table of degrees, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gacprof.core.files import Record
from gacprof.demands.configs import Config
from gacprof.demands.evaluate import Judged, Setting, judge, with_shards
from gacprof.demands.products import Product, Ranks, Size, products
from gacprof.demands.table import OUTCOMES, Outcome
from gacprof.linting.reading import config_named, lint_config
from gacprof.linting.request import LintRequest, Target, target_of

MOST_DEGREES = 256


@dataclass(frozen=True)
class Row(Record):
    """A product as one rank runs it; ``local`` is (N, K), None where the config does not say.

    On the axis *global* the unsplit number is judged: N is that number. ``size`` is what was
    judged, ``multiple`` what it has to be a multiple of to be ok, ``padded_to`` what it becomes,
    ``extra`` the share of arithmetic and bytes that this adds.
    """

    name: str
    role: str
    outcome: Outcome
    local: dict[str, int | None]
    axis: str | None
    size: int | None
    multiple: int | None
    padded_to: dict[str, int] | None
    extra: float
    why: str
    source: str
    since: str
    sure: str
    demand: str
    kernel: str
    quant: str
    layers: int | None
    fields: tuple[str, ...]
    missing: tuple[str, ...]
    tier: str | None = None


@dataclass(frozen=True)
class Degree(Record):
    """One row of the table of tensor-parallel degrees."""

    tp: int
    ep: bool
    outcome: Outcome
    starts: bool
    stopped_by: str
    why: str
    padded_share: float
    falls_back: int
    bytes_per_rank: int | None


@dataclass(frozen=True)
class Lint(Record):
    """What :func:`gacprof.lint` found. ``outcome`` is the worst of the products that are known."""

    model: str
    model_type: str
    engine: str
    version: str
    gpu: str
    quant: str
    tp: int
    ep: bool
    outcome: Outcome
    products: tuple[Row, ...]
    tp_table: tuple[Degree, ...]
    remedies: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]

    @property
    def findings(self) -> list[Row]:
        return [row for row in self.products if row.outcome not in ("ok", "unknown")]

    @property
    def unknown(self) -> list[Row]:
        return [row for row in self.products if row.outcome == "unknown"]


def lint(request: LintRequest) -> Lint:
    """Judge a model from its config alone; see :class:`LintRequest` for what may be asked.

    Raises :class:`CheckpointError` for a config that cannot be read and :class:`LintError` for what
    is in it, or for an engine, a GPU or a quantisation that is not known.
    """
    named = config_named(request.source)
    config, target = lint_config(named), target_of(request, named.config)
    extra = extras(request, config)
    judged = judge_all(config, request, target, extra=extra)
    from gacprof.linting.remedies import remedies
    from gacprof.linting.tiers import tiers

    tier_of = tiers(target, [j.product for j in judged], judged)
    rows = tuple(row_of(one, tier_of.get(one.product.name)) for j in judged for one in with_shards(j))
    table = tuple(degrees(config, request, target, extra))
    at = ".".join(map(str, target.engine.at or ()))
    return Lint(
        named.name, config.model_type, target.engine.name, at, target.gpu.name, target.scheme.name,
        request.tp, request.ep, overall(judged), rows, table,
        tuple(remedies(named.name, config, request, target, judged)), tuple(notes(named.notes, config, target, judged)),
    )  # fmt: skip


def judge_all(
    config: Config, request: LintRequest, target: Target, tp: int | None = None, ep: bool | None = None,
    extra: Sequence[Product] = (),
) -> list[Judged]:  # fmt: skip
    """Every product, judged on so many ranks."""
    ranks = target.ranks(request, tp, ep)
    setting = target.setting(ranks, config.model_type.removesuffix("_text"))
    made = [*_model(target, ranks), *products(config, ranks), *extra]
    return [judge(product, setting) for product in made]


def _model(target: Target, ranks: Ranks) -> Iterable[Product]:
    """What an engine asks of a scheme as a whole."""
    if target.scheme.kind == "bnb":
        size = Size(ranks.tp, ranks.tp)
        yield Product("every quantised linear", "model", "count", "none", size, Size(None))


def extras(request: LintRequest, config: Config) -> list[Product]:
    """An adapter's rank and a draft's vocabulary, where they are asked about."""
    made = []
    rank = request.lora_rank or _lora_rank(config)
    if rank:
        made.append(Product("lora max_lora_rank", "lora", "count", "none", Size(rank, rank), Size(None)))
        if request.fully_sharded_loras:
            split = Size(rank // request.tp if rank % request.tp == 0 else None, rank, request.tp)
            made.append(Product("lora rank, fully sharded", "lora_fully_sharded", "count", "none", split, Size(None)))
    if request.draft is not None:
        draft, vocab = config_named(request.draft).config.get("vocab_size"), config.get("vocab_size")
        if draft and vocab:
            made.append(Product("draft vocabulary", "draft_vocab", "count", "none", Size(draft, draft, vocab), Size(None)))
    return made


def _lora_rank(config: Config) -> int | None:
    from gacprof.demands.configs import whole_number

    told = config.whole.get("lora")
    inner = told if isinstance(told, dict) else config.whole if config.whole.get("peft_type") else {}
    return whole_number(inner, "r", "rank", "lora_rank")


def overall(judged: Iterable[Judged]) -> Outcome:
    """The worst of what is known; *unknown* where nothing is, or where the engine's demands on the
    quantisation are not."""
    found = list(judged)
    known = [j.outcome for j in found if j.outcome != "unknown"]
    worst: Outcome = max(known, key=OUTCOMES.index, default="unknown")
    open_demands = any(j.outcome == "unknown" and (j.findings or "was not read" in j.note or "depends on" in j.note) for j in found)
    return "unknown" if worst == "ok" and (open_demands or not any(_says_much(j) for j in found)) else worst


def _says_much(judged: Judged) -> bool:
    return judged.outcome == "ok"


def row_of(judged: Judged, tier: str | None = None) -> Row:
    product, worst = judged.product, judged.worst
    n, k = product.n.value, product.k.value
    if product.kind == "count":
        n, k = product.n.whole, None
    elif product.kind == "vocab":
        whole = judged.padded.get("global", product.n.whole or 0)
        n = whole // product.n.parts if whole and whole % product.n.parts == 0 else None
    axis, size, multiple = _judged_on(judged)
    missing = tuple(dict.fromkeys((*product.n.missing, *product.k.missing)))
    demand = worst.demand if worst else None
    return Row(
        product.name, product.role, judged.outcome, {"N": n, "K": k}, axis, size, multiple,
        dict(judged.padded) or None, round(judged.extra, 6), worst.why if worst else judged.note,
        demand.source if demand else "", demand.since if demand else "", demand.sure if demand else "",
        demand.id if demand else "", demand.kernel if demand else "", judged.scheme.kind,
        product.layers, product.fields, missing, tier,
    )  # fmt: skip


def _judged_on(judged: Judged) -> tuple[str | None, int | None, int | None]:
    """(axis, size, multiple) of the worst finding, or of what was asked and held."""
    worst, product = judged.worst, judged.product
    if worst is not None:
        on = {f.axis for f in judged.findings if f.outcome == worst.outcome}
        axis = "N and K" if {"N", "K"} <= on else worst.axis
        multiple = judged.asked.get(worst.axis, worst.multiple) if worst.multiple else worst.multiple
        return axis, worst.size, multiple
    if product.kind == "count":
        return "global", product.n.whole, judged.asked.get("global")
    axes = [a for a in ("N", "K") if a in judged.asked]
    size = {"N": product.n.value, "K": product.k.value}
    if not axes:
        return None, None, None
    first = axes[-1] if product.split == "row" else axes[0]
    return " and ".join(axes), size[first], judged.asked[first]


def degrees(
    config: Config, request: LintRequest, target: Target, extra: Sequence[Product]
) -> Iterable[Degree]:
    """Each degree of tensor parallelism from 1 to the heads."""
    heads = config.get("heads") or config.get("mamba_heads") or request.tp
    last = min(max(heads, request.tp), MOST_DEGREES)
    if target.engine.splits == "layers":
        last = 1
    for tp in range(1, last + 1):
        yield degree(tp, request.ep, judge_all(config, request, target, tp, extra=extra))


def degree(tp: int, ep: bool, judged: Sequence[Judged]) -> Degree:
    outcome = overall(judged)
    stopped = next((j for j in judged if j.outcome == outcome and outcome in ("refused", "wrong")), None)
    weights = [weight(j) for j in judged]
    plain = sum(w[0] for w in weights if w is not None)
    padded = sum(w[1] for w in weights if w is not None)
    known = all(w is not None for w in weights) and plain > 0
    return Degree(
        tp, ep, outcome, outcome not in ("refused",), stopped.product.name if stopped else "",
        stopped.worst.why if stopped and stopped.worst else "", round(padded / plain - 1, 4) if plain else 0.0,
        sum(j.outcome == "falls_back" for j in judged), round(padded) if known else None,
    )  # fmt: skip


def weight(judged: Judged) -> tuple[float, float] | None:
    """(bytes, bytes when padded) that a rank holds of a product in all layers; None where the
    config does not say."""
    product = judged.product
    if product.kind == "count" or product.layers == 0:
        return 0.0, 0.0
    n, k = product.n.value, product.k.value
    if product.kind == "vocab":
        n = -(-(product.n.whole or 0) // product.n.parts)
    if not n or not k or product.layers is None or product.copies is None:
        return None
    gate = 2 if product.role == "expert_gate_up" else 1
    plain = n * k * gate * product.layers * product.copies * judged.scheme.bits / 8
    return plain, plain * (1 + judged.extra)


def notes(read: Sequence[str], config: Config, target: Target, judged: Sequence[Judged]) -> Iterable[str]:
    yield from read
    if config.family is None:
        named = f"'{config.model_type}'" if config.model_type else "without a name"
        yield f"the model type {named} is not known here: its sizes are read by the names of fields"
    if target.engine.at is not None:
        newest = target.engine.read
        from gacprof.demands.targets import version

        if target.engine.at > (version(newest) or ()):
            yield f"demands of {target.engine.name} were read at {newest}; a newer version may differ"
    gone = sorted({m for j in judged for m in (*j.product.n.missing, *j.product.k.missing)})
    if gone:
        yield f"the config does not say {', '.join(gone)}: what depends on it is not judged"


def setting_of(config: Config, request: LintRequest, target: Target) -> Setting:
    return target.setting(target.ranks(request), config.model_type)

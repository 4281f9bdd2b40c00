"""What an engine does with each product of a rank: one small evaluator for all demands.

Sizes that a config does not give leave the demands on them open; what is known is judged. Demands
are tried in the order of the table; padding changes the size that later ones see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import gcd, lcm, prod
from typing import Any

from gacprof.demands.products import Product, Ranks, Size
from gacprof.demands.quantisation import NONE, Scheme
from gacprof.demands.table import OUTCOMES, Demand, Engine, Outcome
from gacprof.demands.targets import CAPABILITIES, Gpu

DIVIDING = ("multiple", "multiple_or_one", "either")
"""Relations that ask for a multiple."""


@dataclass(frozen=True)
class Setting:
    """What products are judged under: an engine (of one version), a GPU, a scheme and ranks."""

    engine: Engine
    gpu: Gpu
    scheme: Scheme
    ranks: Ranks
    family: str = ""

    def facts(self, sm: int | None) -> dict[str, Any]:
        return {
            "sm": sm,
            "amd": self.gpu.amd,
            "family": self.family,
            "gpu": self.gpu.name,
            "version": self.engine.at,
        }


@dataclass(frozen=True)
class Finding:
    """A size that breaks a demand. ``axis`` is N, K or global; ``to`` what it is padded to."""

    outcome: Outcome
    axis: str
    size: int
    multiple: int | None
    why: str
    demand: Demand
    to: int | None = None
    shard: str = ""
    kernel: str = ""


@dataclass(frozen=True)
class Judged:
    """A product with what the engine does with it. ``asked`` is what each axis has to be a
    multiple of to be ok, by all demands on it; ``extra`` the share that padding adds; ``is_open``:
    what the engine asks is not known."""

    product: Product
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    asked: Mapping[str, int] = field(default_factory=dict)
    padded: Mapping[str, int] = field(default_factory=dict)
    scheme: Scheme = NONE
    note: str = ""
    is_open: bool = False

    @property
    def worst(self) -> Finding | None:
        return max(self.findings, key=lambda f: OUTCOMES.index(f.outcome), default=None)

    @property
    def extra(self) -> float:
        """Share of arithmetic and of bytes that padding adds."""
        share = 1.0
        for axis, size in (("N", self.product.n.value), ("K", self.product.k.value)):
            if axis in self.padded and size:
                share *= self.padded[axis] / size
        if "global" in self.padded and self.product.n.whole:
            share *= self.padded["global"] / self.product.n.whole
        return share - 1


def scheme_of(product: Product, scheme: Scheme) -> Scheme:
    """How this product is stored: embedding and head stay bf16 but in GGUF files; MXFP4 is a format
    of experts; what the config's ignore list names is bf16."""
    if product.role == "model":
        return scheme
    if product.kind == "count" or (product.kind == "vocab" and scheme.kind != "gguf"):
        return NONE
    if scheme.kind == "mxfp4" and product.kind == "dense":
        return NONE
    if scheme.leaves(product.modules, product.layers):
        return NONE
    return scheme.of_modules(product.modules, product.layers)


def judge(product: Product, setting: Setting) -> Judged:
    """What the engine does with one product. On an open GPU it is what happens on all: the mildest
    outcome where none is ok, *unknown* where some are."""
    if not setting.gpu.is_open:
        return _judge(product, setting, setting.gpu.sm)
    answers = [_judge(product, setting, sm) for sm in CAPABILITIES]
    by_outcome: dict[Outcome, list[int]] = {}
    for sm, answer in zip(CAPABILITIES, answers, strict=True):
        by_outcome.setdefault(answer.outcome, []).append(sm)
    mildest = min(answers, key=lambda answer: OUTCOMES.index(answer.outcome))
    if len(by_outcome) == 1:
        return mildest
    outcomes = "; ".join(
        f"{o} on {', '.join(f'sm{sm}' for sm in on)}" for o, on in by_outcome.items()
    )
    note = f"depends on the GPU: {outcomes}".replace("_", " ")
    if mildest.findings:
        return replace(mildest, note=note)
    return Judged(product, "unknown", scheme=mildest.scheme, note=note, is_open=True)


def _judge(product: Product, setting: Setting, sm: int | None) -> Judged:
    scheme = scheme_of(product, setting.scheme)
    sizes = {"N": product.n.value, "K": product.k.value, "global": product.n.whole}
    if product.split == "row":
        sizes["global"] = product.k.whole
    facts = _facts(product, scheme, setting, sm)
    findings: list[Finding] = []
    asked: dict[str, int] = {}
    padded: dict[str, int] = {}
    for demand in _relevant(setting.engine, tuple(facts.items())):
        if demand.where.tp is None or demand.where.tp.holds(setting.ranks.tp):
            for found in _broken(demand, product, sizes, scheme, setting.ranks, asked):
                findings.append(found)
                if found.outcome == "pads" and found.to:
                    sizes[found.axis] = padded[found.axis] = found.to
    outcome: Outcome = max((f.outcome for f in findings), key=OUTCOMES.index, default="ok")
    unread = _unread(setting, facts)
    note = unread or _unsized(product)
    if note and outcome == "ok":
        outcome = "unknown"
    is_open = bool(unread or findings)
    return Judged(product, outcome, tuple(findings), asked, padded, scheme, note, is_open)


def _unread(setting: Setting, facts: Mapping[str, Any]) -> str:
    """Why the engine's demands on such a product are not known; empty where they are."""
    if facts["role"] == "mamba1":
        return "layers of Mamba-1 are not judged"
    engine = setting.engine
    name = engine.name
    if engine.oldest and engine.at and engine.at < engine.oldest:
        oldest = ".".join(map(str, engine.oldest))
        return f"{name} was read from {oldest} on: nothing older is known to be ok"
    if facts["kind"] != "count" and facts["quant"] not in setting.engine.covers:
        named = setting.scheme.name if facts["quant"] == "unknown" else facts["quant"]
        return f"what {name} asks of {named} was not read"
    if facts["sm"] is None and not setting.gpu.is_open:
        anywhere = {key: value for key, value in facts.items() if key != "sm"}
        there = _relevant(setting.engine, tuple(anywhere.items()))
        if any(demand.where.sm is not None for demand in there):
            return f"what {name} asks of {facts['quant']} on {setting.gpu.name} was not read"
    return ""


def _facts(product: Product, scheme: Scheme, setting: Setting, sm: int | None) -> dict[str, Any]:
    return setting.facts(sm) | {
        "quant": scheme.kind,
        "kind": product.kind,
        "split": product.split,
        "role": product.role,
        "tool": scheme.tool,
        "group": scheme.group,
        "gguf": scheme.gguf_type,
        "gated": product.gated,
        "sharded": bool(product.shards),
        "desc_act": scheme.desc_act,
        "symmetric": scheme.symmetric,
        "stored": scheme.stored,
        "partly": bool(product.shards) and setting.scheme.leaves_partly(product.modules),
    }


@lru_cache(maxsize=4096)
def _relevant(engine: Engine, facts: tuple[tuple[str, Any], ...]) -> tuple[Demand, ...]:
    """The demands on such products; what holds from some number of ranks on is among them."""
    table = dict(facts)
    return tuple(demand for demand in engine.demands if demand.applies(table))


def multiples(product: Product, setting: Setting) -> list[tuple[str, int, Demand]]:
    """(axis, multiple, demand): what a rank's sizes have to be multiples of, for someone who may
    choose those that are None. Of alternatives it is the one that given sizes meet and that asks
    least of the others. On an open GPU: what all GPUs ask."""
    scheme = scheme_of(product, setting.scheme)
    options = CAPABILITIES if setting.gpu.is_open else (setting.gpu.sm,)
    each = [_facts(product, scheme, setting, sm) for sm in options]
    relevant = [_relevant(setting.engine, tuple(facts.items())) for facts in each]
    words = _words(product, scheme, setting.ranks)
    found: list[tuple[str, int, Demand]] = []
    for demand in relevant[0]:
        tp = demand.where.tp
        if demand.relation != "multiple" or not all(demand in others for others in relevant):
            continue
        if tp is None or tp.holds(setting.ranks.tp):
            chosen = _least(demand, product, words) if demand.alternatives else demand.asks
            sizes = ((_axis(name, product), number(ask, words)) for name, ask in chosen)
            found += [(axis, m, demand) for axis, m in sizes if m is not None and m > 1]
    return found


def _least(
    demand: Demand, product: Product, words: Mapping[str, int | None]
) -> tuple[tuple[str, int | str], ...]:
    given = {"N": product.n.value, "K": product.k.value}

    def costs(one: tuple[tuple[str, int | str], ...]) -> tuple[bool, int]:
        sizes = {_axis(name, product): number(ask, words) or 1 for name, ask in one}
        met = all(size is None or size % sizes.get(axis, 1) == 0 for axis, size in given.items())
        return not met, prod(m for axis, m in sizes.items() if given[axis] is None)

    return min(demand.alternatives, key=costs)


def _words(product: Product, scheme: Scheme, ranks: Ranks) -> dict[str, int | None]:
    return {
        "group": scheme.group, "block": scheme.block, "tp": ranks.tp, "ep": ranks.expert_parallel,
        "target": product.n.parts, "parts": _parts(product),
    }  # fmt: skip


def _unsized(product: Product) -> str:
    """Why a product has no size to be judged."""
    if product.kind in ("count", "vocab"):
        return ""
    uneven = next((s for s in (product.n, product.k) if s.is_uneven), None)
    if uneven:
        return f"{uneven.whole} is not shared evenly by {uneven.parts} ranks"
    unsized = product.shards and all(s.value is None for _, s in product.shards)
    if product.n.value is None and (product.k.value is None or unsized):
        missing = dict.fromkeys((*product.n.missing, *product.k.missing))
        return f"the config has no {', '.join(missing)}"
    return ""


def _broken(
    demand: Demand,
    product: Product,
    sizes: Mapping[str, int | None],
    scheme: Scheme,
    ranks: Ranks,
    asked: dict[str, int],
) -> Iterator[Finding]:
    """The sizes that break a demand; what holds is noted in ``asked``."""
    words = _words(product, scheme, ranks)
    for axis, least, multiple, to in _asks(demand, product, sizes, words):
        for shard, size in _measured(demand, product, axis, sizes):
            if demand.relation in DIVIDING and least > 1:
                asked[axis] = lcm(asked.get(axis, 1), least)
            if size is None or _holds(demand, size, multiple, product):
                continue
            target = -(-size // to) * to if demand.outcome == "pads" else None
            if demand.relation == "one_of":
                target = next((value for value in sorted(demand.values) if value >= size), None)
            yield _finding(demand, axis, size, multiple, sizes, scheme, target, shard)
            break


def _asks(
    demand: Demand,
    product: Product,
    sizes: Mapping[str, int | None],
    words: Mapping[str, int | None],
) -> list[tuple[str, int, int, int]]:
    """(axis, the least multiple that is ok, the one that is asked for, the one that is padded to).

    Of alternatives it is the first that the sizes meet. Where they meet none, it is the cheapest to
    pad to.
    """

    def resolved(option: Iterable[tuple[str, int | str]]) -> dict[str, int]:
        found = ((_axis(name, product), number(ask, words)) for name, ask in option)
        return {axis: m for axis, m in found if m is not None}

    def cost(option: Mapping[str, int]) -> float:
        given = ((sizes[axis], m) for axis, m in option.items())
        return prod((-(-size // m) * m / size for size, m in given if size), start=1.0)

    to = resolved(demand.to)
    if not demand.alternatives:
        one = {axis: m for axis, m in resolved(demand.asks).items()
               if axis != "global" or not _is_counted_elsewhere(product)}  # fmt: skip
        return [(axis, m, m, to.get(axis, m)) for axis, m in one.items()]
    options = [resolved(option) for option in demand.alternatives]
    met = (o for o in options if all((sizes[axis] or 0) % m == 0 for axis, m in o.items()))
    nearest = next(met, None)
    chosen = nearest or (to or min(options, key=cost))
    nearest = nearest or min(options, key=cost)
    return [(axis, nearest.get(axis, m), m, m) for axis, m in chosen.items()]


def _axis(name: str, product: Product) -> str:
    if name == "whole":
        return "global"
    if name in ("N", "K"):
        return name
    split = "K" if product.split == "row" else "N"
    return split if name == "width" else {"N": "K", "K": "N"}[split]


def _parts(product: Product) -> int:
    return product.k.parts if product.split == "row" else product.n.parts


def _is_counted_elsewhere(product: Product) -> bool:
    """A size made of heads: that heads divide is a demand on their count."""
    return product.kind == "dense" and (product.k if product.split == "row" else product.n).by_heads


def _measured(
    demand: Demand, product: Product, axis: str, sizes: Mapping[str, int | None]
) -> Sequence[tuple[str, int | None]]:
    """(shard, size): of a fused product each shard, where the demand is on shards."""
    if axis == "N" and product.shards and demand.shards != "sum":
        last = len(product.shards) - (demand.shards == "all_but_last")
        return [(name, size.value) for name, size in product.shards[:last]]
    return [("", sizes[axis])]


def number(ask: int | str, words: Mapping[str, int | None]) -> int | None:
    """A multiple: a number, a word, ``64*tp`` or ``max(64,group)``; None for a group of a row."""
    if isinstance(ask, int):
        return ask
    if ask.startswith("max("):
        parts = [number(p, words) or 1 for p in ask[4:-1].split(",")]
        return max(parts)
    product = 1
    for part in ask.split("*"):
        value = int(part) if part.isdigit() else words.get(part)
        if value is None or value < 1:
            return None
        product *= value
    return product


def _holds(demand: Demand, size: int, multiple: int, product: Product) -> bool:
    relation = demand.relation
    if relation == "multiple":
        return size % multiple == 0
    if relation == "blocks_fit":
        values = [s.value for _, s in product.shards]
        if None in values:
            return True
        whole = sum(v for v in values if v is not None)
        return size % multiple == 0 or sum(-(-v // multiple) for v in values if v is not None) == -(
            -whole // multiple
        )
    return {
        "either": size % multiple == 0 or multiple % size == 0,
        "multiple_or_one": size % multiple == 0 or size == 1,
        "at_least": size >= multiple,
        "at_most": size <= multiple,
        "one_of": size in demand.values,
        "one_rank": multiple == 1,
        "equal": size == multiple,
        "within_128": abs(size - multiple) <= 128,
        "never": False,
    }[relation]


def _finding(
    demand: Demand, axis: str, size: int, multiple: int, sizes: Mapping[str, int | None],
    scheme: Scheme, to: int | None, shard: str,
) -> Finding:  # fmt: skip
    next_value = next((v for v in sorted(demand.values) if v >= size), None)
    words = {
        "size": size,
        "multiple": multiple,
        "axis": axis,
        "n": sizes["N"],
        "k": sizes["K"],
        "block": scheme.block,
        "gcd": gcd(size, scheme.block),
        "next": next_value or "none",
        "side": "output_size of gate's and up's" if axis == "N" else "input_size of down's",
        "letter": axis[0].lower(),
    }
    says, kernel = demand.says.format_map(words), demand.kernel.format_map(words)
    if demand.outcome == "pads":
        says = says or f"{size} is no multiple of {multiple}: padded to {to}"
    elif demand.outcome == "falls_back":
        broken = f"{size} is no multiple of {multiple}: " if demand.relation == "multiple" else ""
        says = f"{broken}{says or kernel}"
    elif not says and demand.relation == "multiple":
        says = f"{size} is no multiple of {multiple}"
    shown = None if demand.relation in ("one_of", "never") else multiple
    return Finding(demand.outcome, axis, size, shown, says, demand, to, shard, kernel)


def with_shards(judged: Judged) -> Iterator[Judged]:
    """A judged product, then each of its shards by itself."""
    yield judged
    product = judged.product
    for name, size in product.shards:
        own = tuple(
            f for f in judged.findings if f.shard == name or (f.axis == "K" and not f.shard)
        )
        broken = max((f.outcome for f in own), key=OUTCOMES.index, default="ok")
        outcome: Outcome = broken if own or size.value is not None else "unknown"  # type: ignore[assignment]
        note = (
            ""
            if size.value is not None
            else _unsized(replace(product, n=size, k=Size(None), shards=()))
        )
        shard = replace(
            product, name=f"{product.name}.{name}", role=f"shard {name}", n=size, shards=()
        )
        yield replace(judged, product=shard, outcome=outcome, findings=own, note=note, padded={})

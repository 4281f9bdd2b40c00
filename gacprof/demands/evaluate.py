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

from gacprof.demands.products import ModelProduct, Ranks, Size
from gacprof.demands.quantisation import NONE, Scheme
from gacprof.demands.table import OUTCOMES, Demand, Engine, Outcome
from gacprof.demands.targets import CAPABILITIES, Gpu

DIVIDING = ("multiple", "multiple_or_one", "either")
"""Relations that ask for a multiple."""

Option = Iterable[tuple[str, int | str]]
"""What a demand asks, by the names of axes in its table."""


@dataclass(frozen=True)
class Setting:
    """What products are judged under: an engine (of one version), a GPU, a scheme and ranks."""

    engine: Engine
    gpu: Gpu
    scheme: Scheme
    ranks: Ranks
    family: str = ""


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
class JudgedProduct:
    """A product with what the engine does with it. ``asked`` is what each axis has to be a
    multiple of to be ok, by all demands on it; ``extra`` the share that padding adds; ``is_open``:
    what the engine asks is not known."""

    product: ModelProduct
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    asked: Mapping[str, int] = field(default_factory=dict)
    padded: Mapping[str, int] = field(default_factory=dict)
    scheme: Scheme = NONE
    note: str = ""
    is_open: bool = False

    @property
    def worst(self) -> Finding | None:
        own = [f for f in self.findings if f.outcome == self.outcome] or self.findings
        return max(own, key=lambda f: OUTCOMES.index(f.outcome), default=None)

    @property
    def extra(self) -> float:
        """Share of arithmetic and of bytes that padding adds."""
        n, k = self.product.n, self.product.k
        sizes = {"N": n.value, "K": k.value, "global": n.whole}
        shares = (to / (sizes[axis] or to) for axis, to in self.padded.items())
        return prod(shares, start=1.0) - 1


def scheme_of(product: ModelProduct, scheme: Scheme) -> Scheme:
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


def judge(product: ModelProduct, setting: Setting) -> JudgedProduct:
    """What the engine does with one product. On an open GPU it is what happens on all: the mildest
    outcome where none is ok, *unknown* where some are."""
    if not setting.gpu.is_open:
        return _Trial(product, setting, setting.gpu.sm).judged()
    answers = [_Trial(product, setting, sm).judged() for sm in CAPABILITIES]
    by_outcome: dict[Outcome, list[str]] = {}
    for sm, answer in zip(CAPABILITIES, answers, strict=True):
        by_outcome.setdefault(answer.outcome, []).append(f"sm{sm}")
    mildest = min(answers, key=lambda answer: OUTCOMES.index(answer.outcome))
    if len(by_outcome) == 1:
        return mildest
    outcomes = "; ".join(f"{o} on {', '.join(on)}" for o, on in by_outcome.items())
    note = f"depends on the GPU: {outcomes}".replace("_", " ")
    if mildest.findings:
        return replace(mildest, note=note)
    return JudgedProduct(product, "unknown", scheme=mildest.scheme, note=note, is_open=True)


def multiples(product: ModelProduct, setting: Setting) -> list[tuple[str, int, Demand]]:
    """(axis, multiple, demand): what a rank's sizes have to be multiples of, for someone who may
    choose those that are None. Of alternatives it is the one that given sizes meet and that asks
    least of the others. On an open GPU: what all GPUs ask."""
    options = CAPABILITIES if setting.gpu.is_open else (setting.gpu.sm,)
    first, *others = (_Trial(product, setting, sm) for sm in options)
    shared = [demand for demand in first.demands() if demand.relation == "multiple"]
    for other in others:
        there = set(other.demands())
        shared = [demand for demand in shared if demand in there]
    return [
        (axis, multiple, demand)
        for demand in shared
        for axis, multiple in first.least(demand).items()
        if multiple > 1
    ]


@lru_cache(maxsize=4096)
def _relevant(engine: Engine, facts: tuple[tuple[str, Any], ...]) -> tuple[Demand, ...]:
    """The demands on such products; what holds from some number of ranks on is among them."""
    table = dict(facts)
    return tuple(demand for demand in engine.demands if demand.applies(table))


class _Trial:
    """A product tried on a GPU of one compute capability. ``sizes`` are those that the next demand
    sees; ``words`` is what a demand's words mean here."""

    def __init__(self, product: ModelProduct, setting: Setting, sm: int | None) -> None:
        self.product, self.setting = product, setting
        self.scheme = scheme = scheme_of(product, setting.scheme)
        self.is_row = product.split == "row"
        split = product.k if self.is_row else product.n
        self.by_heads = product.kind == "dense" and split.by_heads
        self.sizes = {"N": product.n.value, "K": product.k.value, "global": split.whole}
        self.words = {
            "group": scheme.group, "block": scheme.block, "tp": setting.ranks.tp,
            "ep": setting.ranks.expert_parallel, "target": product.n.parts, "parts": split.parts,
        }  # fmt: skip
        self.facts: dict[str, Any] = {
            "sm": sm, "amd": setting.gpu.amd, "gpu": setting.gpu.name, "family": setting.family,
            "version": setting.engine.at, "quant": scheme.kind, "kind": product.kind,
            "split": product.split, "role": product.role, "tool": scheme.tool,
            "group": scheme.group, "gguf": scheme.gguf_type, "gated": product.gated,
            "sharded": bool(product.shards), "desc_act": scheme.desc_act,
            "symmetric": scheme.symmetric, "stored": scheme.stored,
            "partly": bool(product.shards) and setting.scheme.leaves_partly(product.modules),
        }  # fmt: skip

    def judged(self) -> JudgedProduct:
        findings: list[Finding] = []
        asked: dict[str, int] = {}
        padded: dict[str, int] = {}
        for demand in self.demands():
            for found in self._broken(demand, asked):
                findings.append(found)
                if found.outcome == "pads" and found.to:
                    self.sizes[found.axis] = padded[found.axis] = found.to
        outcomes = {f.outcome for f in findings}
        outcome: Outcome = max(outcomes, key=OUTCOMES.index, default="ok")
        if "unknown" in outcomes and outcome in ("pads", "falls_back"):
            outcome = "unknown"  # it may be refused
        unread = self._unread()
        refused = any(f.outcome == "refused" for f in findings)  # said once
        note = unread or ("" if refused else _unsized(self.product))
        if note and outcome == "ok":
            outcome = "unknown"
        is_open = bool(unread or findings)
        return JudgedProduct(
            self.product, outcome, tuple(findings), asked, padded, self.scheme, note, is_open
        )

    def demands(self) -> Iterator[Demand]:
        for demand in _relevant(self.setting.engine, tuple(self.facts.items())):
            if demand.where.tp is None or demand.where.tp.holds(self.setting.ranks.tp):
                yield demand

    def _unread(self) -> str:
        """Why the engine's demands on such a product are not known; empty where they are."""
        facts, engine, name = self.facts, self.setting.engine, self.setting.engine.name
        if facts["role"] == "mamba1":
            return "layers of Mamba-1 are not judged"
        if engine.oldest and engine.at and engine.at < engine.oldest:
            oldest = ".".join(map(str, engine.oldest))
            return f"{name} was read from {oldest} on: nothing older is known to be ok"
        if facts["kind"] != "count" and facts["quant"] not in engine.covers:
            named = self.setting.scheme.name if facts["quant"] == "unknown" else facts["quant"]
            return f"what {name} asks of {named} was not read"
        if facts["sm"] is None and not self.setting.gpu.is_open:
            anywhere = tuple((key, value) for key, value in facts.items() if key != "sm")
            if any(demand.where.sm is not None for demand in _relevant(engine, anywhere)):
                return f"what {name} asks of {facts['quant']} on {facts['gpu']} was not read"
        return ""

    def _resolved(self, option: Option) -> dict[str, int]:
        """Multiples by axis (N, K, global); without those of words that mean nothing here."""
        found = ((self._axis(name), _number(ask, self.words)) for name, ask in option)
        return {axis: multiple for axis, multiple in found if multiple is not None}

    def _axis(self, name: str) -> str:
        if name in ("N", "K"):
            return name
        if name == "whole":
            return "global"
        return "K" if self.is_row == (name == "width") else "N"

    def least(self, demand: Demand) -> dict[str, int]:
        """What it asks; of alternatives the one that given sizes meet and that asks least of those
        that may be chosen."""
        if not demand.alternatives:
            return self._resolved(demand.asks)
        given = {axis: self.sizes[axis] for axis in ("N", "K")}

        def costs(option: Mapping[str, int]) -> tuple[bool, int]:
            met = all(not size or size % option.get(axis, 1) == 0 for axis, size in given.items())
            return not met, prod(m for axis, m in option.items() if given[axis] is None)

        return min(map(self._resolved, demand.alternatives), key=costs)

    def _asks(self, demand: Demand) -> list[tuple[str, int, int, int]]:
        """(axis, the least multiple that is ok, the one that is asked for, the one that is padded
        to). Of alternatives it is the first that the sizes meet. Where they meet none, it is the
        cheapest to pad to."""
        to = self._resolved(demand.to)
        if not demand.alternatives:
            asks = self._resolved(demand.asks)
            if self.by_heads:  # that heads divide is a demand on their count
                asks.pop("global", None)
            return [(axis, m, m, to.get(axis, m)) for axis, m in asks.items()]
        options = [self._resolved(option) for option in demand.alternatives]

        def cost(option: Mapping[str, int]) -> tuple[float, int]:
            given = [(size, m) for axis, m in option.items() if (size := self.sizes[axis])]
            grown = prod((-(-size // m) * m / size for size, m in given), start=1.0)
            return grown, prod(m for size, m in given if size % m)

        met = (
            option for option in options
            if all((self.sizes[axis] or 0) % m == 0 for axis, m in option.items())
        )  # fmt: skip
        cheapest = min(options, key=cost)
        first = next(met, None)
        chosen = first or to or cheapest
        nearest = first or cheapest
        return [(axis, nearest.get(axis, m), m, m) for axis, m in chosen.items()]

    def _measured(self, demand: Demand, axis: str) -> Sequence[tuple[str, int | None]]:
        """(shard, size): of a fused product each shard, where the demand is on shards."""
        shards = self.product.shards
        if axis == "N" and shards and demand.shards != "sum":
            last = len(shards) - (demand.shards == "all_but_last")
            return [(name, size.value) for name, size in shards[:last]]
        return [("", self.sizes[axis])]

    def _broken(self, demand: Demand, asked: dict[str, int]) -> Iterator[Finding]:
        """The sizes that break a demand; what it asks is noted in ``asked``."""
        for axis, least, multiple, to in self._asks(demand):
            for shard, size in self._measured(demand, axis):
                if demand.relation in DIVIDING and least > 1:
                    asked[axis] = lcm(asked.get(axis, 1), least)
                if size is None or self._holds(demand, size, multiple):
                    continue
                yield self._finding(demand, axis, size, multiple, to, shard)
                break

    def _holds(self, demand: Demand, size: int, multiple: int) -> bool:
        divides = size % multiple == 0
        if demand.relation == "blocks_fit":
            values = [size.value for _, size in self.product.shards]
            known = [value for value in values if value is not None]
            apart = sum(-(-value // multiple) for value in known)
            whole = [
                size
                for _, size in self.product.shards
                if size.whole is not None
                and size.value is not None
                and size.parts * -(-size.value // multiple) > -(-size.whole // multiple)
            ]  # the last rank reads beyond the checkpoint's scales
            fits = not whole and apart == -(-sum(known) // multiple)
            return len(known) < len(values) or divides or fits
        return {
            "multiple": divides,
            "either": divides or multiple % size == 0,
            "multiple_or_one": divides or size == 1,
            "at_least": size >= multiple,
            "at_most": size <= multiple,
            "one_of": size in demand.values,
            "one_rank": multiple == 1,
            "equal": size == multiple,
            "within_128": abs(size - multiple) <= 128,
            "never": False,
        }[demand.relation]

    def _finding(
        self, demand: Demand, axis: str, size: int, multiple: int, to: int, shard: str
    ) -> Finding:
        larger = next((value for value in sorted(demand.values) if value >= size), None)
        target = -(-size // to) * to if demand.outcome == "pads" else None
        if demand.relation == "one_of":
            target = larger
        words = {
            "size": size, "multiple": multiple, "axis": axis, "n": self.sizes["N"],
            "k": self.sizes["K"], "block": self.scheme.block,
            "gcd": gcd(size, self.scheme.block), "next": larger or "none",
            "side": "output_size of gate's and up's" if axis == "N" else "input_size of down's",
            "letter": axis[0].lower(),
        }  # fmt: skip
        says, kernel = demand.says.format_map(words), demand.kernel.format_map(words)
        broken = f"{size} is no multiple of {multiple}"
        if demand.outcome == "pads":
            says = says or f"{broken}: padded to {target}"
        elif demand.outcome == "falls_back":
            says = says or kernel
            if demand.relation == "multiple" and broken not in says:
                says = f"{broken}: {says}"
        elif demand.relation == "multiple":
            says = says or broken
        shown = None if demand.relation in ("one_of", "never") else multiple
        return Finding(demand.outcome, axis, size, shown, says, demand, target, shard, kernel)


def _number(ask: int | str, words: Mapping[str, int | None]) -> int | None:
    """A multiple: a number, a word, ``64*tp`` or ``max(64,group)``; None for a group of a row."""
    if isinstance(ask, int):
        return ask
    if ask.startswith("max("):
        return max(_number(part, words) or 1 for part in ask[4:-1].split(","))
    product = 1
    for part in ask.split("*"):
        value = int(part) if part.isdigit() else words.get(part)
        if value is None or value < 1:
            return None
        product *= value
    return product


def _unsized(product: ModelProduct) -> str:
    """Why a product has no size to be judged."""
    if product.kind in ("count", "vocab"):
        return ""
    uneven = next((s for s in (product.n, product.k) if s.is_uneven), None)
    if uneven:
        return f"{uneven.whole} is not shared evenly by {uneven.parts} ranks"
    unsized = product.shards and all(s.value is None for _, s in product.shards)
    no_n, no_k = product.n.value is None, product.k.value is None
    if (no_n and (no_k or unsized)) or (no_k and product.k.parts > 1):
        missing = dict.fromkeys((*product.n.missing, *product.k.missing))
        return f"the config has no {', '.join(missing)}"
    return ""


def with_shards(judged: JudgedProduct) -> Iterator[JudgedProduct]:
    """A judged product, then each of its shards by itself."""
    yield judged
    product = judged.product
    for name, size in product.shards:
        own = [
            f
            for f in judged.findings
            if f.shard == name or (not f.shard and (f.axis == "K" or f.demand.relation == "never"))
        ]
        outcome: Outcome = max((f.outcome for f in own), key=OUTCOMES.index, default="ok")
        note = ""
        if size.value is None:
            outcome = outcome if own else "unknown"
            note = _unsized(replace(product, n=size, k=Size(None), shards=()))
        named, role = f"{product.name}.{name}", f"shard {name}"
        shard = replace(product, name=named, role=role, n=size, shards=())
        yield replace(
            judged, product=shard, outcome=outcome, findings=tuple(own), note=note, padded={}
        )

"""What an engine does with one product on a rank: the rows that are about it, tried in order.

An ok needs a witness: a row about the product's format on this GPU whose bounds hold. Where no row
is about it, the product is unknown. Padding changes the size that later rows see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import gcd, lcm, prod
from typing import TYPE_CHECKING, Any, Literal, get_args

from gacprof.checkpoint.storage import TABLES
from gacprof.gpus.architectures import ARCHITECTURE_TABLES
from gacprof.kernels.requirements import Bounds, Requirement
from gacprof.lint.products import HEAD_DIMS, RankProduct
from gacprof.workload.products import plain_dtype

if TYPE_CHECKING:
    from gacprof.lint.deployment import ConfigDeployment

Outcome = Literal["ok", "unknown", "pads", "falls back", "wrong", "refused"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""From the best to the worst; *wrong* loads and answers wrongly. A server that refuses to start
serves nothing wrong."""


def worst_of(outcomes: Iterable[Any], default: Outcome = "ok") -> Outcome:
    """The worst of some outcomes."""
    return max(outcomes, key=OUTCOMES.index, default=default)


@dataclass(frozen=True)
class Finding:
    """A row that a product breaks: on ``axis`` (N, K, global) ``size`` breaks ``bound``; ``to`` is
    the size that it is padded to (0: none); ``part`` the product or part (empty: every part)."""

    row: Requirement
    axis: str
    size: int
    bound: int
    says: str
    kernel: str = ""
    to: int = 0
    part: str = ""


@dataclass(frozen=True)
class Judgement:
    """A product with what becomes of it. ``multiples`` by axis are what its sizes have to be
    multiples of, ``pads_to`` what they become; ``witness`` is the row that an ok rests on."""

    product: RankProduct
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    multiples: Mapping[str, int] = field(default_factory=dict)
    pads_to: Mapping[str, int] = field(default_factory=dict)
    witness: Requirement | None = None
    note: str = ""

    @property
    def is_judged(self) -> bool:
        """Whether the config says enough of the product for a verdict."""
        return self.product.is_sized or bool(self.findings)


def judge_product(product: RankProduct, deployment: ConfigDeployment) -> Judgement:
    """What becomes of a product; on an open GPU the mildest outcome, unknown where some are ok."""
    gpu = deployment.gpu.architecture
    if gpu.vendor != "any":
        return _Trial(product, deployment, gpu.capability or 0).run()
    capabilities = ARCHITECTURE_TABLES["open_capabilities"]
    answers = {f"sm{sm}": _Trial(product, deployment, sm).run() for sm in capabilities}
    mildest = min(answers.values(), key=lambda answer: OUTCOMES.index(answer.outcome))
    places: dict[Outcome, list[str]] = {}
    for sm, answer in answers.items():
        places.setdefault(answer.outcome, []).append(sm)
    if len(places) == 1:
        return mildest
    where = [f"{outcome} on {', '.join(names)}" for outcome, names in places.items()]
    note = "; ".join(["depends on the GPU", *where])
    if mildest.findings:
        return replace(mildest, note=note)
    return Judgement(product, "unknown", note=note)


class _Trial:
    """One product tried on one compute capability; ``sizes`` are those that the next row sees."""

    def __init__(self, product: RankProduct, deployment: ConfigDeployment, sm: int) -> None:
        self.product, self.deployment, self.sm = product, deployment, sm
        self.sizes = {"N": product.N, "K": product.K, "global": product.whole}
        storage, ranks = product.storage, deployment.ranks
        differs_within = deployment.storage.differs_within
        self.facts: dict[str, Any] = {
            **vars(storage),
            **vars(product),
            "dtype": plain_dtype(deployment.inventory),
            "gguf_block": TABLES["gguf"].get(storage.gguf, 0),
            "kv": deployment.storage.kv,
            "sm": sm or None,
            "amd": deployment.gpu.architecture.vendor == "amd",
            "gpu": deployment.gpu.key,
            "version": deployment.engine.version,
            "family": deployment.family,
            "is_gated": deployment.sizes.family.get("is_gated", True),
            "tp": ranks["tp"],
            "ep": ranks["expert_parallel"],
            "parts": product.ranks,
            "sharded": bool(product.parts),
            "partly": bool(product.parts) and differs_within(product.modules),
            "blocks_fit": blocks_fit(product, storage.block),
            "number": product.N,
            "number_below_tp": ranks["tp"] > product.N,
            "repeats": product.ranks % max(product.N, 1) == 0,
            "64*tp": 64 * ranks["tp"],
            "max(64,group)": max(64, storage.group),
        }

    def run(self) -> Judgement:
        """The product's judgement, by every row that is about it."""
        findings: list[Finding] = []
        multiples: dict[str, int] = {}
        pads_to: dict[str, int] = {}
        witness = None
        for row in self.deployment.engine.requirements:
            if not row.is_about(self.facts):
                continue
            bounds = self._bounds(row)
            if row.relation == "multiple":
                multiples |= {axis: lcm(multiples.get(axis, 1), bounds[axis]) for axis in bounds}
            broken = list(self._broken(row, bounds))
            pads_to |= {finding.axis: finding.to for finding in broken if finding.to}
            self.sizes |= pads_to
            if row.outcome != "ok":  # an ok says nothing of sizes beyond its bounds
                findings += broken
            if self._is_witness(row) and not (broken and row.outcome == "ok"):
                witness = row
        outcomes = {finding.row.outcome for finding in findings}
        outcome, note = worst_of(outcomes), ""
        if "unknown" in outcomes and outcome in ("pads", "falls back"):
            outcome = "unknown"  # it may be refused
        needs_witness = self.product.kind != "count" or self.product.role in HEAD_DIMS
        if witness is None and needs_witness and outcome in ("ok", "pads"):
            engine, storage = self.deployment.engine, self.product.storage
            form = storage.name if storage.form == "unknown" else storage.form
            where = f"sm{self.sm}" if self.sm else self.deployment.gpu.key
            needs = f"{engine.name} {engine.version} needs of {self.product.name}"
            outcome, note = "unknown", f"nobody read what {needs} in {form} on {where}"
        elif outcome == "ok" and not self.product.is_sized:
            outcome, note = "unknown", "the config doesn't say its size"
        return Judgement(self.product, outcome, tuple(findings), multiples, pads_to, witness, note)

    def _is_witness(self, row: Requirement) -> bool:
        """Whether a row is about the product's own format and names the GPUs that it is of, or says
        that nothing is required. Of a head_dim only a row that a kernel takes it."""
        if self.product.role in HEAD_DIMS:
            return row.outcome == "ok"
        if row.outcome == "unknown" or self.product.kind in ("vocab", "count"):
            return row.outcome != "unknown"
        names_gpus = {"sm", "gpu", "amd"} & row.conditions.keys()
        return "form" in row.conditions and (row.outcome == "ok" or bool(names_gpus))

    def _resolve(self, bounds: Bounds) -> dict[str, int]:
        """Bounds by axis (N, K, global), without those of words that mean nothing here."""
        width, hidden = ("K", "N") if self.product.split == "row" else ("N", "K")
        axes = {"N": "N", "K": "K", "whole": "global", "width": width, "hidden": hidden}
        resolved = {axes[axis]: int(self.facts.get(str(b), b)) for axis, b in bounds.items()}
        if self.product.is_by_heads:  # that heads divide is required of their count
            resolved.pop("global", None)
        return {axis: bound for axis, bound in resolved.items() if bound > 0}

    def _bounds(self, row: Requirement) -> dict[str, int]:
        """What a row asks; of alternatives the cheapest to pad to, for nothing if one is met."""
        if not row.alternatives:
            return self._resolve(row.bounds)

        def cost(option: Mapping[str, int]) -> float:
            sizes = {axis: self.sizes[axis] or bound for axis, bound in option.items()}
            return prod(-(-sizes[axis] // b) * b / sizes[axis] for axis, b in option.items())

        cheapest = min(map(self._resolve, row.alternatives), key=cost)
        return self._resolve(row.to) if row.to and cost(cheapest) > 1 else cheapest

    def _broken(self, row: Requirement, bounds: Mapping[str, int]) -> Iterator[Finding]:
        """The sizes that break a row, one an axis."""
        for axis, bound in bounds.items():
            is_of_all = axis == "K" or row.relation == "never"
            sizes = {"" if is_of_all else self.product.name: self.sizes[axis]}
            if axis == "N" and row.shards != "sum" and self.product.parts:
                last = len(self.product.parts) - (row.shards == "all_but_last")
                sizes = {part.name: part.N for part in self.product.parts[:last]}
            for part, size in sizes.items():
                holds = {
                    "multiple": size % bound == 0,
                    "at_least": not size or size >= bound,
                    "at_most": size <= bound,
                    "one_of": not size or size in row.values,
                    "never": bound > 1 and size % bound == 0 and len(sizes) > 1,
                }
                if not holds[row.relation]:
                    yield self._finding(row, axis, size, bound, part)
                    break

    def _finding(self, row: Requirement, axis: str, size: int, bound: int, part: str) -> Finding:
        target = 0
        if row.outcome == "pads":
            to = self._resolve(row.to).get(axis, bound)
            target = -(-size // to) * to
        side = "output_size of gate's and up's" if axis == "N" else "input_size of down's"
        words = self.facts | {"size": size, "multiple": bound, "axis": axis, "side": side}
        words |= {"letter": axis.lower(), "gcd": gcd(size, self.facts["block"])}
        words |= {"n": self.sizes["N"], "k": self.sizes["K"]}
        kernel = row.kernel.format_map(words)
        broken = f"{size} is no multiple of {bound}"
        plain = {"pads": f"{broken}: padded to {target}", "falls back": f"{broken}: {kernel}"}
        says = row.says.format_map(words) or plain.get(row.outcome, broken)
        if row.relation == "never":
            says, bound = row.says.format_map(words) or kernel, 0
        return Finding(row, axis, size, bound, says, kernel, target, part)


def blocks_fit(product: RankProduct, block: int) -> bool:
    """Whether the parts of a fused product in whole blocks of scales take no more blocks than
    together, on this rank and on the last one."""
    if not product.parts or not product.N:
        return True
    apart = sum(-(-part.N // block) for part in product.parts)
    parts = [part for part in product.parts if part.N % block]
    reads_beyond = any(p.ranks * -(-p.N // block) > -(-p.whole // block) for p in parts)
    return apart == -(-product.N // block) and not reads_beyond


def overall(judgements: Iterable[Judgement]) -> Outcome:
    """The worst outcome; unknown where what is known is served and the rest may be refused."""
    sized = [judgement for judgement in judgements if judgement.is_judged]
    unknown = [judgement for judgement in sized if judgement.outcome == "unknown"]
    worst = worst_of({judgement.outcome for judgement in sized} - {"unknown"}, "unknown")
    may_be_refused = any(judgement.findings for judgement in unknown)
    if (worst == "ok" and unknown) or (worst in ("pads", "falls back") and may_be_refused):
        return "unknown"
    return worst

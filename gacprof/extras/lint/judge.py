"""What an engine does with one product on a rank: the rows that are about it, tried in order.

An ok needs a witness: a row about the product's format on this GPU whose bounds hold. Where no row
is about it, the product is unknown. Padding changes the size that later rows see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import gcd, lcm, prod
from typing import Any, Literal

from gacprof.extras.lint.products import RankProduct, Ranks
from gacprof.extras.lint.storage import PLAIN, Storage
from gacprof.extras.lint.targets import CAPABILITIES, Gpu
from gacprof.kernels.demands.requirements import Engine, Requirement

Outcome = Literal["ok", "unknown", "pads", "falls back", "wrong", "refused"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "unknown", "pads", "falls back", "wrong", "refused")
"""From the best to the worst; *wrong* loads and answers wrongly. A server that refuses to start
serves nothing wrong."""


@dataclass(frozen=True)
class Setting:
    """An engine at a version, a GPU, the model's storage and type, and its ranks."""

    engine: Engine
    gpu: Gpu
    storage: Storage
    ranks: Ranks
    family: str = ""


@dataclass(frozen=True)
class Finding:
    """A row that a product breaks: on ``axis`` (N, K, global) ``size`` breaks ``bound``; ``to`` is
    the size that it is padded to (0: none); ``part`` the part of a fused product."""

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
    storage: Storage
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    multiples: Mapping[str, int] = field(default_factory=dict)
    pads_to: Mapping[str, int] = field(default_factory=dict)
    witness: Requirement | None = None
    note: str = ""

    @property
    def worst(self) -> Finding | None:
        """The first finding of the product's outcome, else the worst of all."""
        matching = [f for f in self.findings if f.row.outcome == self.outcome]
        ranked = matching or sorted(self.findings, key=_badness, reverse=True)
        return ranked[0] if ranked else None


def _badness(finding: Finding) -> int:
    return OUTCOMES.index(finding.row.outcome)


def judge_product(product: RankProduct, setting: Setting) -> Judgement:
    """What becomes of one product. On an open GPU: the mildest outcome where none is ok, unknown
    where some are."""
    if not setting.gpu.is_open:
        return _Trial(product, setting, setting.gpu.sm).judge()
    answers = [_Trial(product, setting, sm).judge() for sm in CAPABILITIES]
    outcomes: dict[Outcome, list[str]] = {}
    for sm, answer in zip(CAPABILITIES, answers, strict=True):
        outcomes.setdefault(answer.outcome, []).append(f"sm{sm}")
    mildest = min(answers, key=lambda answer: OUTCOMES.index(answer.outcome))
    if len(outcomes) == 1:
        return mildest
    note = "; ".join(f"{outcome} on {', '.join(where)}" for outcome, where in outcomes.items())
    note = f"depends on the GPU: {note}"
    if mildest.findings:
        return replace(mildest, note=note)
    return Judgement(product, mildest.storage, "unknown", note=note)


class _Trial:
    """One product tried on one compute capability; ``sizes`` are those that the next row sees."""

    def __init__(self, product: RankProduct, setting: Setting, sm: int) -> None:
        self.product, self.setting = product, setting
        self.storage = storage_of(product, setting.storage)
        self.sizes = {"N": product.N, "K": product.K, "global": product.whole}
        self.words = {
            "group": self.storage.group, "block": self.storage.block, "tp": setting.ranks.tp,
            "ep": setting.ranks.expert_parallel, "parts": product.ranks,
        }  # fmt: skip
        self.facts: dict[str, Any] = {
            "sm": sm or None, "amd": setting.gpu.is_amd, "gpu": setting.gpu.name,
            "family": setting.family, "formats": self.storage.form, "kind": product.kind,
            "split": product.split, "role": product.role, "tool": self.storage.tool,
            "group": self.storage.group, "gguf": self.storage.gguf, "number": product.N,
            "gguf_block": self.storage.gguf_block, "gated": product.is_gated,
            "sharded": bool(product.parts), "desc_act": self.storage.desc_act,
            "symmetric": self.storage.symmetric, "stored": self.storage.stored,
            "tp": setting.ranks.tp, "kv": setting.storage.kv,
            "repeats": bool(product.N) and product.ranks % product.N == 0,
            "number_below_tp": setting.ranks.tp > product.N,
            "partly": bool(product.parts) and setting.storage.is_partly_ignored(product.modules),
            "version": setting.engine.version,
            "blocks_fit": self._blocks_fit(),
        }  # fmt: skip

    def judge(self) -> Judgement:
        product, findings = self.product, list[Finding]()
        multiples: dict[str, int] = {}
        pads_to: dict[str, int] = {}
        witness = None
        for row in self.setting.engine.requirements:
            if not row.is_about(self.facts):
                continue
            broken = list(self._broken(row, multiples))
            if broken and row.outcome == "ok":
                continue  # nothing is said of sizes beyond its bounds
            findings += broken
            for finding in broken:
                if finding.to:
                    self.sizes[finding.axis] = pads_to[finding.axis] = finding.to
            if row.outcome != "unknown" and (row.relation != "never" or broken):
                witness = self._as_witness(row) or witness
        outcomes = {finding.row.outcome for finding in findings}
        outcome: Outcome = max(outcomes, key=OUTCOMES.index, default="ok")  # type: ignore
        if "unknown" in outcomes and outcome in ("pads", "falls back"):
            outcome = "unknown"  # it may be refused
        note = ""
        if witness is None and product.needs_witness and outcome in ("ok", "pads"):
            outcome, note = "unknown", self._unread()
        elif not product.is_sized and outcome == "ok":
            outcome, note = "unknown", "the config doesn't say its size"
        return Judgement(
            product, self.storage, outcome, tuple(findings), multiples, pads_to, witness, note
        )

    def _as_witness(self, row: Requirement) -> Requirement | None:
        """The row, where it is about the product's own format and names the GPUs that it is of,
        or says that nothing is required."""
        is_product = self.product.kind in ("dense", "expert")
        if is_product and "formats" not in row.conditions:
            return None
        names_gpus = {"sm", "gpu", "amd"} & row.conditions.keys()
        is_enough = row.outcome == "ok" or names_gpus or self.product.kind == "vocab"
        return row if is_enough else None

    def _unread(self) -> str:
        engine, gpu, storage = self.setting.engine, self.setting.gpu, self.storage
        named = storage.name if storage.form == "unknown" else storage.form
        where = f"sm{self.facts['sm']}" if self.facts["sm"] else gpu.name
        return (
            f"nobody read what {engine.name} {engine.version} needs of {self.product.name} "
            f"in {named} on {where}"
        )

    def _blocks_fit(self) -> bool:
        """Whether parts in whole blocks of scales take no more blocks than together, on this and
        on the last rank."""
        block, parts = self.storage.block, self.product.parts
        if not all(part.N for part in parts):
            return True
        apart = sum(-(-part.N // block) for part in parts)
        together = -(-sum(part.N for part in parts) // block)
        beyond = [
            part for part in parts
            if part.ranks * -(-part.N // block) > -(-part.whole // block)
        ]  # fmt: skip
        return all(part.N % block == 0 for part in parts) or (apart == together and not beyond)

    def _resolve(self, bounds: Mapping[str, int | str]) -> dict[str, int]:
        """Bounds by axis (N, K, global), without those of words that mean nothing here."""
        is_row = self.product.split == "row"
        axes = {"N": "N", "K": "K", "whole": "global"}
        axes |= {"width": "K", "hidden": "N"} if is_row else {"width": "N", "hidden": "K"}
        resolved = {axes[axis]: _number(bound, self.words) for axis, bound in bounds.items()}
        return {axis: bound for axis, bound in resolved.items() if bound > 0}

    def _bounds(self, row: Requirement) -> dict[str, int]:
        """What a row asks; of alternatives the one that the sizes meet, else the cheapest to pad
        to."""
        if not row.alternatives:
            bounds = self._resolve(row.bounds)
            if self.product.is_by_heads and self.product.kind == "dense":
                bounds.pop("global", None)  # heads that divide are required of their count
            return bounds
        options = [self._resolve(option) for option in row.alternatives]

        def cost(option: Mapping[str, int]) -> tuple[float, int]:
            sides = [(self.sizes[axis], bound) for axis, bound in option.items()]
            sized = [side for side in sides if side[0]]
            grown = prod((-(-size // bound) * bound / size for size, bound in sized), start=1.0)
            return grown, prod(bound for size, bound in sized if size % bound)

        cheapest = min(options, key=cost)
        is_met = all(self.sizes[axis] % bound == 0 for axis, bound in cheapest.items())
        return self._resolve(row.to) if row.to and not is_met else cheapest

    def _broken(self, row: Requirement, multiples: dict[str, int]) -> Iterator[Finding]:
        """The sizes that break a row; its multiples are noted."""
        for axis, bound in self._bounds(row).items():
            if row.relation == "multiple" and bound > 1:
                multiples[axis] = lcm(multiples.get(axis, 1), bound)
            sizes = self._sizes_on(axis, row.shards)
            if row.relation == "never":
                uneven = [item for item in sizes if item[1] % bound]
                part, size = (uneven or [("", sizes[0][1])])[0]
                yield self._finding(row, axis, size, bound, part)
                continue
            for part, size in sizes:
                if size and not self._holds(row, size, bound):
                    yield self._finding(row, axis, size, bound, part)
                    break

    def _sizes_on(self, axis: str, shards: str) -> list[tuple[str, int]]:
        """(part, size): of a fused product each part, where the row is about parts."""
        parts = self.product.parts
        if axis == "N" and parts and shards != "sum":
            last = len(parts) - (shards == "all_but_last")
            return [(part.role, part.N) for part in parts[:last]]
        return [("", self.sizes[axis])]

    def _holds(self, row: Requirement, size: int, bound: int) -> bool:
        if row.relation == "one_of":
            return size in row.values
        if row.relation == "at_least":
            return size >= bound
        if row.relation == "at_most":
            return size <= bound
        return size % bound == 0

    def _finding(
        self, row: Requirement, axis: str, size: int, bound: int, part: str
    ) -> Finding:
        target = 0
        if row.outcome == "pads" and row.relation == "multiple":
            to = self._resolve(row.to).get(axis, bound)  # more than the multiple that is required
            target = -(-size // to) * to
        words = {
            "size": size, "multiple": bound, "axis": axis, "n": self.sizes["N"],
            "k": self.sizes["K"], "block": self.storage.block,
            "gcd": gcd(size, self.storage.block),
            "sm": self.facts["sm"],
            "side": "output_size of gate's and up's" if axis == "N" else "input_size of down's",
            "letter": axis[0].lower(),
        }  # fmt: skip
        says, kernel = row.says.format_map(words), row.kernel.format_map(words)
        broken = f"{size} is no multiple of {bound}"
        if target:
            says = says or f"{broken}: padded to {target}"
        elif row.relation == "multiple" and not says:
            says = f"{broken}: {kernel}" if kernel else broken
        shown = bound if row.relation != "never" else 0
        return Finding(row, axis, size, shown, says or kernel, kernel, target, part)


def storage_of(product: RankProduct, storage: Storage) -> Storage:
    """How a product is stored: embedding and head stay 16 bit but in GGUF files, MXFP4 is a format
    of experts, and what the config's ignore list names stays as it is."""
    if product.role == "model":
        return storage
    if product.kind == "count" or (product.kind == "vocab" and storage.form != "gguf"):
        return PLAIN
    if storage.form == "mxfp4" and product.kind == "dense":
        return PLAIN
    return storage.of_modules(product.modules)


def _number(bound: int | str, words: Mapping[str, int]) -> int:
    """A bound in figures, ``64*tp`` and ``max(64,group)`` too; 0 for a word that means nothing."""
    if isinstance(bound, int):
        return bound
    if bound.startswith("max("):
        return max(_number(part, words) for part in bound[4:-1].split(","))
    return prod(int(part) if part.isdigit() else max(words[part], 0) for part in bound.split("*"))


def overall(judgements: Iterable[Judgement]) -> Outcome:
    """The worst outcome; unknown where what is known is served and the rest may be refused."""
    judged = [judgement for judgement in judgements if is_judged(judgement)]
    outcomes = {judgement.outcome for judgement in judged}
    worst: Outcome = max(outcomes - {"unknown"}, key=OUTCOMES.index, default="unknown")
    unknown = [judgement for judgement in judged if judgement.outcome == "unknown"]
    may_be_refused = any(judgement.findings for judgement in unknown)
    if (worst == "ok" and unknown) or (worst in ("pads", "falls back") and may_be_refused):
        return "unknown"
    return worst


def is_judged(judgement: Judgement) -> bool:
    """Whether the config says enough of a product for a verdict."""
    return judgement.product.is_sized or bool(judgement.findings)

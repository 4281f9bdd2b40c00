"""What an engine does with one product on a rank: the rows that are about it, tried in order.

An ok needs a witness: a row about the product's format on this GPU whose bounds hold. Where no row
is about it, the product is unknown. Padding changes the size that later rows see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, gcd, lcm
from typing import TYPE_CHECKING, Any, Literal, get_args

from gacprof.checkpoint.storage import TABLES
from gacprof.hardware.architectures import ARCHITECTURE_TABLES
from gacprof.kernels.requirements import Bounds, Requirement
from gacprof.lint.products import HEAD_DIMS, RankProduct
from gacprof.workload.products import plain_dtype
from gacprof.workload.scales import Part, SliceError, misplaced_weights

if TYPE_CHECKING:
    from gacprof.lint.deployment import ConfigDeployment

Outcome = Literal["ok", "unknown", "pads", "falls back", "wrong", "refused"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
"""From the best to the worst; *wrong* loads and answers wrongly. A server that refuses to start
serves nothing wrong."""
SERVED: tuple[Outcome, ...] = ("ok", "pads", "falls back")
"""Nothing else serves right answers for sure."""
SIDE_WORDS = {
    "N": {"side": "output_size of gate's and up's", "partition": "output_partition_size"},
    "K": {"side": "input_size of down's", "partition": "input_size_per_partition"},
}
"""What engines' messages call a side."""
Facts = dict[str, Any]
FIELDS = {"N": "N", "K": "K", "global": "whole"}  # of a product, by the axis that rows judge


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
    says: str = ""
    kernel: str = ""
    to: int = 0
    part: str = ""


@dataclass(frozen=True)
class Judgement:
    """A product with what becomes of it. ``multiples`` by axis are what its sizes have to be
    multiples of, ``pads_to`` what they become; ``witness`` is the row that an ok rests on. By the
    row's id, ``width_multiples`` are those of the whole width that ranks share. On an open GPU
    ``depends_on_gpu``: not all have one outcome."""

    product: RankProduct
    outcome: Outcome
    findings: tuple[Finding, ...] = ()
    multiples: Mapping[str, int] = field(default_factory=dict)
    pads_to: Mapping[str, int] = field(default_factory=dict)
    witness: Requirement | None = None
    note: str = ""
    width_multiples: Mapping[str, int] = field(default_factory=dict)
    depends_on_gpu: bool = False

    @property
    def is_judged(self) -> bool:
        """Whether the config says enough of the product for a verdict."""
        return self.product.is_sized or bool(self.findings)


def judge_product(product: RankProduct, deployment: ConfigDeployment) -> Judgement:
    """What becomes of a product; on an open GPU the mildest outcome, unknown where some are ok, and
    the multiples of all GPUs."""
    gpu = deployment.gpu.architecture
    if gpu.vendor != "any":
        return judge_on(product, deployment, gpu.capability)
    gpus_of: dict[Outcome, list[str]] = {}
    answers: dict[Outcome, Judgement] = {}
    width_multiples: dict[str, int] = {}
    for sm in ARCHITECTURE_TABLES["open_capabilities"]:
        answer = judge_on(product, deployment, sm)
        gpus_of.setdefault(answer.outcome, []).append(f"sm{sm}")
        answers.setdefault(answer.outcome, answer)
        width_multiples |= answer.width_multiples
    mildest = replace(answers[min(answers, key=OUTCOMES.index)], width_multiples=width_multiples)
    if len(answers) == 1:
        return mildest
    where = [f"{outcome} on {', '.join(names)}" for outcome, names in gpus_of.items()]
    note = "; ".join(["depends on the GPU", *where])
    unknown = Judgement(product, "unknown", width_multiples=width_multiples)
    answer = mildest if mildest.findings else unknown
    return replace(answer, note=note, depends_on_gpu=True)


def judge_on(product: RankProduct, deployment: ConfigDeployment, sm: int | None) -> Judgement:
    """What becomes of a product on a compute capability (None: no NVIDIA GPU)."""
    facts = facts_of(product, deployment, sm)
    padded = product
    findings: list[Finding] = []
    multiples: dict[str, int] = {}
    width_multiples: dict[str, int] = {}
    pads_to: dict[str, int] = {}
    witness = None
    for row in deployment.engine.requirements:
        if not row.is_about(facts):
            continue
        bounds = bounds_of(row, padded, facts)
        if row.relation in ("multiple", "scales"):
            multiples |= {axis: lcm(multiples.get(axis, 1), bounds[axis]) for axis in bounds}
            width_multiples[row.id] = width_multiple(row, product, facts)
        find = misplaced_scales if row.relation == "scales" else broken_sizes
        broken = list(find(row, bounds, padded, facts))
        pads_to |= {finding.axis: finding.to for finding in broken if finding.to}
        # An engine pads before it picks a kernel: later rows see the padded sizes.
        sizes: Facts = {FIELDS[axis]: size for axis, size in pads_to.items()}
        padded = replace(product, **sizes)
        if row.outcome != "ok":  # an ok says nothing of sizes beyond its bounds
            findings += broken
        if is_witness(row, product) and not (broken and row.outcome == "ok"):
            witness = row
    outcomes = {finding.row.outcome for finding in findings}
    outcome, note = worst_of(outcomes), ""
    if "unknown" in outcomes and outcome in ("pads", "falls back"):
        outcome = "unknown"  # it may be refused
    needs_witness = product.kind != "count" or product.role in HEAD_DIMS
    if witness is None and needs_witness and outcome in ("ok", "pads"):
        engine, storage = deployment.engine, product.storage
        form = {"unknown": storage.name, "none": "plain"}.get(storage.form, storage.form)
        what = "attention" if product.role in HEAD_DIMS else f"{form} weights"
        gpu = f"sm{sm}" if sm else deployment.gpu.name
        outcome = "unknown"
        note = f"nobody read what {engine.name} {engine.version} does with {what} on {gpu}"
    elif outcome == "ok" and not product.is_sized:
        outcome, note = "unknown", "the config doesn't say its size"
    return Judgement(
        product, outcome, tuple(findings), multiples, pads_to, witness, note, width_multiples
    )


def width_multiple(row: Requirement, product: RankProduct, facts: Facts) -> int:
    """What a row requires the whole width to be a multiple of, all ranks together; of alternatives
    the least, of those that the other side of the product allows."""
    axis = {"row": "K", "column": "N"}.get(product.split, "")
    is_of_sum = axis == "N" and row.relation == "multiple" and row.shards == "sum"
    has_equal_parts = len({part.N for part in product.parts}) == 1
    # gate and up side by side are twice as long as the width
    parts = len(product.parts) if is_of_sum and has_equal_parts else 1
    multiples: dict[bool, list[int]] = {True: [], False: []}
    for alternative in row.alternatives or [row.bounds]:
        bounds = bounds_by_axis(alternative, product, facts)
        bound = bounds.pop(axis, 0)
        whole = bounds.pop("global", 1)
        is_allowed = not any(getattr(product, FIELDS[other]) % bounds[other] for other in bounds)
        of_width = bound // gcd(bound, parts) * product.ranks if bound else 1
        multiples[is_allowed].append(lcm(of_width, whole))
    return min(multiples[True] or multiples[False])


def facts_of(product: RankProduct, deployment: ConfigDeployment, sm: int | None) -> Facts:
    """What conditions, bounds and words of rows can name, as ``demands/README.md`` lists it."""
    storage, ranks = product.storage, deployment.ranks
    return {
        **vars(storage),
        **vars(product),
        "dtype": plain_dtype(deployment.inventory),
        "gguf_block": TABLES["gguf"].get(storage.gguf, 0),
        "kv": deployment.storage.kv,
        "sm": sm,
        "amd": deployment.gpu.architecture.vendor == "amd",
        "gpu": deployment.gpu.key,
        "version": deployment.engine.version,
        "family": deployment.family,
        "is_gated": deployment.sizes.family.get("is_gated", True),
        "tp": ranks["tp"],
        "ep": ranks["expert_parallel"],
        "parts": product.ranks,
        "sharded": bool(product.parts),
        "partly": bool(product.parts) and deployment.storage.differs_within(product.modules),
        "number": product.N,
        "number_below_tp": ranks["tp"] > product.N,
        "repeats": product.ranks % max(product.N, 1) == 0,
        "64*tp": 64 * ranks["tp"],
        "K_mod_64": product.K % 64,
        "N_mod_128": product.N % 128,
        "max(64,group)": max(64, storage.group),
    }


def is_witness(row: Requirement, product: RankProduct) -> bool:
    """Whether a row is about the product's own format and names the GPUs that it is of, or says
    that nothing is required. Of a head_dim only a row that a kernel takes it."""
    if product.role in HEAD_DIMS:
        return row.outcome == "ok"
    if row.outcome == "unknown" or product.kind in ("vocab", "count"):
        return row.outcome != "unknown"
    names_gpus = {"sm", "gpu", "amd"} & row.conditions.keys()
    return "form" in row.conditions and (row.outcome == "ok" or bool(names_gpus))


def bounds_by_axis(bounds: Bounds, product: RankProduct, facts: Facts) -> dict[str, int]:
    """Bounds by axis (N, K, global), without those of words that mean nothing here."""
    width, hidden = ("K", "N") if product.split == "row" else ("N", "K")
    axes = {"N": "N", "K": "K", "whole": "global", "width": width, "hidden": hidden}
    numbers = {axes[side]: int(facts.get(str(b), b)) for side, b in bounds.items()}
    if product.is_by_heads:  # that heads divide is required of their count
        numbers.pop("global", None)
    return {axis: bound for axis, bound in numbers.items() if bound > 0}


def bounds_of(row: Requirement, product: RankProduct, facts: Facts) -> dict[str, int]:
    """What a row requires; of alternatives the cheapest to pad to, for nothing if one is met."""

    def growth(bounds: Mapping[str, int]) -> float:
        grown = 1.0
        for axis, bound in bounds.items():
            size = getattr(product, FIELDS[axis]) or bound
            grown *= ceil(size / bound) * bound / size
        return grown

    alternatives = row.alternatives or [row.bounds]
    cheapest = min((bounds_by_axis(b, product, facts) for b in alternatives), key=growth)
    if row.alternatives and row.to and growth(cheapest) > 1:
        return bounds_by_axis(row.to, product, facts)
    return cheapest


def broken_sizes(
    row: Requirement, bounds: Mapping[str, int], product: RankProduct, facts: Facts
) -> Iterator[Finding]:
    """The sizes that break a row, one an axis."""
    for axis, bound in bounds.items():
        is_of_all = axis == "K" or row.relation == "never"
        sizes = {"" if is_of_all else product.name: getattr(product, FIELDS[axis])}
        if axis == "N" and row.shards != "sum" and product.parts:
            last = len(product.parts) - (row.shards == "all_but_last")
            sizes = {part.name: part.N for part in product.parts[:last]}
        for part, size in sizes.items():
            holds = {
                "multiple": size % bound == 0,
                "at_least": not size or size >= bound,
                "at_most": size <= bound,
                "one_of": not size or size in row.values,
                "never": bound > 1 and size % bound == 0 and len(sizes) > 1,
            }
            if not holds[row.relation]:
                multiple = bounds_by_axis(row.to, product, facts).get(axis, bound)
                to = ceil(size / multiple) * multiple if row.outcome == "pads" else 0
                words = facts | {"n": product.N, "k": product.K, "axis": axis}
                yield finding_of(row, size, bound, words, to=to, part=part)
                break


def misplaced_scales(
    row: Requirement, bounds: Mapping[str, int], product: RankProduct, facts: Facts
) -> Iterator[Finding]:
    """The sides whose scales a loader refuses, or puts beside weights that they aren't of."""
    for axis, block in bounds.items():
        sides = {part.name: Part(part.N, part.ranks) for part in product.parts or (product,)}
        is_sliced = axis == "N" or product.split == "row"
        if axis == "K":
            sides = {"": Part(product.K, product.ranks if is_sliced else 1)}
        parts = list(sides.values())
        misplaced = 0
        try:
            misplaced = misplaced_weights(parts, block, entries=row.entries, is_sliced=is_sliced)
        except SliceError as error:
            row = replace(row, outcome="refused", says=str(error))
        if misplaced or row.outcome == "refused":
            name = next(name for name, part in sides.items() if part.size % block)
            weights = sum(part.size * product.ranks for part in parts)
            words = facts | {"misplaced": misplaced, "weights": weights, "axis": axis}
            yield finding_of(row, sides[name].size, block, words, part=name)


def finding_of(
    row: Requirement, size: int, bound: int, facts: Facts, *, to: int = 0, part: str = ""
) -> Finding:
    """A finding with what its row says of the size, and the kernel that serves it then."""
    axis = facts["axis"]
    words = {**facts, "size": size, "multiple": bound, "letter": axis.lower()}
    words |= SIDE_WORDS["N" if axis == "N" else "K"] | {"gcd": gcd(size, facts["block"])}
    kernel = row.kernel.format_map(words)
    instead = {"pads": f": padded to {to}", "falls back": f": {kernel}"}
    plain = f"{size} is no multiple of {bound}{instead.get(row.outcome, '')}"
    if row.relation == "never":
        plain, bound = kernel, 0
    says = row.says.format_map(words) or plain
    if axis == "K" and bound == facts["group"] and size % bound:
        says += f" ({size} = {size / bound:g} groups of {bound})"
    return Finding(row, axis, size, bound, says, kernel, to, part)


def overall(judgements: Iterable[Judgement]) -> Outcome:
    """The worst outcome; unknown where what is known is served and of something nothing is."""
    sized = {judgement.outcome for judgement in judgements if judgement.is_judged}
    worst = worst_of(sized - {"unknown"}, "unknown")
    return "unknown" if "unknown" in sized and worst in SERVED else worst

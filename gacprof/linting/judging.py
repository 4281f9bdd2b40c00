"""Judge every product of a model on so many ranks, with its tier on the GPU; and what comes of each
number of ranks.

Tiers are by the rules of the libraries' kernels: bf16 products, FP8 with one scale, INT8, NVFP4
where the GPU computes in it. What an engine serves by kernels of its own (blocks, packed words of 4
bits, experts) has no tier here; nor has the embedding, which is no product, nor attention, which is
judged by its heads alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from gacprof.core.errors import GacprofError
from gacprof.core.files import Record
from gacprof.demands.configs import Config, whole_number
from gacprof.demands.evaluate import Judged, judge
from gacprof.demands.model import counts, products
from gacprof.demands.products import Product, Ranks, Size, Sizes
from gacprof.demands.table import OUTCOMES, Outcome
from gacprof.demands.targets import Gpu
from gacprof.kernels.tiers import FP4
from gacprof.linting.reading import config_named
from gacprof.linting.request import LintRequest, Target
from gacprof.rules.target import NoRuleError

TORCH = "2.11"
"""The release whose wheel the rules were read in."""
TOKENS = 1024
DTYPES = {
    "none": "bfloat16", "fp8_tensor": "float8_e4m3", "fp8_channel": "float8_e4m3",
    "int8_w8a8": "int8", "nvfp4": FP4,
}  # fmt: skip

Tiers = Callable[[Judged], "int | None"]


@cache
def tiers(gpu: Gpu) -> Tiers:
    """What gives a product's tier, 1 the best; None where the GPU or the scheme has no rules."""
    if gpu.is_open or gpu.amd:
        return lambda judged: None
    from gacprof.rules import gemm, target

    try:
        about = target(gpu.name, TORCH)
    except GacprofError:
        return lambda judged: None

    @cache
    def tier(n: int, k: int, kind: str) -> int | None:
        try:
            return gemm.tier(about, DTYPES[kind], TOKENS, n, k)
        except NoRuleError:
            return None

    def of(judged: Judged) -> int | None:
        shape, kind = padded_shape(judged), judged.scheme.kind
        return tier(*shape, kind) if shape and kind in DTYPES else None

    return of


def padded_shape(judged: Judged) -> tuple[int, int] | None:
    """(N, K) of a dense product or the head as the engine pads it; None of experts and counts."""
    product = judged.product
    n = judged.padded.get("N", product.n.value)
    k = judged.padded.get("K", product.k.value)
    if product.kind == "vocab" and product.n.whole:
        n = -(-judged.padded.get("global", product.n.whole) // product.n.parts)
    is_product = product.kind == "dense" or product.role == "head"
    return (n, k) if is_product and n and k else None


def worst_tier(judged: Iterable[Judged], tier: Tiers) -> int | None:
    """The worst tier of a model's products; None where no layer's product has one."""
    found = [(one.product.kind, tier(one)) for one in judged]
    if not any(kind == "dense" and each for kind, each in found):
        return None
    return max(each for _, each in found if each)


MOST_DEGREES = 256


def judge_all(
    config: Config,
    request: LintRequest,
    target: Target,
    tp: int | None = None,
    ep: bool | None = None,
    extra: Sequence[Product] = (),
) -> list[Judged]:
    """Every product, judged on ``tp`` ranks, by default the request's."""
    ranks = target.ranks(request, tp, ep)
    setting = target.setting(ranks, config.model_type.removesuffix("_text"))
    made = [*_model(target, ranks), *products(config, ranks), *extra]
    return [judge(product, setting) for product in made]


def judge_counts(
    config: Config, request: LintRequest, target: Target, tp: int, ep: bool
) -> list[Judged]:
    """What ranks share out whole: enough to see that most degrees do not start."""
    ranks = target.ranks(request, tp, ep)
    setting = target.setting(ranks, config.model_type.removesuffix("_text"))
    return [judge(product, setting) for product in counts(Sizes(config, ranks))]


def _model(target: Target, ranks: Ranks) -> Iterable[Product]:
    """What an engine asks of a scheme as a whole."""
    if target.scheme.kind == "bnb":
        size = Size(ranks.tp, ranks.tp)
        yield Product("every quantised linear", "model", "count", "none", size, Size(None))


def extras(request: LintRequest, config: Config) -> list[Product]:
    """An adapter's rank and a draft's vocabulary, where they are asked about."""
    made: list[Product] = []

    def count(name: str, role: str, size: Size) -> None:
        made.append(Product(name, role, "count", "none", size, Size(None)))

    if rank := request.lora_rank or _lora_rank(config):
        if request.lora_rank:
            count("lora rank", "lora_adapter", Size(rank, rank))
        else:
            count("lora max_lora_rank", "lora", Size(rank, rank))
        if request.fully_sharded_loras:
            local = None if rank % request.tp else rank // request.tp
            count("lora rank, fully sharded", "lora_fully_sharded", Size(local, rank, request.tp))
    if request.draft is not None:
        draft = config_named(request.draft).config.get("vocab_size")
        target = config.get("vocab_size")
        if draft and target:
            count("draft vocabulary", "draft_vocab", Size(draft, draft, target))
    return made


def _lora_rank(config: Config) -> int | None:
    """The rank that an adapter's own config says."""
    adapter = config.whole.get("lora")
    if not isinstance(adapter, dict):
        adapter = config.whole if config.whole.get("peft_type") else {}
    return whole_number(adapter, "r", "rank", "lora_rank")


def overall(judged: Iterable[Judged]) -> Outcome:
    """The worst of what is known. *Unknown* where nothing is, or where nothing is wrong with what
    is known but the engine's demands on a product are not."""
    found = list(judged)
    known = [one.outcome for one in found if one.outcome != "unknown"]
    worst: Outcome = max(known, key=OUTCOMES.index, default="unknown")
    is_open = any(one.outcome == "unknown" and one.is_open for one in found)
    return "unknown" if worst == "ok" and is_open else worst


@dataclass(frozen=True)
class Degree(Record):
    """One row of the table of degrees: what comes of ``tp`` ranks. ``product`` is the
    first with that outcome, ``stopped_by`` the same where it is refused; ``padded_share`` what
    padding adds to all weights;
    ``bytes_per_rank`` are the weights', None where the config does not say;
    ``worst_tier`` by the rules of the GPU, 1 the best."""

    tp: int
    ep: bool
    outcome: Outcome
    starts: bool
    product: str
    stopped_by: str
    why: str
    padded_share: float
    falls_back: int
    bytes_per_rank: int | None
    worst_tier: int | None


def degrees(
    config: Config, request: LintRequest, target: Target, extra: Sequence[Product], tier: Tiers
) -> Iterator[Degree]:
    """Each degree of tensor parallelism from 1 to the heads, of a model with experts also with
    expert parallelism."""
    heads = config.get("heads") or config.get("mamba_heads") or request.tp
    last = min(max(heads, request.tp), MOST_DEGREES)
    if target.engine.splits == "layers":
        last = 1
    has_experts = bool(config.get("experts")) and target.engine.experts != "whole"
    for tp in range(1, last + 1):
        for ep in (False, True) if has_experts and tp > 1 else (request.ep,):
            judged = judge_counts(config, request, target, tp, ep)
            if overall(judged) != "refused" or tp == request.tp:
                judged = judge_all(config, request, target, tp, ep, extra)
            yield degree(tp, ep, judged, tier)


def degree(tp: int, ep: bool, judged: Sequence[Judged], tier: Tiers) -> Degree:
    outcome = overall(judged)
    first = next((one for one in judged if one.findings and one.outcome == outcome), None)
    name, starts = first.product.name if first else "", outcome != "refused"
    weights = [weight(one) for one in judged]
    plain = sum(w[0] for w in weights if w is not None)
    padded = sum(w[1] for w in weights if w is not None)
    known = all(w is not None for w in weights) and plain > 0
    return Degree(
        tp,
        ep,
        outcome,
        starts,
        name,
        "" if starts else name,
        first.worst.why if first and first.worst else "",
        round(padded / plain - 1, 4) if plain else 0.0,
        sum(one.outcome == "falls_back" for one in judged),
        round(padded) if known else None,
        worst_tier(judged, tier) if starts else None,
    )


def weight(judged: Judged) -> tuple[float, float] | None:
    """(bytes, bytes when padded) that a rank holds of a product in all layers; None where the
    config does not say."""
    product = judged.product
    if product.kind == "count" or product.layers == 0:
        return 0.0, 0.0
    n, k = product.n.value, product.k.value
    if product.kind == "vocab":
        n = -(-(product.n.whole or 0) // product.n.parts)
    if judged.scheme.kind == "unknown" or product.layers is None or product.copies is None:
        return None
    if not n or not k:
        return None
    shards = 2 if product.role == "expert_gate_up" else 1
    plain = n * k * shards * product.layers * product.copies * judged.scheme.bits / 8
    return plain, plain * (1 + judged.extra)

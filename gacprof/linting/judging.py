"""Judge every product of a model on so many ranks, with its tier on the GPU; and what comes of each
number of ranks.

Tiers are by the rules of the libraries' kernels: bf16 products, FP8 with one scale, INT8, NVFP4
where the GPU computes in it. What an engine serves by kernels of its own (blocks, packed words of 4
bits, experts) has no tier here; nor has the embedding, which is no product, nor attention, which is
judged by its heads alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

from gacprof.core.errors import GacprofError, LintError
from gacprof.core.files import Record
from gacprof.demands.configs import Config, whole_number
from gacprof.demands.evaluate import JudgedProduct, Setting, judge
from gacprof.demands.model import counts, products
from gacprof.demands.products import ModelProduct, Ranks, Size, Sizes
from gacprof.demands.quantisation import NONE, Scheme, named_sizes, of_config, scheme
from gacprof.demands.table import OUTCOMES, Engine, Outcome, engine
from gacprof.demands.targets import Gpu, gpu, version
from gacprof.kernels.tiers import FP4
from gacprof.linting.reading import config_named
from gacprof.linting.request import LintRequest
from gacprof.rules.target import NoRuleError

TORCH = "2.11"
"""The release whose wheel the rules were read in."""
TOKENS = 1024
DTYPES = {
    "none": "bfloat16", "fp8_tensor": "float8_e4m3", "fp8_channel": "float8_e4m3",
    "int8_w8a8": "int8", "nvfp4": FP4,
}  # fmt: skip

Tiers = Callable[[JudgedProduct], "int | None"]


@dataclass(frozen=True)
class LintCase:
    """A model's config, and what it is judged under: a request whose names are looked up."""

    config: Config
    request: LintRequest
    engine: Engine
    gpu: Gpu
    scheme: Scheme

    def judge(self, tp: int | None = None, ep: bool | None = None) -> list[JudgedProduct]:
        """Every product, judged on ``tp`` ranks, by default the request's."""
        ranks = self.ranks(tp, ep)
        made = [*self._whole(ranks), *products(self.config, ranks), *self._extras]
        return self._judge(made, ranks)

    def judge_counts(self, tp: int, ep: bool) -> list[JudgedProduct]:
        """What ranks share out whole: enough to see that most degrees do not start."""
        ranks = self.ranks(tp, ep)
        return self._judge(counts(Sizes(self.config, ranks)), ranks)

    def _judge(self, made: Iterable[ModelProduct], ranks: Ranks) -> list[JudgedProduct]:
        family = self.config.model_type.removesuffix("_text")
        setting = Setting(self.engine, self.gpu, self.scheme, ranks, family)
        return [judge(product, setting) for product in made]

    @cached_property
    def judged(self) -> list[JudgedProduct]:
        """Every product on the request's ranks."""
        return self.judge()

    @property
    def outcome(self) -> Outcome:
        return overall(self.judged)

    @property
    def tier(self) -> Tiers:
        return tiers(self.gpu)

    @property
    def worst_tier(self) -> int | None:
        return worst_tier(self.judged, self.tier)

    @property
    def rank(self) -> tuple[int, int]:
        """Less is better: the outcome, then the tier."""
        return rank(self.outcome, self.worst_tier)

    def with_sizes(self, changes: Mapping[str, int]) -> LintCase:
        return replace(self, config=self.config.with_sizes(changes))

    def ranks(self, tp: int | None = None, ep: bool | None = None) -> Ranks:
        """Who holds what with ``tp`` ranks, by default the request's."""
        request = self.request
        tp = request.tp if tp is None else tp
        ep = request.ep if ep is None else ep
        if self.engine.splits == "layers":
            return Ranks(fused=self.engine.fused)
        if self.engine.experts == "whole under EP":
            parallel = tp * request.dp if ep else 1
            experts = 1 if ep else tp * request.dp
            shared = 1 if ep and request.dp > 1 else tp
        else:
            asked = request.ep_size if tp == request.tp else None
            parallel = (asked or tp) if ep else 1
            experts, shared = max(1, tp // parallel), tp
        by_blocks = self.scheme.kind == "mxfp4"
        return Ranks(
            tp, experts, shared, parallel, self.engine.fused, by_blocks, self.engine.uneven
        )

    def _whole(self, ranks: Ranks) -> Iterator[ModelProduct]:
        """What an engine asks of a scheme as a whole."""
        if self.scheme.kind == "bnb":
            yield _count("every quantised linear", "model", ranks.tp)

    @cached_property
    def _extras(self) -> list[ModelProduct]:
        """An adapter's rank and a draft's vocabulary, where they are asked about."""
        request, made = self.request, list[ModelProduct]()
        if rank := request.lora_rank or _lora_rank(self.config):
            if request.lora_rank:
                made.append(_count("lora rank", "lora_adapter", rank))
            else:
                made.append(_count("lora max_lora_rank", "lora", rank))
            if request.fully_sharded_loras:
                name, parts = "lora rank, fully sharded", request.tp
                local = None if rank % parts else rank // parts
                made.append(_count(name, "lora_fully_sharded", rank, parts, local))
        if request.draft is not None:
            draft = config_named(request.draft).config.get("vocab_size")
            own = self.config.get("vocab_size")
            if draft and own:
                made.append(_count("draft vocabulary", "draft_vocab", draft, own, draft))
        return made


def _count(
    name: str, role: str, whole: int, parts: int = 1, local: int | None = None
) -> ModelProduct:
    size = Size(whole if parts == 1 else local, whole, parts)
    return ModelProduct(name, role, "count", "none", size, Size(None))


def _lora_rank(config: Config) -> int | None:
    """The rank that an adapter's own config says."""
    adapter = config.whole.get("lora")
    if not isinstance(adapter, dict):
        adapter = config.whole if config.whole.get("peft_type") else {}
    return whole_number(adapter, "r", "rank", "lora_rank")


def case_of(request: LintRequest, config: Config) -> LintCase:
    """Raises :class:`LintError` for an engine, a GPU or a quantisation that is not known, naming
    those that there are."""
    if request.ep and not config.meaning.expert:
        raise LintError("expert parallelism (--ep) shares out experts, and the config has none")
    name, _, pinned = request.engine.partition("==")
    if pinned and request.version and pinned != request.version:
        raise LintError(f"two versions are given: {pinned} and {request.version}")
    found = engine(name, [Path(path) for path in request.demands])
    own = of_config(config.whole) or of_config(config.values)
    given = scheme(request.quant) if request.quant is not None else None
    if given is None or (own is not None and _names(given, own)):
        given = _regrouped(own or NONE, request.quant)  # it says ignored modules too
    at = version(pinned or request.version)
    return LintCase(config, request, found.of(at), gpu(request.gpu), given)


def _names(given: Scheme, own: Scheme) -> bool:
    """Whether a name that was asked for means the config's own scheme: ``--quant fp8`` of a config
    whose FP8 is in blocks names the method, not another scheme."""
    is_method = given.name.lower() in ("fp8", "modelopt") and own.kind.startswith("fp8")
    return own.kind == given.kind or given.kind == "unknown" or is_method


def _regrouped(own: Scheme, asked: str | None) -> Scheme:
    """The config's own scheme, with the group or block where one is asked for by number."""
    sizes = {"group": own.group, "block": own.block} | named_sizes(asked or "")
    if (sizes["group"], sizes["block"]) == (own.group, own.block):
        return own
    return replace(own, name=asked or own.name, group=sizes["group"], block=sizes["block"] or 0)


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

    def of(judged: JudgedProduct) -> int | None:
        shape, kind = padded_shape(judged), judged.scheme.kind
        return tier(*shape, kind) if shape and kind in DTYPES else None

    return of


def padded_shape(judged: JudgedProduct) -> tuple[int, int] | None:
    """(N, K) of a dense product or the head as the engine pads it; None of experts and counts."""
    product = judged.product
    n = judged.padded.get("N", product.n.value)
    k = judged.padded.get("K", product.k.value)
    if product.kind == "vocab" and product.n.whole:
        n, uneven = divmod(judged.padded.get("global", product.n.whole), product.n.parts)
        n = None if uneven else n
    is_product = product.kind == "dense" or product.role == "head"
    return (n, k) if is_product and n and k else None


def worst_tier(judged: Iterable[JudgedProduct], tier: Tiers) -> int | None:
    """The worst tier of a model's products; None where no layer's product has one."""
    found = [(one.product.kind, tier(one)) for one in judged]
    if not any(kind == "dense" and each for kind, each in found):
        return None
    return max(each for _, each in found if each)


def rank(outcome: Outcome, tier: int | None) -> tuple[int, int]:
    """What outcomes are compared by, then tiers: less is better."""
    return OUTCOMES.index(outcome), tier or 1


def overall(judged: Iterable[JudgedProduct]) -> Outcome:
    """The worst of what is known. *Unknown* where nothing is, or where what is known
    is served but the engine's demands on a product are not, or may refuse it."""
    found = list(judged)
    known = [one.outcome for one in found if one.outcome != "unknown"]
    worst: Outcome = max(known, key=OUTCOMES.index, default="unknown")
    unknown = [one for one in found if one.outcome == "unknown" and one.is_open]
    may_fail = worst in ("pads", "falls_back") and any(one.findings for one in unknown)
    return "unknown" if may_fail or (worst == "ok" and unknown) else worst


MOST_DEGREES = 256


@dataclass(frozen=True)
class Degree(Record):
    """One row of the table of degrees: what comes of ``tp`` ranks. ``product`` is the
    first with that outcome, ``stopped_by`` the same where it is refused; ``padded_share`` what
    padding adds to all weights; ``bytes_per_rank`` are the weights', None where the config does not
    say; ``worst_tier`` by the rules of the GPU, 1 the best."""

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


def degrees(case: LintCase) -> Iterator[Degree]:
    """Each degree of tensor parallelism from 1 to the heads, of a model with experts also with
    expert parallelism."""
    config, request = case.config, case.request
    heads = config.get("heads") or config.get("mamba_heads") or request.tp
    last = 1 if case.engine.splits == "layers" else min(max(heads, request.tp), MOST_DEGREES)
    has_experts = bool(config.get("experts")) and case.engine.experts != "whole"
    for tp in range(1, last + 1):
        for ep in (False, True) if has_experts and tp > 1 else (request.ep,):
            judged = case.judge_counts(tp, ep)
            if overall(judged) != "refused" or tp == request.tp:
                judged = case.judge(tp, ep)
            yield _degree(tp, ep, judged, case.tier)


def _degree(tp: int, ep: bool, judged: Sequence[JudgedProduct], tier: Tiers) -> Degree:
    outcome = overall(judged)
    first = next((one for one in judged if one.findings and one.outcome == outcome), None)
    name, starts = first.product.name if first else "", outcome != "refused"
    plain, padded, known = held(judged)
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
        round(padded) if known and plain else None,
        worst_tier(judged, tier) if starts else None,
    )


def held(judged: Iterable[JudgedProduct]) -> tuple[float, float, bool]:
    """Bytes that a rank holds of all products whose size is known, the same padded, and whether
    these are all products."""
    weights = [_weight(one) for one in judged]
    known = [weight for weight in weights if weight is not None]
    plain, padded = (sum(weight[i] for weight in known) for i in (0, 1))
    return plain, padded, len(known) == len(weights)


def _weight(judged: JudgedProduct) -> tuple[float, float] | None:
    """(bytes, bytes when padded) that a rank holds of a product in all layers; None where the
    config does not say."""
    product = judged.product
    if product.kind == "count" or product.layers == 0:
        return 0.0, 0.0
    n = product.n.value
    if product.kind == "vocab":
        n = -(-(product.n.whole or 0) // product.n.parts)
    elements = _elements(product, n)
    if judged.scheme.kind == "unknown" or elements is None:
        return None
    plain = elements * judged.scheme.bits / 8
    return plain, plain * (1 + judged.extra)


def _elements(product: ModelProduct, n: int | None) -> float | None:
    """Weights of a product with ``n`` outputs in all of its layers."""
    if not n or not product.k.value or product.layers is None or product.copies is None:
        return None
    gate = 2 if product.role == "expert_gate_up" else 1
    return n * product.k.value * gate * product.layers * product.copies


def parameters(config: Config) -> float | None:
    """Weights in all products; None where the config does not say."""
    total = 0.0
    for product in products(config, Ranks()):
        if product.kind == "count" or product.layers == 0:
            continue
        n = product.n.whole if product.kind == "vocab" else product.n.value
        elements = _elements(product, n)
        if elements is None:
            return None
        total += elements
    return total or None

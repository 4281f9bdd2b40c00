"""What serving engines demand of a checkpoint's sizes, as presets: ``vllm==0.32,tp=4,fp8-block``.

A map says which sizes a device serves fast. An engine has demands of its own, of divisibility: what
breaks them is refused, padded at load time or stored in another type. They are data
(:mod:`gacprof.demands`), the same that ``gacprof lint`` reads; a plan under a preset gets only
sizes that meet the map *and* all of them.

A demand is on an axis of a product ``y[M, N] = x[M, K] · W[N, K]ᵀ``, as one shard of tensor
parallelism holds it: q, k, v, gate and up are split along N, o and down along K. So
``tp=4,fp8-block`` asks widths for multiples of 4 · 128. A plan chooses dims, which have to be
multiples of what every axis asks that they feed; axes that no dim feeds are what they are, and are
refused or noted where they break a demand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, lcm
from typing import Literal

from gacprof.checkpoint.inventory import Attention, Dim, Feed, Inventory, Module
from gacprof.checkpoint.products import check_heads, shards_of, split_of
from gacprof.core.errors import LintError, PlanError
from gacprof.demands.evaluate import Setting, judge, multiples
from gacprof.demands.model import count
from gacprof.demands.products import Product, Ranks, Size
from gacprof.demands.quantisation import GGUF as GGUF_TYPES
from gacprof.demands.quantisation import NONE, Scheme, scheme
from gacprof.demands.table import Engine, engine
from gacprof.demands.targets import gpu, version

Axis = Literal["N", "K"]
AXES: tuple[Axis, ...] = ("N", "K")
MARLIN_GROUPS = (-1, 32, 64, 128)
"""Group sizes of vLLM's Marlin kernels (marlin_utils.py, MARLIN_SUPPORTED_GROUP_SIZES)."""
NO_FACTORS = "holds one weight a linear layer"
PAIRS_ALONE = "the export of factor pairs runs on one shard"
ENGINES: Mapping[str, tuple[str, ...]] = {
    "transformers": (),
    "vllm": ("tp=N", "group=N", "gpu=NAME", "marlin", "amx", "a quantisation"),
    "gptq": ("tp=N", "group=N", "gpu=NAME", "marlin"),
    "awq": ("tp=N", "group=N", "gpu=NAME", "marlin"),
    "sglang": ("tp=N", "group=N", "gpu=NAME", "marlin", "transformers", "a quantisation"),
    "trt-llm": ("tp=N", "gpu=NAME", "a quantisation"),
    "mlx": (),
    "gguf": ("one type of GGUF",),
    "llama.cpp": ("one type of GGUF",),
}
"""Engine → its options; gptq and awq are vLLM with such weights."""
NAMED = {"gptq": "vllm", "awq": "vllm", "gguf": "llama.cpp"}
BY_FFN_MULT, GGUF = ("sglang", "trt-llm", "mlx"), ("gguf", "llama.cpp")
"""Engines that read Nemotron-NAS configs, widths by ffn_mult; that read GGUF files."""


@dataclass(frozen=True)
class Preset:
    """An engine with options, as its demands are asked for. ``ffn_mult``: widths of layers are
    stored in steps of 256. ``no_factors`` says why the engine cannot hold factor pairs; empty
    where it can. ``text`` is what the user wrote."""

    text: str
    setting: Setting
    ffn_mult: bool = False
    no_factors: str = ""

    @property
    def tp(self) -> int:
        """The number of shards."""
        return self.setting.ranks.tp


def parse_preset(text: str) -> Preset:
    """``vllm==0.32,tp=4,fp8-block`` as a :class:`Preset`. Raises :class:`PlanError` for one that
    there is not, naming those that there are."""
    named, *words = [part.strip().lower() for part in text.split(",")]
    name, _, release = named.partition("==")
    if name not in ENGINES:
        raise PlanError(f"no preset is called '{named}': there are {', '.join(ENGINES)}")
    options = _options(text, name, words)
    tp = int(options.get("tp", 1))
    # Marlin's kernels serve all GPUs that have no faster ones: Ampere's for example.
    chip = options.get("gpu", "a100" if "marlin" in options else "any")
    try:
        table = (
            Engine("mlx", "", covers=frozenset({"none"}))
            if name == "mlx"
            else engine(NAMED.get(name, name))
        )
        found, on = table.of(version(release)), gpu("cpu-amx" if "amx" in options else chip)
    except LintError as error:
        raise PlanError(f"the preset '{text}': {error}") from None
    weights = _scheme(text, name, options)
    if weights.kind not in found.covers:
        raise PlanError(f"the preset '{text}': what {name} asks of {weights.name} was not read")
    setting = Setting(found, on, weights, Ranks(tp, tp, tp, fused=found.fused))
    if name in GGUF:
        return Preset(text, setting, no_factors=f"a GGUF file {NO_FACTORS}")
    if "transformers" in options:
        if tp > 1:
            raise PlanError(f"the preset '{text}': custom code runs on one shard: leave out tp")
        return Preset(text, setting)
    if name in BY_FFN_MULT:
        how = "; SGLang's --model-impl transformers takes them (preset sglang,transformers)"
        message = f"a Nemotron-NAS config {NO_FACTORS}{how if name == 'sglang' else ''}"
        return Preset(text, setting, True, message)
    return Preset(text, setting, no_factors=PAIRS_ALONE if tp > 1 else "")


def _options(text: str, name: str, words: Sequence[str]) -> dict[str, str]:
    """The options with their values, all of them the engine's own; a quantisation as ``quant``."""
    options: dict[str, str] = {}
    for word in words:
        option, equals, value = word.partition("=")
        if option in options or not option or (equals and not value):
            raise PlanError(f"the preset '{text}' is not understood at '{word}'")
        custom = "transformers" in (*options, option)
        taken = ("tp=N", "transformers") if custom else ENGINES[name]
        if f"{option}=N" in taken:
            if not re.fullmatch(r"[1-9]\d{0,5}", value):
                raise PlanError(
                    f"the preset '{text}': write {option}=N with a positive whole number"
                )
        elif option in taken and value:
            raise PlanError(f"the preset '{text}': {option} takes no value")
        elif option not in taken and f"{option}=NAME" not in taken:
            if "quant" in options:
                kind = "types" if name in GGUF else "quantisations"
                both = f"{options['quant']} and {word}"
                raise PlanError(f"the preset '{text}' names two {kind}: {both}")
            if _quantisation(name, word, taken) is None:
                listed = ", ".join(GGUF_TYPES) if name in GGUF else ", ".join(taken) or "none"
                listed = f"one type: {listed}" if name in GGUF else listed
                raise PlanError(
                    f"the preset '{text}': {name} has no option '{option}' (it has {listed})"
                )
            option, value = "quant", word
        options[option] = value
    return options


def _quantisation(name: str, word: str, taken: Sequence[str]) -> Scheme | None:
    """How weights are stored by that word; None where it is none that the engine takes."""
    if name not in GGUF and "a quantisation" not in taken:
        return None
    try:
        found = scheme(f"gguf_{word}" if name in GGUF else word)
    except LintError:
        return None
    return found if name not in GGUF or found.kind == "gguf" else None


def _scheme(text: str, name: str, options: Mapping[str, str]) -> Scheme:
    """How weights are stored. Marlin alone is weights with one scale a row."""
    quant = options.get("quant")
    found = (_quantisation(name, quant, ENGINES[name]) if quant else None) or NONE
    kind = name if name in ("gptq", "awq") else "gptq"
    weights_only = name == kind or "marlin" in options or "group" in options
    if weights_only and found is NONE and name not in GGUF:
        group = options.get("group") or ("128" if name == kind else "-1")
        found = Scheme(kind, f"{kind}_g{group}", int(group))
    if "marlin" in options and found.group not in MARLIN_GROUPS:
        listed = ", ".join(str(each) for each in MARLIN_GROUPS if each > 0)
        raise PlanError(f"the preset '{text}': Marlin kernels know groups of {listed} only")
    return found


@dataclass(frozen=True)
class Demand:
    """A size has to be a multiple of ``multiple``. ``otherwise`` says what the engine does with
    another; empty where it refuses it."""

    multiple: int
    why: str
    source: str
    otherwise: str = ""


FFN_MULT = Demand(
    256,
    "a width per layer is stored as a multiple of the hidden size and rounded up to 256",
    "DeciLM's ffn_mult: convert_hf_to_gguf.py (DeciModel), TensorRT-LLM nemotron_nas",
)


@dataclass(frozen=True)
class Required:
    """All that is demanded of one size."""

    demands: tuple[Demand, ...] = ()

    @property
    def multiple(self) -> int:
        return lcm(*(demand.multiple for demand in self.demands))

    @property
    def reasons(self) -> str:
        return "; ".join(dict.fromkeys(demand.why for demand in self.demands))

    def __and__(self, other: Required) -> Required:
        return Required(tuple(dict.fromkeys((*self.demands, *other.demands))))


@dataclass(frozen=True)
class Requirements:
    """A preset on one checkpoint: what each adjustable dim has to be a multiple of, by name.

    ``unmet`` are notes on sizes that no plan changes and that break a demand which the engine gets
    around. ``dense`` are the modules whose product, were their factors multiplied out, meets all
    demands.
    """

    preset: Preset | None = None
    by_dim: Mapping[str, Required] = field(default_factory=dict)
    unmet: tuple[str, ...] = ()
    dense: frozenset[str] = frozenset()

    def of(self, members: Iterable[Dim]) -> Required:
        """What dims that share one size have to be a multiple of, all together."""
        found = Required()
        for dim in members:
            found &= self.by_dim.get(dim.name, Required())
        return found

    def allows_dense(self, module: str) -> bool:
        return self.preset is None or module in self.dense


def requirements(inventory: Inventory, text: str | None) -> Requirements:
    """What a preset asks of each adjustable dim of a checkpoint.

    Raises :class:`PlanError` for a preset that is none, for factor pairs that the engine cannot
    hold, and for sizes that no plan changes and that the engine refuses.
    """
    if text is None:
        return Requirements()
    preset = parse_preset(text)
    factored = [module.name for module in inventory.modules if len(module.gemms) > 1]
    if factored and preset.no_factors:
        raise PlanError(
            f"the preset '{text}' cannot express the factor pair of {factored[0]}"
            f"{_more(factored)}: {preset.no_factors}; multiply the pairs out first ('gacprof "
            "realign MODEL --fuse --out MERGED')"
        )
    refuse_counts(inventory, preset)
    by_dim: dict[str, Required] = {}
    unmet: dict[str, list[str]] = {}
    asked = [
        each
        for module in inventory.modules
        for axis in AXES
        for each in _on_axis(inventory, preset, module, axis, unmet)
    ]
    widths = [dim for dim in inventory.dims if dim.kind == "width" and dim.role != "tower"]
    for dim in widths if preset.ffn_mult else ():
        if dim.adjustable:
            asked.append((dim.name, FFN_MULT))
        elif dim.size % FFN_MULT.multiple:
            raise _cannot(preset, f"{dim.name} is {dim.size}", FFN_MULT)
    for name, demand in asked:
        by_dim[name] = by_dim.get(name, Required()) & Required((demand,))
    notes = (f"{text}: {places[0]}{_more(places)}" for places in unmet.values())
    dense = frozenset(m.name for m in inventory.modules if _meets_dense(inventory, preset, m))
    return Requirements(preset, by_dim, tuple(notes), dense)


def _more(places: Sequence[str]) -> str:
    return f" ({len(places) - 1} more like it)" if len(places) > 1 else ""


def refuse_counts(inventory: Inventory, preset: Preset) -> None:
    """Raise :class:`PlanError` for heads or a vocabulary that the engine's ranks cannot share."""

    def refused(attention: Attention, tp: int) -> str | None:
        setting = replace(preset.setting, scheme=NONE, ranks=Ranks(tp, tp, tp))
        numbers = {"heads": attention.heads, "kv_heads": attention.kv_heads}
        for role, number in numbers.items():
            worst = judge(count(role, role, number, tp), setting).worst
            if worst is not None and worst.outcome == "refused":
                of = " of keys and values" if role == "kv_heads" else ""
                return f"{number} heads{of} ({worst.demand.source})"
        return None

    check_heads(inventory, preset.tp, refused, f"the preset '{preset.text}': ")
    for module in inventory.modules:
        if module.role in ("embedding", "head") and len(module.gemms) == 1:
            n = Size(None, module.out_features, preset.tp)
            made = Product(module.name, module.role, "vocab", "column", n, Size(None))
            worst = judge(made, preset.setting).worst
            if worst and worst.outcome == "refused" and worst.axis == "global":
                raise PlanError(
                    f"the preset '{preset.text}': the vocabulary of {module.name}: {worst.why} "
                    f"({worst.demand.source})"
                )


def _on_axis(
    inventory: Inventory,
    preset: Preset,
    module: Module,
    axis: Axis,
    unmet: dict[str, list[str]],
) -> Iterator[tuple[str, Demand]]:
    """What is asked of each adjustable dim on an axis of the module's products.

    Where several add up on it (PaLU's groups), each has to be a multiple. What else is on the axis
    is refused, or noted in ``unmet`` by demand, where it breaks one.
    """
    for gemm in module.gemms:
        feed = Feed(gemm.weight, axis)
        feeding = [dim for dim in inventory.fed_by(gemm.weight) if dim.adjustable]
        free = {d.name: d.feeds.count(feed) for d in feeding if feed in d.feeds}
        sizes = (times * inventory.dim(name).size for name, times in free.items())
        fixed = int(getattr(gemm, axis)) - sum(sizes)
        chosen = {f.axis for d in feeding for f in d.feeds if f.weight == gemm.weight}
        known = {each: None if each in chosen else int(getattr(gemm, each)) for each in AXES}
        for demand in _demanded(inventory, preset, module, axis, known):
            for name, times in free.items():
                yield name, replace(demand, multiple=demand.multiple // gcd(demand.multiple, times))
            if fixed % demand.multiple:
                where = f"the {'outputs' if axis == 'N' else 'inputs'} of {gemm.weight} are {fixed}"
                if not demand.otherwise:
                    raise _cannot(preset, where, demand, ": ask for smaller groups or fewer shards")
                unmet.setdefault(demand.why, []).append(
                    f"{where}, no multiple of {demand.multiple} ({demand.why}), and no plan "
                    f"changes that: {demand.otherwise}"
                )


def _demanded(
    inventory: Inventory,
    preset: Preset,
    module: Module,
    axis: Axis,
    sizes: Mapping[Axis, int | None],
) -> Iterator[Demand]:
    """What an axis of a module's product has to be a multiple of over all shards; ``sizes`` are
    what it has on both sides, None where a plan may choose."""
    product = _product(inventory, preset, module, sizes)
    side, name = {"column": "N", "row": "K"}.get(product.split, ""), preset.setting.engine.name
    parts = product.k.parts if side == "K" else product.n.parts
    for on, multiple, demand in multiples(product, preset.setting):
        if axis not in (on, side if on == "global" else ""):
            continue
        if axis == "K" and product.kind == "vocab" and on == "global":
            continue
        why = demand.why.format(multiple=multiple) or f"{name}: {demand.id}"
        outcomes = {"pads": "pads it with zeros", "falls_back": f"falls back to {demand.kernel}"}
        gets_by = outcomes.get(demand.outcome, "")
        shards = parts if on == side else 1
        yield Demand(multiple * shards, why, demand.source, f"{name} {gets_by}" if gets_by else "")


def _product(
    inventory: Inventory, preset: Preset, module: Module, sizes: Mapping[Axis, int | None]
) -> Product:
    """A module's product as one shard holds it. Factor pairs are not split."""
    role, split = module.role.removeprefix("expert_"), split_of(module)
    on_n, on_k = shards_of(module, preset.tp, inventory.attentions)

    def local(size: int | None, shards: int) -> Size:
        return Size(None if size is None or size % shards else size // shards, size, shards)

    n, k = local(sizes["N"], on_n), local(sizes["K"], on_k)
    kind = "expert" if module.role != role else "dense"
    kind = "vocab" if role in ("embedding", "head") else kind
    shards = ((role, n),) if role in ("q", "k", "v", "gate", "up") and split == "column" else ()
    return Product(module.name, module.role, kind, split, n, k, shards=shards)


def _cannot(preset: Preset, where: str, demand: Demand, hint: str = "") -> PlanError:
    return PlanError(
        f"the preset '{preset.text}': {where}, no multiple of {demand.multiple} ({demand.why}; "
        f"{demand.source}), and no plan changes that{hint}"
    )


def _meets_dense(inventory: Inventory, preset: Preset, module: Module) -> bool:
    """Whether the module's product with its factors multiplied out meets the demands that the
    engine does not get around. An axis that a width feeds does, by the width's own."""
    if not module.gemms:
        return True
    known: dict[Axis, int | None] = {"N": module.out_features, "K": module.in_features}
    ends = {"N": module.gemms[-1].weight, "K": module.gemms[0].weight}
    return all(
        (known[axis] or 0) % demand.multiple == 0
        or bool(demand.otherwise)
        or any(
            d.kind == "width" and Feed(ends[axis], axis) in d.feeds
            for d in inventory.fed_by(ends[axis])
        )
        for axis in AXES
        for demand in _demanded(inventory, preset, module, axis, known)
    )

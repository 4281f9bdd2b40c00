"""What serving engines demand of sizes, as presets: ``vllm``, ``vllm,tp=4,marlin``, ``gguf,q4_k``.

A map says which sizes a device serves fast. An engine has demands of its own, of divisibility: what
breaks them is refused, padded at load time or stored in another type. A preset is a list of
:class:`Demand`, each with the thread or the source file that says so; a plan under a preset gets
only sizes that meet the map *and* all demands.

A demand is on an axis of a product ``y[M, N] = x[M, K] · W[N, K]ᵀ``, as one shard of tensor
parallelism holds it: q, k, v, gate and up are split along N, o and down along K. So
``tp=4,marlin`` asks widths for multiples of 4 · 128.

Demands are on products, a plan chooses dims. What a dim has to be a multiple of follows from every
axis that it feeds; axes that no dim feeds are what they are, and are refused or noted where they
break a demand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, lcm
from typing import Literal

from gacprof.checkpoint.inventory import Dim, Feed, Gemm, Inventory, Module
from gacprof.core.errors import PlanError

Axis = Literal["N", "K", "width"]
AXES: tuple[Literal["N", "K"], ...] = ("N", "K")

MARLIN = "vLLM marlin_utils.py (GPTQ_MARLIN_MIN_THREAD_N, _K); vllm-project/vllm#36807, #43910"
MARLIN_PADS = "vLLM pads it with zeros (vllm-project/vllm#45295) or takes a slower kernel"
MARLIN_GROUPS = (32, 64, 128)
"""Group sizes of vLLM's Marlin kernels (marlin_utils.py, MARLIN_SUPPORTED_GROUP_SIZES)."""
GROUPS = "vllm-project/vllm#21695, vllm-project/llm-compressor#57, compressed-tensors#447"
AMX = "vLLM layers/utils.py (check_cpu_sgl_kernel)"
NO_AMX = "vLLM takes oneDNN's product for it"
PACKED = "vllm-project/vllm#11671 (gptq.py, create_weights)"
PACK = 8
"""4-bit weights in one 32-bit word."""
GROUP = 128
"""Group size of GPTQ and AWQ by default, as GPTQModel, AutoAWQ and llm-compressor have it."""
SHARDS = "vLLM distributed/utils.py (divide); linear.py, QKVParallelLinear"
FFN_MULT = "DeciLM's ffn_mult: convert_hf_to_gguf.py (DeciModel), TensorRT-LLM nemotron_nas"
ROUNDED_UP = "a width per layer is stored as a multiple of the hidden size and rounded up to 256"
BLOCKS = "ggml-org/llama.cpp#1921, #3747"
FALLS_BACK = "llama.cpp stores such a tensor in a larger type (ggml-org/llama.cpp#3747)"
NO_FACTORS = "holds one weight a linear layer"

BLOCK_TYPES = {"f32": 1, "f16": 1, "bf16": 1}
BLOCK_TYPES |= dict.fromkeys(("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4"), 32)
BLOCK_TYPES |= dict.fromkeys(
    (
        "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s",
        "iq3_xxs", "iq3_s", "iq4_xs", "tq1_0", "tq2_0",
    ),
    256,
)  # fmt: skip
"""GGUF's types → weights in a block of a row (gguf-py constants.py, GGML_QUANT_SIZES)."""


@dataclass(frozen=True)
class Demand:
    """Sizes on ``axis`` have to be multiples of ``multiple`` in every shard.

    ``axis`` is N or K of a product, or ``width``: an MLP's width itself. ``otherwise`` says what
    the engine does with another size; empty where it refuses it. ``everywhere``: of the
    embedding and the head too, which weight-only quantisation leaves alone.
    """

    axis: Axis
    multiple: int
    why: str
    source: str
    otherwise: str = ""
    everywhere: bool = False


@dataclass(frozen=True)
class Preset:
    """An engine with options. ``tp`` is the number of shards, ``no_factors`` says why the engine
    cannot hold factor pairs; empty where it can. ``text`` is what the user wrote."""

    text: str
    demands: tuple[Demand, ...] = ()
    tp: int = 1
    no_factors: str = ""


ENGINES: Mapping[str, tuple[str, ...]] = {
    "transformers": (),
    "vllm": ("tp=N", "group=N", "marlin", "amx"),
    "gptq": ("tp=N", "group=N", "marlin"),
    "awq": ("tp=N", "group=N", "marlin"),
    "sglang": ("tp=N", "group=N", "marlin", "transformers"),
    "trt-llm": ("tp=N", "group=N"),
    "mlx": (),
    "gguf": tuple(BLOCK_TYPES),
    "llama.cpp": tuple(BLOCK_TYPES),
}
"""Engine → its options."""
QUANTISED, BY_FFN_MULT, GGUF = ("gptq", "awq"), ("sglang", "trt-llm", "mlx"), ("gguf", "llama.cpp")
"""Engines whose weights have groups by default; that read Nemotron-NAS configs, widths by
ffn_mult; that read GGUF files."""


def parse_preset(text: str) -> Preset:
    """``vllm,tp=4,marlin`` as a :class:`Preset`. Raises :class:`PlanError` for one that there is
    not, naming those that there are."""
    engine, *words = [part.strip().lower() for part in text.split(",")]
    if engine not in ENGINES:
        raise PlanError(f"no preset is called '{engine}': there are {', '.join(ENGINES)}")
    options = _options(text, engine, words)
    tp = int(options.get("tp", 1))
    if engine in GGUF:
        return Preset(text, _of_blocks(text, options), no_factors=f"a GGUF file {NO_FACTORS}")
    if "transformers" in options:
        if tp > 1:
            raise PlanError(f"the preset '{text}': custom code runs on one shard: leave out tp")
        return Preset(text)
    demands = [*_of_weights(text, options, GROUP if engine in QUANTISED else None)]
    no_factors = "the export of factor pairs runs on one shard" if tp > 1 else ""
    if engine in BY_FFN_MULT:
        demands = [Demand("width", 256, ROUNDED_UP, FFN_MULT), *demands]
        how = "; SGLang's --model-impl transformers takes them (preset sglang,transformers)"
        no_factors = f"a Nemotron-NAS config {NO_FACTORS}{how if engine == 'sglang' else ''}"
    return Preset(text, tuple(demands), tp, no_factors)


def _options(text: str, engine: str, words: Sequence[str]) -> dict[str, str]:
    """The options with their values, all of them the engine's own."""
    options: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name in options or not name or (equals and not value):
            raise PlanError(f"the preset '{text}' is not understood at '{word}'")
        options[name] = value
    known = ENGINES[engine]
    taken = ("tp=N", "transformers") if "transformers" in options else known
    for name, value in options.items():
        if f"{name}=N" in taken:
            if not re.fullmatch(r"[1-9]\d{0,5}", value):
                raise PlanError(f"the preset '{text}': write {name}=N with a positive whole number")
        elif name not in taken and not (engine in GGUF and _block(name)):
            listed = f"{'one type: ' if engine in GGUF else ''}{', '.join(known) or 'none'}"
            raise PlanError(
                f"the preset '{text}': {engine} has no option '{name}' (it has {listed})"
            )
        elif value:
            raise PlanError(f"the preset '{text}': {name} takes no value")
    return options


def _of_weights(
    text: str, options: Mapping[str, str], default_group: int | None
) -> Iterator[Demand]:
    """Demands of weight-only quantisation, of kernels and of shards."""
    marlin, given = "marlin" in options, options.get("group", default_group)
    if given is not None:
        group = int(given)
        if marlin and group not in MARLIN_GROUPS:
            known = ", ".join(map(str, MARLIN_GROUPS))
            raise PlanError(f"the preset '{text}': Marlin kernels know groups of {known} only")
        yield Demand("K", group, f"groups of {group} weights share a scale", GROUPS)
        yield Demand("N", PACK, "eight 4-bit weights are packed in one word", PACKED)
    if marlin:
        yield Demand("N", 64, "Marlin's tiles are 64 outputs", MARLIN, MARLIN_PADS)
        yield Demand("K", 128, "Marlin's tiles are 128 inputs", MARLIN, MARLIN_PADS)
    if "amx" in options:
        yield Demand("N", 16, "VLLM_CPU_SGL_KERNEL's tiles are 16 outputs", AMX, NO_AMX)
        yield Demand("K", 32, "VLLM_CPU_SGL_KERNEL's tiles are 32 inputs", AMX, NO_AMX)
    if int(options.get("tp", 1)) > 1:
        for axis in AXES:
            yield Demand(axis, 1, f"{options['tp']} shards", SHARDS)


def _of_blocks(text: str, types: Mapping[str, str]) -> tuple[Demand, ...]:
    """Demands of the type that a GGUF file stores weights in."""
    if len(types) > 1:
        raise PlanError(f"the preset '{text}' names two types: {' and '.join(types)}")
    sizes = {name: _block(name) for name in types}
    return tuple(
        Demand("K", n, f"{t} stores rows in blocks of {n}", BLOCKS, FALLS_BACK, everywhere=True)
        for t, n in sizes.items()
        if n > 1
    )


def _block(name: str) -> int:
    """Weights in a block of a type, of llama-quantize's mixtures too (``q4_k_m``); 0 for none."""
    return BLOCK_TYPES.get(name) or BLOCK_TYPES.get(re.sub("_k_[sml]$", "_k", name), 0)


COLUMN = frozenset({"q", "k", "v", "qkv", "gate", "up", "gate_up"})
ROW = frozenset({"o", "down"})
"""Roles that tensor parallelism splits along N, and along K (Megatron's scheme)."""


@dataclass(frozen=True)
class Required:
    """What one size has to be a multiple of: each multiple ``apart``, with its demand."""

    apart: tuple[tuple[int, Demand], ...] = ()

    @property
    def multiple(self) -> int:
        return lcm(*(multiple for multiple, _ in self.apart))

    @property
    def reasons(self) -> str:
        return "; ".join(dict.fromkeys(demand.why for _, demand in self.apart))

    def __and__(self, other: Required) -> Required:
        return Required(tuple(dict.fromkeys((*self.apart, *other.apart))))


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
    _refuse_factors(inventory, preset)
    _refuse_heads(inventory, preset)
    by_dim: dict[str, Required] = {}
    unmet: dict[str, list[str]] = {}
    for module in inventory.modules:
        for axis in AXES:
            for name, found in _on_axis(inventory, preset, module, axis, unmet):
                by_dim[name] = by_dim.get(name, Required()) & found
    of_widths = [demand for demand in preset.demands if demand.axis == "width"]
    widths = [dim for dim in inventory.dims if dim.kind == "width" and dim.role != "tower"]
    for dim in widths:
        for demand in of_widths:
            if dim.adjustable:
                found = Required(((demand.multiple, demand),))
                by_dim[dim.name] = by_dim.get(dim.name, Required()) & found
            elif dim.size % demand.multiple:
                raise _cannot(preset, f"{dim.name} is {dim.size}", demand, demand.multiple)
    notes = (f"{text}: {places[0]}{_more(places)}" for places in unmet.values())
    dense = frozenset(m.name for m in inventory.modules if _meets_dense(inventory, preset, m))
    return Requirements(preset, by_dim, tuple(notes), dense)


def _more(places: Sequence[str]) -> str:
    return f" ({len(places) - 1} more like it)" if len(places) > 1 else ""


def _refuse_factors(inventory: Inventory, preset: Preset) -> None:
    factored = [module.name for module in inventory.modules if len(module.gemms) > 1]
    if factored and preset.no_factors:
        raise PlanError(
            f"the preset '{preset.text}' cannot express the factor pair of {factored[0]}"
            f"{_more(factored)}: {preset.no_factors}; multiply the pairs out first ('gacprof "
            "realign MODEL --fuse --out MERGED')"
        )


def _refuse_heads(inventory: Inventory, preset: Preset) -> None:
    """Heads are shared out whole; heads of keys and values are repeated where shards outnumber
    them."""
    for attention in inventory.attentions:
        heads, shared = attention.heads, attention.kv_heads
        uneven = shared % preset.tp and preset.tp % shared
        if heads % preset.tp == 0 and not uneven:
            continue
        which = f"{heads} heads" if heads % preset.tp else f"{shared} heads of keys and values"
        fits = [n for n in range(1, heads + 1) if not (heads % n or (shared % n and n % shared))]
        raise PlanError(
            f"the preset '{preset.text}': {preset.tp} shards cannot share the {which} of layer "
            f"{attention.layer} ({SHARDS}): ask for tp of {', '.join(map(str, fits))}"
        )


def _on_axis(
    inventory: Inventory,
    preset: Preset,
    module: Module,
    axis: Literal["N", "K"],
    unmet: dict[str, list[str]],
) -> Iterator[tuple[str, Required]]:
    """What the adjustable dims on an axis of the module's products have to be multiples of.

    Where several add up on it (PaLU's groups), each has to be one. What else is on the axis is
    refused, or noted in ``unmet`` by demand, where it breaks one.
    """
    for gemm in module.gemms:
        feed = Feed(gemm.weight, axis)
        feeding = inventory.fed_by(gemm.weight)
        free = {d.name: d.feeds.count(feed) for d in feeding if feed in d.feeds and d.adjustable}
        sizes = (times * inventory.dim(name).size for name, times in free.items())
        fixed = int(getattr(gemm, axis)) - sum(sizes)
        for multiple, demand in _demanded(inventory, preset, module, axis):
            for name, times in free.items():
                yield name, Required(((multiple // gcd(multiple, times), demand),))
            if fixed % multiple:
                told = _fixed(preset, gemm, axis, fixed, demand, multiple)
                unmet.setdefault(demand.why, []).append(told)


def _demanded(
    inventory: Inventory, preset: Preset, module: Module, axis: str
) -> list[tuple[int, Demand]]:
    """(multiple over all shards, demand) of an axis of a module's products."""
    role = module.role.removeprefix("expert_")
    shards = 1
    if len(module.gemms) == 1 and role in (COLUMN if axis == "N" else ROW):
        shards = preset.tp
    if role in ("k", "v"):  # of keys and values there are no more shards than heads
        heads = (a.kv_heads for a in inventory.attentions if a.layer == module.layer)
        shards = min(shards, next(heads, shards))
    beside = role in ("embedding", "head")
    return [
        (demand.multiple * shards, demand)
        for demand in preset.demands
        if demand.axis == axis
        and demand.multiple * shards > 1
        and (demand.everywhere or not beside)
    ]


def _fixed(preset: Preset, gemm: Gemm, axis: str, size: int, demand: Demand, multiple: int) -> str:
    """A note on a size that no plan changes. Raises :class:`PlanError` where it is refused."""
    where = f"the {'outputs' if axis == 'N' else 'inputs'} of {gemm.weight} are {size}"
    if not demand.otherwise:
        raise _cannot(preset, where, demand, multiple)
    return (
        f"{where}, no multiple of {multiple} ({demand.why}), and no plan changes that: "
        f"{demand.otherwise}"
    )


def _cannot(preset: Preset, where: str, demand: Demand, multiple: int) -> PlanError:
    hint = "" if demand.axis == "width" else ": ask for smaller groups or fewer shards"
    return PlanError(
        f"the preset '{preset.text}': {where}, no multiple of {multiple} ({demand.why}; "
        f"{demand.source}), and no plan changes that{hint}"
    )


def _meets_dense(inventory: Inventory, preset: Preset, module: Module) -> bool:
    """Whether the module's product with its factors multiplied out meets the demands that the
    engine does not get around. An axis that a width feeds does, by the width's own."""
    if not module.gemms:
        return True
    ends = (
        (module.in_features, Feed(module.gemms[0].weight, "K")),
        (module.out_features, Feed(module.gemms[-1].weight, "N")),
    )
    return all(
        size % multiple == 0
        or bool(demand.otherwise)
        or any(d.kind == "width" and feed in d.feeds for d in inventory.fed_by(feed.weight))
        for size, feed in ends
        for multiple, demand in _demanded(inventory, preset, module, feed.axis)
    )

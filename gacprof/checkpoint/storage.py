"""How weights are stored: a format by name, or by a config's own ``quantization_config``."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import cache, lru_cache
from itertools import chain, product, repeat
from typing import Any

from gacprof.checkpoint.layouts.configs import part_of
from gacprof.core.errors import ConfigError
from gacprof.core.files import row_of_word, shipped_table
from gacprof.kernels.requirements import DEMANDS

GROUPED = ("awq", "gptq", "int4")
SUFFIXED = r"^(ct_|compressed_tensors_)?(.*?)(?:_g\D*([1-9]\d*)|(_block)\D*([1-9]\d*)?(?:x\d+)?)?$"
"""A format's name behind compressed-tensors' prefix, and before a group or block of scales."""
EXAMPLES = "bf16, fp8, fp8-channel, fp8-block, nvfp4, mxfp4, int8, awq-g128, gptq-g64, gguf-q4_k"
IGNORED = r"ignore|ignored_layers|exclude_modules|modules_to_not_\w+|llm_int8_skip_modules"
"""Fields of a quantization_config that list modules which stay as they are."""
QUANTISATION_KEYS = ("quantization_config", "compression_config")
MAX_GROUP = 1 << 20  # inputs; published layers have 2^16
PLAIN_BITS = 16  # a rule with this many leaves a module as it is
FP8_CACHE = r".*fp8|(?!.*'int').*'num_bits': 8"
CT_CACHE = r"(?!.*('int'|'dynamic': true))(?=.*_bits': 8)(?=.*'tensor').*'symmetric': true"
"""The scheme of an FP8 cache that engines take from compressed-tensors: a scale a tensor."""
KV_TYPES = {"none": "16 bit", "auto": "16 bit"}
MAX_LAYERS = 128  # looked up where the config doesn't say how many there are
TABLES = shipped_table(DEMANDS / "formats.toml", dict[str, Any])
FORMATS = row_of_word(TABLES["formats"])
GROUPS: Mapping[str, int] = TABLES["groups"]  # the default by format that may have groups


@dataclass(frozen=True, eq=False)
class Storage:
    """A way to store weights. ``form`` is a row of ``formats.toml``, ``name`` as it was called.

    ``group`` weights along K share a scale (-1: a whole row; 0: no such word), ``block`` weights
    both ways. ``tool`` is ``ct`` for compressed-tensors. The checkpoint may hold quantised weights
    (``stored``), else they are quantised while loading. ``ignored`` modules stay as they are.
    ``dynamic`` inputs are scaled as they come; ``kv`` is the cache's type: 16 bit, fp8 or other.
    ``method`` is the config's own word for it, and ModelOpt's algorithm.
    """

    form: str
    name: str
    group: int = 0
    block: int = 128
    tool: str = ""
    gguf: str = ""
    desc_act: bool = False
    symmetric: bool = True
    dynamic: bool = False
    stored: bool = True
    ignored: tuple[str, ...] = ()
    kv: str = "16 bit"
    layers: int = MAX_LAYERS
    method: str = ""

    def of_modules(self, modules: Sequence[str]) -> "Storage":
        """Return how these modules are stored: plain where all layers ignore all of them."""
        numbers = [len(layers_named(self.ignored, self.layers, module)) for module in modules]
        return PLAIN if numbers and min(numbers) == self.layers else self

    def differs_within(self, modules: Sequence[str]) -> bool:
        """Return whether some of these modules are ignored in a layer in which others are not."""
        return len({layers_named(self.ignored, self.layers, module) for module in modules}) > 1


PLAIN = Storage("none", "none")


def storage_named(text: str) -> Storage:
    """Return a storage by its name in ``formats.toml``, with its group or block (``awq-g64``),
    after ``ct-`` compressed-tensors'; or a type of GGUF files. Raises :class:`ConfigError`."""
    plain = re.sub(r"[\s\-.:/]+", "_", text.strip().lower())
    tool, name, group, block, side = re.findall(SUFFIXED, plain)[0]
    form = FORMATS.get(name) or FORMATS.get(re.sub("(_per)?_channel$", "", name), "")
    gguf = re.sub(r"(q\d_k)_(s|m|l|xl)$", r"\1", plain.removeprefix("gguf_"))
    gguf = TABLES["gguf_names"].get(gguf, gguf)
    if not form and gguf in TABLES["gguf"]:
        return Storage("gguf", text, gguf=gguf)
    if block and form.startswith("fp8"):
        form = "fp8_block"
    elif block or not form or (group and form not in GROUPS):
        raise ConfigError(f"no quantisation '{text}' is known: use one such as {EXAMPLES}")
    tool, default = "ct" if tool else "", GROUPS.get(form, 0)
    stored = name not in ("bitsandbytes", "fp8")
    return Storage(
        form, text, int(group or default), int(side or 128), tool, stored=stored, dynamic=not stored
    )


def stated_quantisations(config: Mapping[str, Any]) -> list[Any]:
    """Return all that a config says of how weights are quantised, its text part's last."""
    stated = []
    for place in (config, part_of(config)[1]):
        stated += [place[key] for key in QUANTISATION_KEYS if place.get(key)]
    return stated


def stated_quantisation(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a config says of its quantisation. Raises :class:`ConfigError` for no table."""
    stated: Any = [*stated_quantisations(config), {}][0]
    if not isinstance(stated, Mapping):
        raise ConfigError("the config's quantization_config cannot be read: it is no table")
    return stated


def storage_of_config(config: Mapping[str, Any], layers: int = 0) -> Storage:
    """Return the storage that a config states, unknown where it differs from module to module.
    Raises :class:`ConfigError` for values of odd types."""
    stated = stated_quantisation(config)
    if not stated:
        return PLAIN
    ignored: list[str] = []
    try:
        stated = {**stated, **stated.get("quantization", {})}  # ModelOpt's hf_quant_config.json
        for name in TABLES["other_names"].keys() & stated.keys():
            stated[TABLES["other_names"][name]] = stated[name]
        for name in filter(re.compile(IGNORED).fullmatch, stated):
            ignored += map(str, stated[name] or ())
        # GPTQModel's and AutoRound's rules for single modules
        rules = {**(stated.get("dynamic") or {}), **(stated.get("extra_config") or {})}
        plain = [n for n in rules if n.startswith("-:") or rules[n].get("bits", 0) >= PLAIN_BITS]
        ignored += [re.sub("^-:", "re:.*", name) for name in plain]
        method = _method_of(stated)
        storage = _by_method(method, stated)
        # weights are stored in a way that nobody read, if any of these is there
        odd = [] if len(plain) == len(rules) else ["rules of its own"]
        patterns = TABLES["known_values"]
        for key, pattern in {**patterns["any"], **patterns.get(method, {})}.items():
            value = str(stated.get(key, "no")).lower()
            if not re.match(pattern, value):
                odd.append(f"{value[:40]} {key}")
        if odd:
            storage = replace(storage, form="unknown", name=f"{storage.name} with {', '.join(odd)}")
    except (AttributeError, OverflowError, TypeError, ValueError) as error:
        raise ConfigError(f"the config's quantization_config cannot be read: {error}") from None
    kv = str(stated.get("kv_cache_quant_algo") or stated.get("kv_cache_scheme")).lower()
    fp8 = CT_CACHE if storage.tool else FP8_CACHE
    kv = "fp8" if re.match(fp8, kv) else KV_TYPES.get(kv, "other")
    words = f"{method} {stated.get('quant_algo') or ''}".lower().strip()
    number = layers or MAX_LAYERS
    return replace(storage, ignored=tuple(ignored), kv=kv, layers=number, method=words)


def _method_of(stated: Mapping[str, Any]) -> str:
    unnamed = [method for key, method in TABLES["unnamed"].items() if key in stated]
    named = stated.get("quant_method", [*unnamed, "unknown"][0])
    return str(named or "unknown").lower().replace("-", "_").removesuffix("_marlin")


def _by_method(method: str, stated: Mapping[str, Any]) -> Storage:
    if method == "compressed_tensors":
        return _compressed_tensors(stated)
    if method.startswith("modelopt"):
        # ModelOpt names itself, and what it did in another field
        method = str(stated.get("quant_algo", method)).lower()
    group, bits = _group(stated.get("group_size") or 0), stated.get("bits") or 4
    scheme = str(stated.get("activation_scheme"))
    form = FORMATS.get(method, "unknown")
    if "awq" in str(stated.get("packing_format")):
        form = "awq"
    if form in ("awq", "gptq"):
        form = {4: form, 8: "int8_w8a16"}.get(bits, "unknown")
        group = group or GROUPS["gptq"]
    elif form.startswith("fp8") and stated.get("weight_block_size"):
        # engines scale the inputs of blocks as they come
        form = {"static": "unknown"}.get(scheme, "fp8_block")
    return Storage(
        form,
        method[:40],
        group if form in GROUPS else 0,
        _block(stated.get("weight_block_size")),
        desc_act=stated.get("desc_act") is True,
        symmetric=stated.get("sym") is not False,
        dynamic=scheme == "dynamic",
    )


def _group(size: Any) -> int:
    """Return the inputs that share a scale. Raises ``ValueError`` for more than any layer has."""
    group = int(size)
    if group > MAX_GROUP:
        raise ValueError(f"its group_size is {group:.3g}")
    return group


def _block(sides: Any) -> int:
    """Return the side of a square block, 128 by default. Raises ``ValueError`` for what is none."""
    side = max(map(int, sides or [128]))
    if side < 1:
        raise ValueError(f"its weight block is {str(sides)[:40]!r}")
    return side


def _compressed_tensors(stated: Mapping[str, Any]) -> Storage:
    """Return the storage of all linear layers; unknown where groups of them differ."""
    groups = list(dict(stated.get("config_groups") or {}).values())
    formats = repeat(stated.get("format"))
    storages = {str(storage): storage for storage in map(_of_group, groups, formats)}
    targets = chain.from_iterable(group.get("targets") or ["Linear"] for group in groups)
    if len(storages) == 1 and "Linear" in targets:
        return next(iter(storages.values()))
    return Storage("unknown", f"compressed-tensors with {len(groups)} groups", tool="ct")


def _of_group(group: Mapping[str, Any], packed: Any) -> Storage:
    """Return the storage of one group of modules, ``packed`` unless it says otherwise."""
    weights, inputs = group.get("weights") or {}, group.get("input_activations") or {}
    strategy, size = weights.get("strategy"), weights.get("group_size")
    width = f"{weights.get('type')}{weights.get('num_bits')}"
    of_inputs = f"inputs_{inputs.get('type')}{inputs.get('num_bits')}" if inputs else "alone"
    if inputs.get("type") == "int" and inputs.get("strategy") == "group":
        of_inputs += "_in_groups"  # which no engine takes
    packed = group.get("format") or packed
    outputs = group.get("output_activations")
    scheme = f"{width} {strategy} {of_inputs} {size} {packed} {outputs} {weights}"
    patterns = TABLES["compressed_tensors"]
    forms = [form for form, pattern in patterns.items() if re.match(pattern, scheme)]
    return Storage(
        (*forms, "unknown")[0],
        "compressed-tensors",
        _group(size) if strategy == "group" and size else -1,
        _block(weights.get("block_structure")),
        tool="ct",
        desc_act=weights.get("actorder") in ("group", "dynamic"),
        symmetric=False not in (weights.get("symmetric"), inputs.get("symmetric")),
        dynamic=inputs.get("dynamic") is True,
    )


MAX_REPEATS = 6  # a foreign pattern with more of them, or nested ones, might take for ever


@lru_cache(maxsize=4096)
def layers_named(entries: tuple[str, ...], layers: int, module: str) -> frozenset[int]:
    """Return the layers in which an entry names a module (``model.layers.{}.mlp.up_proj``): by its
    name or a part of it, a shell pattern, or a regular expression after ``re:``."""
    if not entries:
        return frozenset()
    patterns = [_pattern(entry) for entry in entries if re.search(r"^re:|[*?\[]", entry)]
    plain = {re.sub(r"^[\w.]*\blayers\.(?=\d)", "layers.", entry) for entry in entries}
    spellings = [module]
    for part, others in TABLES["spellings"].items():
        pairs = product(spellings, others)
        spellings += [name.replace(part, other, 1) for name, other in pairs]
    named = set()
    for name in dict.fromkeys(spellings):
        for layer in range(layers):
            numbered = name.replace("{}", str(layer))
            is_part = any(f".{entry}." in f".{numbered}." for entry in plain)
            if is_part or any(pattern.search(numbered) for pattern in patterns):
                named.add(layer)
    return frozenset(named)


@cache
def _pattern(entry: str) -> re.Pattern[str]:
    """Return an entry as a regular expression. Raises :class:`ConfigError` for a broken one."""
    text = f"^{translate(entry)}"
    if entry.startswith("re:"):
        text = f"^(?:{entry[3:]})"
        if len(re.findall(r"[*+}]", text)) > MAX_REPEATS or re.search(r"[)\]][*+{]", text):
            return re.compile(r"(?!)")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"the config's pattern {entry[:60]!r} is broken: {error}") from None

"""How weights are stored: a format by name, or by a config's own ``quantization_config``.

Names are those of engines and tools (``fp8``, ``modelopt-fp4``), of GGUF files (``gguf-q4_k``), and
plain ones with a group or block (``fp8-block``, ``awq-g64``); ``formats.toml`` lists them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

from gacprof.core.errors import ConfigError

DEFAULT_GROUP = 128
"""Group size of GPTQ and AWQ by default, as GPTQModel, AutoAWQ and llm-compressor have it."""
GROUPED = ("awq", "gptq", "int4")
MAY_GROUP = (*GROUPED, "int8_w8a16", "nvfp4", "mxfp4", "mxfp8", "fp8_channel", "int8_w8a8")
EXAMPLES = "bf16, fp8, fp8-channel, fp8-block, nvfp4, mxfp4, int8, awq-g128, gptq-g64, gguf-q4_k"
IGNORED_FIELDS = (
    "modules_to_not_convert",
    "ignore",
    "ignored_layers",
    "exclude_modules",
    "modules_to_not_quantize",
    "llm_int8_skip_modules",
)
MAX_LAYERS = 128
"""Layers whose modules are looked up where the config doesn't say how many there are."""


@cache
def _tables() -> Mapping[str, Any]:
    text = files("gacprof.kernels").joinpath("demands/formats.toml").read_text("utf-8")
    return tomllib.loads(text)


@cache
def _formats_by_name() -> Mapping[str, str]:
    return {name: row for row, names in _tables()["formats"].items() for name in names}


@dataclass(frozen=True, eq=False)
class Storage:
    """One way to store weights. ``form`` is a row of ``formats.toml``, ``name`` as it was called.

    ``group`` weights along K share a scale (-1: a whole row; 0: no such word), ``block`` weights
    both ways. ``tool`` is ``ct`` for compressed-tensors. ``stored``: the checkpoint holds quantised
    weights; they aren't quantised while loading. ``ignored`` are modules that stay as they are;
    ``kv`` is the type of cached keys and values: fp8 or 16 bit.
    """

    form: str
    name: str
    group: int = 0
    block: int = 128
    tool: str = ""
    gguf: str = ""
    desc_act: bool = False
    symmetric: bool = True
    stored: bool = True
    ignored: tuple[str, ...] = ()
    kv: str = "16 bit"
    layers: int = MAX_LAYERS

    @property
    def gguf_block(self) -> int:
        """Weights in a block of the GGUF type; 0 for other formats."""
        return int(_tables()["gguf"].get(self.gguf, 0))

    @cached_property
    def ignored_modules(self) -> NamedModules:
        return NamedModules(self.ignored, self.layers)

    def of_modules(self, modules: Sequence[str]) -> Storage:
        """How these modules are stored: plain where all of them are ignored in all layers."""
        return PLAIN if self.ignored_modules.has_all(modules) else self


PLAIN = Storage("none", "none")


def storage_named(text: str) -> Storage:
    """A storage by its name. Raises :class:`ConfigError` with examples for one that isn't known."""
    plain = re.sub(r"[\s\-.:/]+", "_", text.strip().lower())
    gguf = _gguf(plain)
    if gguf:
        return Storage("gguf", text, gguf=gguf)
    group = block = 0
    if match := re.search(r"_?(?:g|group_?(?:size_?)?=?)(-?\d{1,5})(?=_|$)", plain):
        group, plain = int(match[1]), plain.replace(match[0], "", 1)
    if match := re.search(r"_?block(?:_?wise)?(?:_?(\d{1,4}))?(?:[x_]\d{1,4})?(?=_|$)", plain):
        block, plain = int(match[1] or 128), plain.replace(match[0], "", 1)
    tool = ""
    if match := re.match(r"(compressed_tensors|ct|llm_compressor)(_|$)", plain):
        tool, plain = "ct", plain[match.end() :] or "unknown"
    names = _formats_by_name()
    if plain not in names and re.search(r"_(per_)?channel(wise)?$|_perchannel$", plain):
        plain = re.sub(r"_(per_?)?channel(wise)?$", "", plain)
        group = group or -1
    form = names.get(plain, "")
    if form.startswith("fp8") and (block or form == "fp8_block"):
        form, block = "fp8_block", block or 128
    elif block or not form or (group and form not in MAY_GROUP):
        raise ConfigError(f"no quantisation '{text}' is known: use one such as {EXAMPLES}")
    if not group and form in GROUPED:
        group = DEFAULT_GROUP
    elif not group and form == "int8_w8a16":
        group = -1
    stored = plain not in ("bitsandbytes", "fp8", "bnb_inflight")
    return Storage(form, text, group, block or 128, tool, stored=stored)


def _gguf(plain: str) -> str:
    """The GGUF type that a name means, mixtures (``q4_k_m``) too; empty for other names."""
    name = re.sub(r"^gguf_?", "", plain)
    gguf = re.sub(r"^(q[23456])k", r"\1_k", name)
    gguf = re.sub(r"(q\d_k)_(xs|s|m|l|xl)$", r"\1", gguf)
    gguf = _tables()["gguf-names"].get(gguf, gguf)
    is_other = name == plain and gguf in ("mxfp4", "nvfp4", "f16", "bf16")
    return gguf if gguf in _tables()["gguf"] and not is_other else ""


def storage_of_config(config: Mapping[str, Any], layers: int = 0) -> Storage:
    """The storage that a config's ``quantization_config`` states; plain where it has none."""
    stated = config.get("quantization_config") or config.get("compression_config")
    if not stated:
        return PLAIN
    if not isinstance(stated, Mapping):
        raise ConfigError("the config's quantization_config is no table of names and values")
    stated = {**stated, **stated.get("quantization", {})}  # ModelOpt's hf_quant_config.json
    ignored = [str(entry) for name in IGNORED_FIELDS for entry in stated.get(name) or ()]
    dynamic = map(str, stated.get("dynamic") or ())  # GPTQModel's
    ignored += [f"re:.*{rule[2:]}" for rule in dynamic if rule.startswith("-:")]
    kv = str(stated.get("kv_cache_quant_algo") or stated.get("kv_cache_scheme")).lower()
    return replace(
        _by_method(stated),
        ignored=tuple(ignored),
        kv="fp8" if re.search(r"fp8|'num_bits': 8", kv) else "16 bit",
        layers=layers or MAX_LAYERS,
    )


def _by_method(stated: Mapping[str, Any]) -> Storage:
    method = str(stated.get("quant_method", stated.get("quant_algo"))).lower().replace("-", "_")
    if method == "compressed_tensors":
        return _compressed_tensors(stated)
    if method.startswith("modelopt"):
        method = str(stated.get("quant_algo", method)).lower()
    group = stated.get("group_size") or stated.get("q_group_size") or 0
    bits = stated.get("bits") or stated.get("w_bit") or 4
    form = _formats_by_name().get(method, "unknown")
    if "awq" in str(stated.get("packing_format")):
        form = "awq"
    if form in ("awq", "gptq"):
        form = {4: form, 8: "int8_w8a16"}.get(bits, "unknown")
        group = group or DEFAULT_GROUP
    elif form == "bnb" and not stated.get("load_in_4bit", True):
        form = "unknown"
    elif form.startswith("fp8") and "weight_block_size" in stated:
        form = "fp8_block"
    return Storage(
        form,
        method[:40],
        group if form in MAY_GROUP else 0,
        _block(stated.get("weight_block_size") or [128, 128]),
        desc_act=stated.get("desc_act") is True,
        symmetric=stated.get("sym") is not False,
    )


def _block(sides: Any) -> int:
    """The side of a square block. Raises :class:`ConfigError` for what is none."""
    if not isinstance(sides, list) or not all(isinstance(side, int) and side > 0 for side in sides):
        raise ConfigError(f"the config's weight block is {str(sides)[:40]!r}: no two sizes")
    return int(max(sides))


def _compressed_tensors(stated: Mapping[str, Any]) -> Storage:
    """The storage of a single group of modules; unknown where there are several."""
    groups = list(dict(stated.get("config_groups") or {}).values())
    if len(groups) != 1:
        return Storage("unknown", f"compressed-tensors with {len(groups)} groups", tool="ct")
    weights, inputs = groups[0].get("weights") or {}, groups[0].get("input_activations")
    strategy, size = weights.get("strategy"), weights.get("group_size")
    width = f"{weights.get('type')}{weights.get('num_bits')}"
    scheme = f"{width} {strategy} {'inputs' if inputs else 'alone'} {size}"
    patterns = _tables()["compressed-tensors"]
    forms = [form for form, pattern in patterns.items() if re.match(pattern, scheme)]
    return Storage(
        (*forms, "unknown")[0],
        "compressed-tensors",
        int(size) if strategy == "group" and size else -1,
        _block(weights.get("block_structure") or [128, 128]),
        tool="ct",
        symmetric=False not in (weights.get("symmetric"), (inputs or {}).get("symmetric")),
    )


SPELLINGS = (
    ("model.", "language_model.model."),
    ("model.", "model.language_model."),
    ("model.", "backbone."),
    (".mlp.", ".block_sparse_moe."),
    (".mlp.", ".feed_forward."),
    (".mlp.", ".mixer."),
    (".self_attn.", ".mixer."),
    (".self_attn.", ".attn."),
)
"""Parts of our names of modules, and what other models call them."""
MAX_PATTERN = 500
MAX_REPEATS = 6
"""A pattern of a stranger's config with more of them, or a repeat within one, might take for ever:
it names nothing."""


class NamedModules:
    """The modules that a config's entries name: plain names or parts of them, shell patterns, and
    regular expressions behind ``re:``. ``layers`` is how many the model has."""

    def __init__(self, entries: Sequence[str], layers: int) -> None:
        self.layers = layers
        self._layers_of: dict[str, frozenset[int]] = {}
        self._numbered: dict[str, set[int]] = {}
        self._patterns: list[re.Pattern[str]] = []
        for entry in entries:
            numbered = re.fullmatch(r"(?:[\w.]*\.)?layers\.(\d{1,4})(?:\.([\w.]+))?", entry)
            if numbered:
                self._numbered.setdefault(numbered[2] or "", set()).add(int(numbered[1]))
            else:
                self._patterns.append(_pattern(entry))

    def layers_of(self, module: str) -> frozenset[int]:
        """The layers in which this module (``model.layers.{}.mlp.up_proj``) is named."""
        if module not in self._layers_of:
            self._layers_of[module] = frozenset(self._search(module))
        return self._layers_of[module]

    def _search(self, module: str) -> set[int]:
        layers: set[int] = set()
        for name in _spellings(module):
            parts = name.rpartition("layers.{}.")[2].split(".")
            for length in range(len(parts) + 1):
                layers |= self._numbered.get(".".join(parts[:length]), set())
            for layer in range(self.layers):
                numbered = name.replace("{}", str(layer))
                layers |= {layer for pattern in self._patterns if pattern.search(numbered)}
        return layers

    def has_all(self, modules: Sequence[str]) -> bool:
        """Whether these modules are named in every layer."""
        return bool(modules) and all(len(self.layers_of(name)) >= self.layers for name in modules)

    def differ(self, modules: Sequence[str]) -> bool:
        """Whether some of these modules are named in a layer in which others are not."""
        return len({self.layers_of(module) for module in modules}) > 1


@cache
def _spellings(module: str) -> tuple[str, ...]:
    names = [module]
    for ours, theirs in SPELLINGS:
        names += [name.replace(ours, theirs, 1) for name in names if ours in name]
    return tuple(dict.fromkeys(names))


def _pattern(entry: str) -> re.Pattern[str]:
    """An entry as a regular expression. Raises :class:`ConfigError` for one that is broken."""
    text = rf"(^|\.){re.escape(entry)}(\.|$)"
    if entry.startswith("re:"):
        text = f"^(?:{entry[3:]})"
        repeats = len(re.findall(r"[*+}]", text))
        if repeats > MAX_REPEATS or len(text) > MAX_PATTERN or re.search(r"[)\]][*+{]", text):
            return re.compile(r"(?!)")
    elif re.search(r"[*?\[]", entry):
        text = f"^{translate(entry)}"
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError(f"the config's pattern {entry[:60]!r} is broken: {error}") from None

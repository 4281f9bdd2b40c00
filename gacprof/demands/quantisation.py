"""How weights are stored: one :class:`Scheme` from any spelling of it, or from a config's own
``quantization_config``, with the modules that it leaves alone.

Names are those of engines and tools (``fp8``, ``modelopt_fp4``, ``compressed-tensors``), of GGUF
files (``gguf_q4_K``), and plain ones that say everything (``fp8_block_128``, ``awq_int4_g64``).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import cache, cached_property
from importlib import resources
from typing import Any

from gacprof.core.errors import LintError

_TABLES = tomllib.loads((resources.files("gacprof.demands") / "schemes.toml").read_text("utf-8"))
KINDS = tuple(_TABLES["schemes"])
"""Kinds of schemes. ``gguf`` has types of its own, ``unknown`` demands that nobody has read."""
_NAMES = {name: kind for kind, row in _TABLES["schemes"].items() for name in row["names"]}
GGUF: Mapping[str, tuple[float, int]] = {k: (bits, n) for k, (bits, n) in _TABLES["gguf"].items()}
"""Bits a weight takes, and weights in a block, by GGUF type."""


@dataclass(frozen=True, eq=False)
class Scheme:
    """``group`` weights along K share a scale (−1: a whole row), ``block`` weights both ways;
    ``tool`` wrote them where that matters (``ct`` is compressed-tensors); ``ignored`` are the
    modules that stay unquantised, as the config names them. ``stored``: the checkpoint holds
    quantised weights, they are not quantised while loading. ``weight_bits`` are compressed-tensors'
    own word. ``groups`` are (targets, scheme) of a checkpoint that is stored in several ways."""

    kind: str
    name: str
    group: int | None = None
    block: int = 128
    tool: str = ""
    gguf_type: str = ""
    desc_act: bool = False
    symmetric: bool = True
    stored: bool = True
    ignored: tuple[str, ...] = ()
    weight_bits: int | None = None
    groups: tuple[tuple[tuple[str, ...], Scheme], ...] = ()

    @property
    def bits(self) -> float:
        if self.kind == "gguf":
            return GGUF[self.gguf_type][0]
        bits = float(_TABLES["schemes"][self.kind]["bits"])
        group = self.group or 0
        zeros = 0 if self.kind == "int4" and self.symmetric else 4  # AWQ's and GPTQ's are stored
        return bits + ((16 + zeros) / group if self.kind in GROUPED and group > 0 else 0)

    def leaves(self, modules: Sequence[str], layers: int | None) -> bool:
        """Whether these modules stay unquantised in every layer that has them: names with {} for
        the layer's number, by any spelling. ``layers`` of them there are, None: nobody knows."""
        if not (self.ignored and modules):
            return False
        left = set(range(MOST_LAYERS))
        for module in modules:
            left &= self._left(module)
        return len(left) >= (layers or MOST_LAYERS)

    def of_modules(self, modules: Sequence[str], layers: int | None) -> Scheme:
        """How these modules are stored: as the first group says whose targets name all of them in
        all layers, else the first of all linear layers; *unknown* where targets name some."""
        if not self.groups or not modules:
            return self
        for targets, found in self.groups:
            named = Scheme("none", "targets", ignored=targets)
            if named.leaves(modules, layers):
                return found
            if any(named._left(module) for module in modules):
                return MIXED
        return next((one for targets, one in self.groups if "Linear" in targets), MIXED)

    def leaves_partly(self, modules: Sequence[str]) -> bool:
        """Whether in some layer these modules are neither all unquantised nor all quantised."""
        return bool(self.ignored) and len({frozenset(self._left(m)) for m in modules}) > 1

    @cached_property
    def _left_by_module(self) -> dict[str, frozenset[int]]:
        return {}

    def _left(self, module: str) -> frozenset[int]:
        """The layers in which a module stays unquantised."""
        if module not in self._left_by_module:
            self._left_by_module[module] = frozenset(self._layers_of(module))
        return self._left_by_module[module]

    def _layers_of(self, module: str) -> set[int]:
        every = set(range(MOST_LAYERS))
        by_part, patterns = self._rules
        found: set[int] = set()
        for name in _spellings(module):
            parts = name.rpartition("layers.{}.")[2].split(".")
            for n in range(len(parts) + 1):
                found |= by_part.get(".".join(parts[:n]), set())
            if any(p.search(name.replace("{}", "0")) for p in patterns if not _numbers(p)):
                return every
            for pattern in filter(_numbers, patterns):
                found |= {n for n in every if pattern.search(name.replace("{}", str(n)))}
        return found

    @cached_property
    def _rules(self) -> tuple[dict[str, set[int]], tuple[re.Pattern[str], ...]]:
        """Layers by the part of a name behind their number, and patterns for all else."""
        by_part: dict[str, set[int]] = {}
        patterns = []
        for entry in self.ignored:
            numbered = re.fullmatch(r"(?:[\w.]*\.)?layers\.(\d{1,4})(?:\.([\w.]+))?", entry)
            if entry.startswith("re:"):
                patterns.append(_pattern(f"^(?:{entry[3:]})"))
            elif numbered:
                by_part.setdefault(numbered[2] or "", set()).add(int(numbered[1]))
            elif any(c in entry for c in "*?["):
                patterns.append(_pattern(f"^{translate(entry)}"))
            else:  # a part of a name: "visual", "mlp.gate", "lm_head"
                patterns.append(_pattern(rf"(^|\.){re.escape(entry)}(\.|$)"))
        return by_part, tuple(patterns)


MOST_LAYERS = 128
"""Layers whose modules are looked up in an ignore list: no published model has more."""
SPELLINGS = (
    ("model.", "language_model.model."), ("model.", "model.language_model."),
    ("model.", "backbone."), (".mlp.", ".block_sparse_moe."), (".mlp.", ".feed_forward."),
    (".mlp.", ".mixer."), (".self_attn.", ".mixer."), (".self_attn.", ".attn."),
)  # fmt: skip
"""What a part of a module's name is called in other models."""


@cache
def _spellings(module: str) -> tuple[str, ...]:
    found = [module]
    for ours, theirs in SPELLINGS:
        found += [name.replace(ours, theirs, 1) for name in found if ours in name]
    return tuple(dict.fromkeys(found))


@cache
def _numbers(pattern: re.Pattern[str]) -> bool:
    """Whether a pattern may tell layers apart."""
    return re.search(r"\d|layers", pattern.pattern) is not None


def _pattern(text: str) -> re.Pattern[str]:
    """A pattern of a stranger's config. One that might take for ever, repeats within a repeat or
    many of them, matches nothing. Raises :class:`LintError` for what is no pattern."""
    repeats = len(re.findall(r"[*+}]", text))
    try:
        if repeats > 6 or re.search(r"[)\]][*+{]", text) or len(text) > 500:
            return re.compile(r"(?!)")
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise LintError(f"the pattern {text[:60]!r} in the config is not valid: {error}") from None


NONE = Scheme("none", "none")
MIXED = Scheme("unknown", "modules that no one group of the config names", tool="ct")

EXAMPLES = (
    "none, bf16, fp8, fp8-channel, fp8-block, nvfp4, mxfp4, mxfp8, w8a8-int8, int8-w8a16, "
    "awq-g128, gptq-g64, ct-int4-g128, bnb-nf4, gguf-q4_k, "
    "compressed-tensors, modelopt, modelopt-fp4"
)
DEFAULT_GROUP = 128
"""Group size of GPTQ and AWQ by default, as GPTQModel, AutoAWQ and llm-compressor have it."""
GROUPED = ("awq", "gptq", "int4")
MAY_GROUP = (
    *GROUPED, "int8_w8a16", "nvfp4", "mxfp4", "mxfp8", "fp8_channel", "int8_w8a8",
)  # fmt: skip


_GROUP = re.compile(r"_?(?:g|group_?(?:size_?)?=?)(-?\d{1,5})(?=_|$)")
_BLOCK = re.compile(r"_?block(?:_?wise)?(?:_?(\d{1,4}))?(?:[x_]\d{1,4})?(?=_|$)")


def _plain(text: str) -> str:
    return re.sub(r"[\s\-.:/]+", "_", text.strip().lower())


def named_sizes(text: str) -> dict[str, int]:
    """The group and the block that a scheme's name says in numbers, if it does."""
    found = {"group": _GROUP.search(_plain(text)), "block": _BLOCK.search(_plain(text))}
    return {name: int(match[1]) for name, match in found.items() if match and match[1]}


def scheme(text: str) -> Scheme:
    """A scheme by name. Raises :class:`LintError` naming those that there are."""
    plain = _plain(text)
    if found := _gguf(plain):
        return replace(found, name=text)
    group = block = None
    if found_group := _GROUP.search(plain):
        group, plain = int(found_group[1]), plain.replace(found_group[0], "", 1)
    if found_block := _BLOCK.search(plain):
        block, plain = int(found_block[1] or 128), plain.replace(found_block[0], "", 1)
    tool = ""
    parts = [p for p in plain.split("_") if p]
    for words in (("compressed", "tensors"), ("ct",), ("llm", "compressor")):
        if tuple(parts[: len(words)]) == words:
            tool, parts = "ct", parts[len(words) :]
    channel = [p for p in parts if p in ("channel", "channelwise", "perchannel")]
    by_name = "_".join(parts)
    if by_name not in _NAMES and channel:
        by_name = "_".join(p for p in parts if p not in channel and p != "per")
        group = -1 if group is None else group
    by_name = by_name or ("unknown" if tool else "")
    kind = _NAMES.get(by_name, "")
    may_group = group is None or (kind in MAY_GROUP and (group == -1 or group > 0))
    if kind.startswith("fp8") and (block or kind == "fp8_block"):
        kind, block = "fp8_block", block or 128
    elif block is not None or not kind or not may_group:
        raise LintError(f"no quantisation '{text}' is known: there are {EXAMPLES}")
    if kind in GROUPED and group is None:
        group = DEFAULT_GROUP
    if kind == "int8_w8a16" and group is None:
        group = -1
    stored = plain not in ("bitsandbytes", "fp8", "bnb_inflight")
    return Scheme(kind, text, group, block or 128, tool, stored=stored)


def _gguf(plain: str) -> Scheme | None:
    """A GGUF type, its mixtures too (``q4_k_m``)."""
    name = re.sub(r"^gguf_?", "", plain)
    kind = re.sub(r"(q\d_k)_(xs|s|m|l|xl)$", r"\1", re.sub(r"^(q[23456])k", r"\1_k", name))
    kind = _TABLES["gguf-names"].get(kind, kind)
    if kind not in GGUF or (name == plain and kind in ("mxfp4", "nvfp4", "f16", "bf16")):
        return None
    return Scheme("gguf", name, gguf_type=kind)


def of_config(config: Mapping[str, Any]) -> Scheme | None:
    """What a config's ``quantization_config`` says; None where it has none.

    A method whose demands are not known gives a scheme of the kind ``unknown``, by its name.
    """
    stated = config.get("quantization_config") or config.get("compression_config")
    if stated is None or stated == {}:
        return None
    if not isinstance(stated, Mapping):
        raise LintError("the config's quantization_config is no table of names and values")
    inner = stated.get("quantization")  # ModelOpt's hf_quant_config.json
    stated = {**stated, **inner} if isinstance(inner, Mapping) else stated
    method = str(stated.get("quant_method") or stated.get("quant_algo") or "").lower()
    ignored = _names(stated, "modules_to_not_convert", "ignore", "ignored_layers",
                     "exclude_modules", "modules_to_not_quantize",
                     "llm_int8_skip_modules")  # fmt: skip
    ignored += tuple(
        f"re:.*{rule[2:]}" for rule in stated.get("dynamic") or () if str(rule).startswith("-:")
    )
    found = _by_method(method.replace("-", "_"), stated)
    return replace(found, ignored=ignored)


def _by_method(method: str, stated: Mapping[str, Any]) -> Scheme:
    group = _whole(stated, "group_size", "q_group_size")
    bits = _whole(stated, "bits", "w_bit", "num_bits") or 4
    if method == "fp8":
        block = stated.get("weight_block_size")
        if block is not None:
            return Scheme("fp8_block", "fp8", block=_block(block, "weight_block_size"))
        return Scheme("fp8_tensor", "fp8")
    if method in ("compressed_tensors", "compressed-tensors"):
        return _compressed(stated)
    if method in ("awq", "gptq", "auto_round", "auto-round", "gptqmodel"):
        kind = "awq" if "awq" in f"{method} {stated.get('packing_format', '')}" else "gptq"
        kind = kind if bits == 4 else "int8_w8a16" if bits == 8 else "unknown"
        return Scheme(kind, method, group or DEFAULT_GROUP, desc_act=stated.get("desc_act") is True,
                      symmetric=stated.get("sym", True) is not False)  # fmt: skip
    if method.startswith("modelopt"):
        algo = str(stated.get("quant_algo", method)).lower()
        kinds = {"nvfp4": "nvfp4", "mxfp8": "mxfp8", "fp8": "fp8_tensor", "fp8_pb_wo": "fp8_block"}
        kind = kinds.get(algo, "nvfp4" if "fp4" in algo else "unknown")
        return Scheme(kind, algo, tool="modelopt")
    if method in ("bitsandbytes", "bnb"):
        return Scheme("bnb" if stated.get("load_in_4bit", True) else "unknown", method)
    if method in _NAMES:
        kind = _NAMES[method]
        return Scheme(kind, method, group if kind in GROUPED else None)
    return Scheme("unknown", method[:40] or "without a name")


def _block(given: Any, key: str) -> int:
    """The side of a square block. Raises :class:`LintError` for what is none."""
    sides = given if isinstance(given, list | tuple) else []
    if not (len(sides) == 2 and all(type(side) is int and 0 < side < 1 << 16 for side in sides)):
        raise LintError(f"the config's {key} is {str(given)[:40]!r}: no two positive sizes")
    return int(max(sides))


def _compressed(stated: Mapping[str, Any]) -> Scheme:
    """compressed-tensors: a scheme, or one for each of its groups of modules."""
    groups = stated.get("config_groups")
    listed = list(groups.values())[:64] if isinstance(groups, Mapping) else []
    if len(listed) < 2 and not any(_targets(one) - {"Linear"} for one in listed):
        return _of_group(listed[0] if listed else None)
    made = tuple((tuple(sorted(_targets(one))), _of_group(one)) for one in listed)
    return replace(made[0][1], groups=made)


def _targets(group: Any) -> set[str]:
    named = group.get("targets") if isinstance(group, Mapping) else None
    return {str(one)[:500] for one in named[:100_000]} if isinstance(named, list) else set()


def _of_group(first: Any) -> Scheme:
    """What a group of modules says of weights and inputs."""
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(first, Mapping) or not isinstance(weights, Mapping):
        return Scheme("unknown", "compressed-tensors without config_groups", tool="ct")
    bits, kind = weights.get("num_bits"), str(weights.get("type"))
    strategy, group = str(weights.get("strategy")), _whole(weights, "group_size")
    inputs = isinstance(first.get("input_activations"), Mapping)
    made = Scheme("unknown", "compressed-tensors", tool="ct",
                  weight_bits=bits if type(bits) is int and 0 < bits <= 8 else None,
                  symmetric=weights.get("symmetric", True) is not False)  # fmt: skip
    if kind == "float" and bits == 8:
        if strategy == "block":
            block = weights.get("block_structure")
            size = 128 if block is None else _block(block, "block_structure")
            return replace(made, kind="fp8_block", block=size)
        if group == 32:
            return replace(made, kind="mxfp8")
        if not inputs:  # engines multiply these in 16 bits, by kernels whose demands nobody read
            return replace(made, name="compressed-tensors FP8 of weights alone")
        return replace(made, kind="fp8_tensor" if strategy == "tensor" else "fp8_channel")
    if kind == "float" and bits == 4:
        return replace(made, kind="mxfp4" if group == 32 else "nvfp4")
    if kind == "int" and bits == 8:
        if inputs:
            return replace(made, kind="int8_w8a8")
        return replace(made, kind="int8_w8a16", group=group if strategy == "group" else -1)
    if kind == "int" and bits == 4 and not inputs:
        return replace(made, kind="int4", group=group if strategy == "group" else -1)
    return made


def _whole(table: Mapping[str, Any], *keys: str) -> int | None:
    found = (table.get(key) for key in keys)
    return next((v for v in found if (type(v) is int and 0 < v < 1 << 20) or v == -1), None)


def _names(table: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    lists = (table.get(key) for key in keys)
    return tuple(str(n)[:500] for some in lists if isinstance(some, list) for n in some[:100_000])

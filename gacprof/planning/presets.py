"""What serving engines demand of a checkpoint's sizes, as presets: ``vllm==0.32,tp=4,fp8-block``.

A map says which sizes a device serves fast. An engine has demands of its own, of divisibility: what
breaks them is refused, padded at load time or stored in another type. They are data
(:mod:`gacprof.demands`), the same that ``gacprof lint`` reads; a plan under a preset gets only
sizes that meet the map *and* all of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gacprof.core.errors import LintError, PlanError
from gacprof.demands.evaluate import Setting
from gacprof.demands.products import Ranks
from gacprof.demands.quantisation import GGUF as GGUF_TYPES
from gacprof.demands.quantisation import NONE, Scheme, scheme
from gacprof.demands.table import Engine, engine
from gacprof.demands.targets import gpu, version

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

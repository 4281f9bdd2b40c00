"""The text of a preset, ``vllm==0.32,tp=4,fp8-block,gpu=h100``, as an engine with its setting."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gacprof.core.errors import LintError, PlanError
from gacprof.demands.evaluate import Setting
from gacprof.demands.products import Ranks
from gacprof.demands.quantisation import GGUF_BITS, NONE, Scheme, scheme
from gacprof.demands.table import Engine, engine
from gacprof.demands.targets import gpu, version

MARLIN_GROUPS = (-1, 32, 64, 128)
"""Group sizes of vLLM's Marlin kernels (marlin_utils.py, MARLIN_SUPPORTED_GROUP_SIZES)."""
NO_FACTORS = "holds one weight a linear layer"


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


def parse_preset(text: str) -> Preset:
    """``vllm==0.32,tp=4,fp8-block`` as a :class:`Preset`. Raises :class:`PlanError` for one that
    there is not, naming those that there are."""
    named, *words = [part.strip().lower() for part in text.split(",")]
    name, _, release = named.partition("==")
    if name not in ENGINES:
        raise PlanError(f"no preset is called '{named}': there are {', '.join(ENGINES)}")
    options = _options(text, name, words)
    tp = int(options.get("tp", 1))
    try:
        table = (
            Engine("mlx", "", covers=frozenset({"none"}))
            if name == "mlx"
            else engine(NAMED.get(name, name))
        )
        found = table.of(version(release))
        chip = gpu("cpu-amx" if "amx" in options else options.get("gpu", _default_gpu(options)))
    except LintError as error:
        raise PlanError(f"the preset '{text}': {error}") from None
    stored = _scheme(text, name, options)
    if stored.kind not in found.covers:
        raise PlanError(f"the preset '{text}': what {name} asks of {stored.name} was not read")
    setting = Setting(found, chip, stored, Ranks(tp, tp, tp, fused=found.fused))
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


PAIRS_ALONE = "the export of factor pairs runs on one shard"


def _default_gpu(options: Mapping[str, str]) -> str:
    """Marlin's kernels serve all GPUs that have no faster ones: Ampere's for example."""
    return "a100" if "marlin" in options else "any"


def _options(text: str, name: str, words: Sequence[str]) -> dict[str, str]:
    """The options with their values, all of them the engine's own; a quantisation as ``quant``."""
    options: dict[str, str] = {}
    known = ENGINES[name]
    for word in words:
        option, equals, value = word.partition("=")
        if option in options or not option or (equals and not value):
            raise PlanError(f"the preset '{text}' is not understood at '{word}'")
        taken = ("tp=N", "transformers") if "transformers" in (*options, option) else known
        if f"{option}=N" in taken:
            if not re.fullmatch(r"[1-9]\d{0,5}", value):
                raise PlanError(
                    f"the preset '{text}': write {option}=N with a positive whole number"
                )
        elif option in taken and value:
            raise PlanError(f"the preset '{text}': {option} takes no value")
        elif option not in taken and f"{option}=NAME" not in taken:
            _refuse_unknown(text, name, word, taken, options)
            option, value = "quant", word
        options[option] = value
    return options


def _refuse_unknown(
    text: str, name: str, word: str, taken: Sequence[str], options: Mapping[str, str]
) -> None:
    """Raise :class:`PlanError` for a word that is no quantisation, or is a second one."""
    if "quant" in options:
        kind = "types" if name in GGUF else "quantisations"
        raise PlanError(f"the preset '{text}' names two {kind}: {options['quant']} and {word}")
    is_type = _gguf_type(word) is not None
    if name in GGUF and is_type:
        return
    try:
        if name in GGUF or "a quantisation" not in taken:
            raise LintError
        scheme(word)
    except LintError:
        listed = ", ".join(GGUF_BITS) if name in GGUF else ", ".join(taken) or "none"
        listed = f"one type: {listed}" if name in GGUF else listed
        option = word.partition("=")[0]
        raise PlanError(
            f"the preset '{text}': {name} has no option '{option}' (it has {listed})"
        ) from None


def _gguf_type(word: str) -> Scheme | None:
    try:
        found = scheme(f"gguf_{word}")
    except LintError:
        return None
    return found if found.kind == "gguf" else None


def _scheme(text: str, name: str, options: Mapping[str, str]) -> Scheme:
    """How weights are stored. Marlin alone is weights with one scale a row."""
    quant = options.get("quant")
    if name in GGUF:
        return (_gguf_type(quant) if quant else None) or NONE
    weights_only = name in ("gptq", "awq") or "marlin" in options or "group" in options
    found = scheme(quant) if quant else NONE
    if weights_only and found is NONE:
        group = options.get("group") or ("128" if name in ("gptq", "awq") else "-1")
        kind = name if name in ("gptq", "awq") else "gptq"
        found = Scheme(kind, f"{kind}_g{group}", int(group))
    if "marlin" in options and found.group not in MARLIN_GROUPS:
        listed = ", ".join(str(each) for each in MARLIN_GROUPS if each > 0)
        raise PlanError(f"the preset '{text}': Marlin kernels know groups of {listed} only")
    return found

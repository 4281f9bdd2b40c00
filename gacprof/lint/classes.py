"""Whether an engine has the class that a config names, and reads the sizes that it states.

``classes-ENGINE.toml`` holds the names; ``tools/engine_facts`` reads them out of an engine's code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal

from gacprof.checkpoint.coverage import ACTIVATIONS, Gap, shown
from gacprof.checkpoint.from_config import ConfigSizes
from gacprof.checkpoint.layouts.configs import stated_size
from gacprof.core.files import shipped_table
from gacprof.kernels.requirements import DEMANDS, Engine, plain_version

TEXT_CLASSES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Ends of the names of transformers' classes that its table holds, all of them."""

Grade = Literal["refused", "wrong", "unknown", "note"]


@cache
def class_table(engine: str) -> Mapping[str, str]:
    """The names that were read out of an engine's code; ``demands/README.md`` explains the keys."""
    return shipped_table(DEMANDS / f"classes-{engine}.toml", dict[str, str])


@cache
def rows(engine: str, key: str) -> Mapping[str, list[str]]:
    """A list of an engine's table: the first word of each line, with the others."""
    lines = class_table(engine).get(key, "").strip().splitlines()
    return {line.split()[0]: line.split()[1:] for line in lines}


def class_gaps(sizes: ConfigSizes, engine: Engine, tp: int = 1) -> Iterator[Gap]:
    """What an engine is known to do with a config's class, but to run it as it is judged.

    Parameters
    ----------
    sizes
        The config's sizes. Its first class counts; without one, that of its model type does.
    engine
        An engine at a version. A table is of one version: at another, a missing class is unknown.
    tp
        Tensor-parallel ranks.

    Returns
    -------
    Iterator of Gap
        Refusals, what is unknown, and notes; nothing where the engine has the class.
    """
    config = sizes.whole
    if "peft_type" in config:
        kind, base = shown(config["peft_type"]), shown(config.get("base_model_name_or_path"))
        yield Gap("class", "peft_type", f"a {kind} adapter: name the base model, {base}", "refused")
        return
    types_of = rows("transformers", "native")
    types = {str(config.get("model_type")), sizes.model_type}
    of_type = [name for name in types_of if types.intersection(types_of[name])]
    native = rows(engine.name, "native")
    of_model = min(of_type, key=lambda candidate: candidate not in native, default="")
    name = stated_class(config) or of_model
    if name:
        if of_type and types_of.get(name) and name not in of_type:
            usual, stated = ", ".join(types_of[name]), shown(config.get("model_type"))
            why = f"{shown(name)} is the class of {usual}, and the config's type is {stated}"
            yield Gap("class", shown(name), why)
        repeats_heads = sizes.get("kv_heads") % tp > 0
        yield from _ways_to_run(name, engine, "auto_map" in config, repeats_heads)
        yield from _unmet_sizes(name, sizes, engine)
    elif not sizes.is_known_type:
        why = "no class is stated, and nobody read this model type"
        yield Gap("class", shown(sizes.model_type or "model_type"), why)


def stated_class(config: Mapping[str, Any]) -> str:
    """The first class that a config names; empty where it names none."""
    names = config.get("architectures")
    return str(names[0] or "") if isinstance(names, list) and names else ""


def _ways_to_run(name: str, engine: Engine, has_code: bool, repeats_heads: bool) -> Iterator[Gap]:
    """How an engine runs a class that it has not: by transformers' code, or not at all. Whether
    that code can repeat heads of keys and values on several ranks depends on the class."""
    table, dropped = class_table(engine.name), rows(engine.name, "dropped")
    until = dropped.get(name, ["0"])[0]
    if name in rows(engine.name, "native") or plain_version(engine.version) <= plain_version(until):
        return
    read, plain = f"{engine.name} {table['read']}", shown(name)
    grade, why = _grade(name, engine), f"{read} has no {plain}"
    in_transformers = name in rows("transformers", "native")
    is_open = in_transformers and name not in rows("transformers", "closed")
    is_listed = name in rows(engine.name, "by_transformers")
    if is_listed or (is_open and table["fallback"]):
        is_split = is_listed and name not in rows(engine.name, "unplanned")
        grade = "note" if is_split and not repeats_heads else "unknown"
        why = f"{engine.name} runs {plain} by transformers' code: {table['fallback']}"
    elif name in dropped:
        grade, why = "refused", f"{read} dropped {plain} after {until}"
    elif table["fallback"] and has_code:
        grade, why = "unknown", f"{why}: nobody read the checkpoint's own code"
    elif not in_transformers:
        why += f", nor has transformers {class_table('transformers')['read']}"
    yield Gap("class", plain, why, grade)


def _unmet_sizes(name: str, sizes: ConfigSizes, engine: Engine) -> Iterator[Gap]:
    """A key that the class needs and the config lacks, a head_dim that is stated and it never
    reads, an activation that it refuses."""
    for key in engine.required.get(name, ()):
        if sizes.values.get(key) is None:
            why = f"{engine.name}'s {name} reads {key}, which the config doesn't say"
            yield Gap("class", key, why, _grade(name, engine))
    stated, grade = stated_size(sizes.values, ["head_dim"]), _grade(name, engine)
    if stated and sizes.get("heads") and name in rows(engine.name, "without_head_dim"):
        built = sizes.get("hidden_size") // sizes.get("heads")
        why = f"{engine.name}'s {name} never reads head_dim {stated}: it builds {built}"
        if stated < built:
            yield Gap("key", "head_dim", f"{why}, and finds too few weights", grade)
        elif stated > built:
            loads: Grade = "wrong" if grade == "refused" else "unknown"
            yield Gap("key", "head_dim", f"{why}, and takes a part of the weights", loads)
    for key in ACTIVATIONS:
        activation = sizes.values.get(key)
        if activation not in (None, "silu", "swish") and name in rows(engine.name, "silu"):
            why = f"{engine.name}'s {name} takes silu alone, and {key} is {shown(activation)}"
            yield Gap("activation", key, why, grade)


def _grade(name: str, engine: Engine) -> Grade:
    """The grade of what an engine cannot do: of versions and classes that were read it is sure."""
    was_read = class_table(engine.name)["read"] == engine.read
    is_newest = plain_version(engine.version) == plain_version(engine.read)
    is_sure = was_read and is_newest and name.endswith(TEXT_CLASSES)
    return "refused" if is_sure else "unknown"

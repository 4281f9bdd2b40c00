"""Whether an engine has the class that a config names, and reads the sizes that it states.

``classes-ENGINE.toml`` holds the names; ``tools/engine_facts`` reads them out of an engine's code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from gacprof.checkpoint.coverage import ACTIVATIONS, Gap, Grade, shown
from gacprof.checkpoint.from_config import ConfigSizes
from gacprof.checkpoint.layouts.configs import stated_size
from gacprof.core.files import shipped_table
from gacprof.kernels.requirements import DEMANDS, Engine, plain_version

TEXT_CLASSES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Ends of the names of transformers' classes that its table holds, all of them."""


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
        An engine at a version. What a version between two that were read has is unknown.
    tp
        Tensor-parallel ranks.

    Returns
    -------
    Iterator of Gap
        Refusals, what is unknown, and notes; nothing where the engine has the class.
    """
    config = sizes.whole
    at, oldest = plain_version(engine.version), class_table(engine.name).get("oldest", "0")
    if not plain_version(oldest) <= at <= plain_version(engine.read):
        why = f"{engine.name} {at} was not read; the newest read is {engine.read}"
        yield Gap("class", engine.name, why)
    if "peft_type" in config:
        kind, base = shown(config["peft_type"]), shown(config.get("base_model_name_or_path"))
        yield Gap("class", "peft_type", f"a {kind} adapter: name the base model, {base}", "refused")
        return
    types_of = rows("transformers", "native")
    stated = str(config.get("model_type"))
    types = {stated, sizes.model_type}
    of_type = [name for name in types_of if types.intersection(types_of[name])]
    native = rows(engine.name, "native")
    names = config.get("architectures")
    name = str(names[0] or "") if isinstance(names, list) and names else ""
    if not name and of_type:
        name = min(of_type, key=lambda candidate: candidate not in native)
        yield Gap("class", "architectures", f"no class is stated: judged as {name}", "note")
    usual = types_of.get(name, [])
    if of_type and usual and name not in of_type:
        why = (
            f"{shown(name)} is the class of {', '.join(usual)}, and the config's is {shown(stated)}"
        )
        yield Gap("class", shown(name), why)
    if name:
        yield from _ways_to_run(name, sizes, engine, tp)
        yield from _unmet_sizes(name, sizes, engine)
    elif not sizes.is_known_type:
        why = "no class is stated, and nobody read this model type"
        yield Gap("class", shown(sizes.model_type or "model_type"), why)


def _ways_to_run(name: str, sizes: ConfigSizes, engine: Engine, tp: int) -> Iterator[Gap]:
    """How an engine runs a class that it has not: by transformers' code, or not at all. Whether
    that code can repeat heads of keys and values on several ranks depends on the class."""
    why, grade = _lack(name, engine)
    if not why:
        return
    fallback = class_table(engine.name)["fallback"]
    in_transformers = name in rows("transformers", "native")
    is_open = in_transformers and name not in rows("transformers", "closed")
    if grade == "note" or (is_open and fallback):
        grade = "note" if grade == "note" and sizes.get("kv_heads") % tp == 0 else "unknown"
        why += f", and takes transformers' code: {fallback}"
    elif fallback and "auto_map" in sizes.whole and name not in rows(engine.name, "dropped"):
        grade, why = "unknown", f"{why}: nobody read the checkpoint's own code"
    elif not in_transformers and name.endswith(TEXT_CLASSES):
        why += f", and transformers {class_table('transformers')['read']} has none"
    yield Gap("class", shown(name), why, grade)


def _lack(name: str, engine: Engine) -> tuple[str, Grade]:
    """Say why a version of an engine hasn't a class, and how sure that is: a note where it lists
    the class as one that it runs by transformers' code. Empty where it has the class."""
    at = plain_version(engine.version)
    since, lacking = rows(engine.name, "since").get(name, ["0", "0"])
    if at < plain_version(since):
        why = f"{engine.name} has {name} since {since} at the latest, {lacking} has not"
        return why, "refused" if at <= plain_version(lacking) else "unknown"
    until = rows(engine.name, "dropped").get(name, ["0"])[0]
    if name in rows(engine.name, "native") or at <= plain_version(until):
        return "", "note"
    read = f"{engine.name} {class_table(engine.name)['read']}"
    if until != "0":
        return f"{read} dropped {name} after {until}", "refused"
    why = f"{read} doesn't list {shown(name)} as its own"
    if name in rows(engine.name, "by_transformers"):
        return why, "unknown" if name in rows(engine.name, "unplanned") else "note"
    return why, _grade(name, engine)


def _unmet_sizes(name: str, sizes: ConfigSizes, engine: Engine) -> Iterator[Gap]:
    """A key that the class needs and the config lacks, a head_dim that is stated and it never
    reads, an activation that it refuses."""
    grade = _grade(name, engine)
    for key in engine.required.get(name, ()):
        if sizes.values.get(key) is None:
            why = f"{engine.name}'s {name} reads {key}, which the config doesn't say"
            yield Gap("class", key, why, grade)
    stated = stated_size(sizes.values, ["head_dim"])
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
        if activation not in (None, "silu") and name in rows(engine.name, "silu"):
            why = f"{engine.name}'s {name} takes silu alone, and {key} is {shown(activation)}"
            yield Gap("activation", key, why, grade)


def _grade(name: str, engine: Engine) -> Grade:
    """The grade of what an engine cannot do: of versions and classes that were read it is sure."""
    read = class_table(engine.name)["read"]
    is_newest = read == engine.read and plain_version(engine.version) == plain_version(read)
    is_sure = is_newest and name.endswith(TEXT_CLASSES)
    return "refused" if is_sure else "unknown"

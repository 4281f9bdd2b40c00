"""Whether an engine has the class that a config names, and reads the sizes that it states.

``classes-ENGINE.toml`` holds the names; ``tools/engine_facts`` reads them out of an engine's code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from gacprof.checkpoint.coverage import Gap
from gacprof.checkpoint.from_config import ConfigSizes, stated_size
from gacprof.core.files import shipped_table
from gacprof.core.formatting import one_line
from gacprof.kernels.requirements import DEMANDS, Engine, plain_version

MAX_LETTERS = 60
"""What is shown of a name out of a config."""
TEXT_CLASSES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Ends of the names of transformers' classes that its table holds, all of them."""


class EngineClasses:
    """What an engine's classes are, by name, as ``classes-ENGINE.toml`` has it.

    ``native`` are its own, ``by_transformers`` those that it lists and runs by transformers' code,
    ``dropped`` those that it had, with the last version. ``fallback`` says how it runs other code,
    empty where it doesn't. ``ignored`` are, by key, the classes that never name it. Of transformers
    itself: ``types``, the model types of a class, and ``closed``, those that engines cannot run.
    """

    def __init__(self, name: str) -> None:
        table = shipped_table(DEMANDS / f"classes-{name}.toml", dict[str, Any])
        self.read: str = table["read"]
        self.fallback: str = table.get("fallback", "")
        self.types = _first_words(table.get("types", ""))
        self.native = frozenset(table.get("native", "").split()) | self.types.keys()
        self.by_transformers = frozenset(table.get("by_transformers", "").split())
        self.dropped = _first_words(table.get("dropped", ""))
        self.closed = frozenset(table.get("closed", "").split())
        ignored = table.get("ignored", {}).items()
        self.ignored = {key: frozenset(names.split()) for key, names in ignored}


def _first_words(lines: str) -> dict[str, list[str]]:
    """The other words of each line by its first."""
    rows = [line.split() for line in lines.split("\n") if line]
    return {row[0]: row[1:] for row in rows}


classes_of = cache(EngineClasses)


def class_gaps(sizes: ConfigSizes, engine: Engine) -> Iterator[Gap]:
    """What an engine is known to do with a config's class other than to run it as it is judged.

    Parameters
    ----------
    sizes
        The config's sizes. Its first class counts; without one, that of its model type does.
    engine
        An engine at a version. The tables are of one version each: at another, nothing is refused.

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
    library, types = classes_of("transformers"), {str(config.get("model_type")), sizes.model_type}
    name = stated_class(config)
    if not name:
        named = [name for name, its in library.types.items() if types.intersection(its)]
        if not named and not sizes.is_known_type:
            why = "no class is stated, and nobody read this model type"
            yield Gap("class", shown(sizes.model_type or "model_type"), why)
        if not named or classes_of(engine.name).native.intersection(named):
            return
        name = named[0]
    elif library.types.get(name) and not types.intersection(library.types[name]):
        other = shown(config.get("model_type"))
        if any(types.intersection(its) for its in library.types.values()):
            of = ", ".join(library.types[name])
            yield Gap(
                "class", shown(name), f"is the class of {of}, and the config's type is {other}"
            )
    yield from _runs(name, engine, has_code="auto_map" in config)
    yield from _ignored(name, sizes, engine)


def stated_class(config: Mapping[str, Any]) -> str:
    """The first class that a config names; empty where it names none."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else names
    return name if isinstance(name, str) else ""


def shown(name: Any) -> str:
    """A name out of a config, in one line that isn't long."""
    return one_line(str(name)[:MAX_LETTERS])


def _runs(name: str, engine: Engine, *, has_code: bool) -> Iterator[Gap]:
    """How an engine runs a class that it has not."""
    has, library = classes_of(engine.name), classes_of("transformers")
    until = has.dropped.get(name)
    had_it = until and plain_version(engine.version) <= plain_version(until[0])
    if name in has.native or had_it:
        return
    plain = shown(name)
    is_open = name in library.types and name not in library.closed
    version = f"{engine.name} {has.read}"
    grade = _surely(engine)
    if name in has.by_transformers or (has.fallback and is_open):
        grade = "note" if name in has.by_transformers else "unknown"
        why = f"{engine.name} runs {plain} by transformers' code: {has.fallback}"
    elif until:
        grade, why = "refused", f"{version} dropped {plain} after {until[0]}"
    elif has.fallback and has_code:
        grade, why = "unknown", f"{version} has no {plain}: nobody read the checkpoint's own code"
    else:
        why = f"{version} has no {plain}"
        if has.fallback and engine.name != "transformers":
            also = "and cannot run that of" if name in library.closed else "nor has"
            why += f", {also} transformers {library.read}"
        if not name.endswith(TEXT_CLASSES):
            grade = "unknown"
    yield Gap("class", plain, why, grade)


def _ignored(name: str, sizes: ConfigSizes, engine: Engine) -> Iterator[Gap]:
    """Sizes that a config states and its class never reads, where it builds another one."""
    heads, hidden = sizes.get("heads"), sizes.get("hidden_size")
    if sizes.mixer != "grouped" or not heads:
        return
    builds = {
        "head_dim": ("hidden_size / heads", hidden // heads),
        "v_head_dim": ("head_dim", sizes.get("head_dim")),
        "num_key_value_heads": ("as many as heads", heads),
    }
    for key, names in classes_of(engine.name).ignored.items():
        words, size = builds[key]
        stated = stated_size(sizes.values, [key])
        if name in names and stated and size and stated != size:
            why = f"{engine.name}'s {shown(name)} never reads {key} {stated}: it builds {words}"
            yield Gap("key", key, f"{why} = {size}, so that the weights don't fit", _surely(engine))


def _surely(engine: Engine) -> Any:
    """The grade of what an engine cannot do: at another version than was read nobody knows."""
    was_read = classes_of(engine.name).read == engine.read
    is_newest = plain_version(engine.version) == plain_version(engine.read)
    return "refused" if was_read and is_newest else "unknown"

"""Read which classes an engine has, and which sizes they never name, out of its code.

    python tools/engine_facts vllm vllm-0.33.0-….whl [OLDER WHEELS …]
    python tools/engine_facts sglang sglang-0.5.23-….whl [OLDER WHEELS …]
    python tools/engine_facts transformers                     (the installed one)
    python tools/engine_facts tensorrt-llm tensorrt_llm/_torch/models/_arch_index.py COMMIT
    python tools/engine_facts llama.cpp conversion/__init__.py COMMIT
    python tools/engine_facts neutral                          (keys that bear no size; a minute)

Writes gacprof/kernels/demands/classes-ENGINE.toml and prints what changed. Code is parsed and never
run; ``neutral`` alone builds transformers' models, without data, and prints what it found.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
import zipfile
from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distribution
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from packaging.version import Version
from sources import config_names, entry_classes, files_of, first_strings, names_in, pairs

DEMANDS = Path(__file__).parents[2] / "gacprof" / "kernels" / "demands"
GENERATES = re.compile(r"^class (\w+(?:ForCausalLM|LMHeadModel|ForConditionalGeneration))\(", re.M)
OWN_ATTENTION = re.compile(r"^class \w*Attention\w*\(nn\.Module\):", re.M)
PLAN = re.compile(r"base_model_tp_plan = \{[^}]*att(?:n|ention)\.", re.S)
"""A plan of transformers' tensor parallelism that says how attention is split."""
INTERFACES = ("_supports_attention_backend = True", "ALL_ATTENTION_FUNCTIONS.get_interface(")
"""What a file of transformers has where its attention can be replaced: both engines ask for it."""
SILU_ALONE = "Only silu is supported"
SHARES_HEADS = "num_attention_heads"
OTHER_SIZES = {"kv_lora_rank", "q_lora_rank", "vision_config", "llm_config"}
"""A class that names one has latent attention, or builds its text by another class."""
HEAD_DIM = {"head_dim", "attention_head_dim", "kv_channels", "head_size", "get_head_size"}
"""What a class that shares heads may never name: then it builds hidden_size / heads."""
FALLBACKS = {
    "vllm": "q, k, v and gate, up fused where it recognises them",
    "sglang": "split by the model's own plan, nothing fused: rows for fused products don't apply",
    "transformers": "split by the model's own plan",
}
"""How an engine runs a class of transformers that it has not: read in transformers/fuser.py of
vLLM's models, and in SGLang's models/transformers.py."""
MAPS = {
    "llama.cpp": ("TEXT_MODEL_MAP", "MMPROJ_MODEL_MAP"),
    "tensorrt-llm": ("MODEL_ARCH_TO_MODULE",),
}
REGISTRY = re.compile(r"^(_\w+_MODELS)\b.* = \{", re.M)
NOT_OWN = re.compile("PREVIOUSLY|TRANSFORMERS|OOT|VLLM")
"""Tables of any vLLM's registry, and the names of those that hold no classes of its own."""
LISTED = "_TRANSFORMERS_SUPPORTED_MODELS"
KINDS = (
    *("TEXT_GENERATION", "EMBEDDING", "LATE_INTERACTION", "REWARD", "MULTIMODAL"),
    *("TOKEN_CLASSIFICATION", "SEQUENCE_CLASSIFICATION", "SPECULATIVE_DECODING"),
)
"""Tables of vLLM's registry: classes of its own."""
VLLM = "vllm/model_executor/models/"
SGLANG = "sglang/srt/models/"
Facts = dict[str, str]


def main() -> None:
    """Write an engine's table anew, and print what changed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", choices=["vllm", "sglang", "transformers", *MAPS, "neutral"])
    parser.add_argument("files", nargs="*", help="wheels; of others a file and its commit")
    options = parser.parse_args()
    engine, given = options.engine, options.files
    needed = {"vllm": 1, "sglang": 1, **dict.fromkeys(MAPS, 2)}.get(engine, 0)
    if len(given) < needed or (needed and not Path(given[0]).is_file()):
        parser.error(f"{engine} needs {'a wheel' if needed == 1 else 'a file and its commit'}")
    if needed == 1 and any(not Path(wheel).name.startswith(f"{engine}-") for wheel in given):
        parser.error(f"these are no wheels of {engine}: {', '.join(given)}")
    if engine == "neutral":
        from neutral import report

        return report()
    if engine in MAPS:
        source = Path(given[0]).read_text(encoding="utf-8")
        names = set()
        for map_name in MAPS[engine]:
            names |= first_strings(source, map_name).keys()
        facts = {"read": f"commit {given[1]}", "fallback": "", "native": lines_of(names)}
    elif engine == "transformers":
        facts = facts_of_transformers()
    else:
        sources, version = wheel_sources(given[0])
        facts = {"read": version, "fallback": FALLBACKS[engine]}
        facts |= facts_of_vllm(sources) if engine == "vllm" else facts_of_sglang(sources)
        facts |= facts_of_older(engine, facts, given[1:])
    write(engine, facts)


def wheel_sources(wheel: str) -> tuple[dict[str, str], str]:
    """The Python files of a wheel's models by path, and its version."""
    with zipfile.ZipFile(wheel) as archive:
        paths = [path for path in archive.namelist() if "/models/" in path and path.endswith(".py")]
        sources = {path: archive.read(path).decode("utf-8-sig") for path in paths}
    return sources, Path(wheel).name.split("-")[1]


def facts_of_vllm(sources: Mapping[str, str]) -> Facts:
    """The classes of vLLM's registry: its own, those run by transformers' code, dropped ones."""
    registry = sources[f"{VLLM}registry.py"]
    places: dict[str, str] = {}
    for kind in KINDS:
        places = first_strings(registry, f"_{kind}_MODELS") | places
    dropped = first_strings(registry, "_PREVIOUSLY_SUPPORTED_MODELS")
    listed = first_strings(registry, LISTED)
    towers = first_strings(registry, "_MULTIMODAL_MODELS")
    files = {name: module_path(places[name]) for name in places.keys() - towers.keys()}
    return {
        "native": lines_of(places),
        "by_transformers": lines_of(listed),
        "unplanned": lines_of(listed.keys() - planned_classes()),
        "dropped": lines_of(f"{name} {version}" for name, version in dropped.items()),
        "without_head_dim": without_head_dim(sources, files),
        "silu": silu_alone(sources, files),
    }


def module_path(module: str) -> str:
    """The file or folder of a module as vLLM's registry names it."""
    return module.replace(".", "/") if module.startswith("vllm.") else f"{VLLM}{module}"


def facts_of_sglang(sources: Mapping[str, str]) -> Facts:
    """SGLang's classes: each file's ``EntryClass``."""
    own = files_of_sglang(sources)
    return {
        "native": lines_of(own),
        "without_head_dim": without_head_dim(sources, own),
        "silu": silu_alone(sources, own),
    }


def files_of_sglang(sources: Mapping[str, str]) -> dict[str, str]:
    """The file of each of SGLang's own classes."""
    files: dict[str, str] = {}
    for path, source in sources.items():
        if path.startswith(SGLANG) and "/" not in path.removeprefix(SGLANG):
            files |= dict.fromkeys(entry_classes(source), path.removesuffix(".py"))
    return {name: path for name, path in files.items() if not name.startswith("Transformers")}


def facts_of_older(engine: str, facts: Facts, wheels: Sequence[str]) -> Facts:
    """Since when each class is there, by the older wheels that were given, else by the table as it
    is. The oldest version needs one wheel; of others post-releases may be given as well, and then
    all have to agree."""
    listed = set(facts.get("by_transformers", "").split())
    native = set(facts["native"].split())
    if not wheels:  # the table before is of an older release, which lacks what is new
        before = table_before(engine)
        since = before.get("since", "").splitlines()
        names = {*before.get("native", "").split(), *before.get("by_transformers", "").split()}
        if before.get("read", facts["read"]) != facts["read"]:
            new = (native | listed) - names
            since += [f"{name} {facts['read']} {before['read']}" for name in new]
        oldest = before.get("oldest", facts["read"])
        return {"oldest": oldest, "since": lines_of(filter(None, since))}
    had = {Version(facts["read"]): [native | listed]}
    for wheel in wheels:
        sources, version = wheel_sources(wheel)
        names = own_classes(sources) | listed_classes(sources) & listed
        had.setdefault(Version(Version(version).base_version), []).append(names)
    dropped = {line.split()[0] for line in facts.get("dropped", "").splitlines() if line}
    lines = (since_when(name, had) for name in native | listed | dropped)
    return {"oldest": str(min(had)), "since": lines_of(filter(None, lines))}


def since_when(name: str, had: Mapping[Version, list[set[str]]]) -> str:
    """A class with the first version from which on it is there, and the newest that lacks it before
    any has it; empty for a class that the oldest has."""
    having = [at for at in had if all(name in names for names in had[at])]
    if not having:
        print(f"no wheel read has {name}")
        return ""
    first, last = min(having), max(having)
    absent = [at for at in had if at < last and at not in having]  # some are away for a while
    if not absent:
        return ""
    since = min(at for at in having if at > max(absent))
    lacking = [at for at in had if at < first and not any(name in names for names in had[at])]
    return f"{name} {since} {max(lacking, default=0)}"


def own_classes(sources: Mapping[str, str]) -> set[str]:
    """The classes that a version of either engine has, whatever its tables were called."""
    registry = sources.get(f"{VLLM}registry.py")
    if registry is None:
        return set(files_of_sglang(sources))
    tables = [name for name in REGISTRY.findall(registry) if not NOT_OWN.search(name)]
    return {name for table in tables for name in first_strings(registry, table)}


def listed_classes(sources: Mapping[str, str]) -> set[str]:
    """The classes of transformers that a version of vLLM lists."""
    registry = sources.get(f"{VLLM}registry.py", "")
    return set(first_strings(registry, LISTED)) if LISTED in registry else set()


def without_head_dim(sources: Mapping[str, str], files: Mapping[str, str]) -> str:
    """The classes of text models that share heads, of which no file names their head_dim. Those
    whose class in transformers doesn't either are left out: there the key changes nothing."""
    names = []
    read_by_transformers = names_by_class_of_transformers()
    for name, path in files.items():
        named = names_in(sources, path)
        is_text = name.endswith("ForCausalLM") and not named & OTHER_SIZES
        is_of_size = "head_dim" in read_by_transformers.get(name, HEAD_DIM)
        if is_text and is_of_size and SHARES_HEADS in named and not named & HEAD_DIM:
            names.append(name)
    return lines_of(names)


def silu_alone(sources: Mapping[str, str], files: Mapping[str, str]) -> str:
    """The classes of text models that refuse every activation but silu, or take layers of such."""
    names = [name for name in files if name.endswith("ForCausalLM")]
    refusing = {file for file, source in sources.items() if SILU_ALONE in source}
    return lines_of(name for name in names if files_of(sources, files[name]) & refusing)


def planned_classes() -> set[str]:
    """The installed transformers' classes whose configs say how tensor parallelism splits them."""
    names: set[str] = set()
    for config in models_of_transformers().glob("*/configuration_*.py"):
        if PLAN.search(config.read_text(encoding="utf-8")):
            for path in config.parent.glob("modeling_*.py"):
                names.update(GENERATES.findall(path.read_text(encoding="utf-8")))
    return names


def names_by_class_of_transformers() -> dict[str, frozenset[str]]:
    """The names that the file of each of transformers' classes reads of a config."""
    named: dict[str, frozenset[str]] = {}
    for path in models_of_transformers().glob("*/modeling_*.py"):
        source = path.read_text(encoding="utf-8")
        named |= dict.fromkeys(GENERATES.findall(source), config_names(source))
    return named


def models_of_transformers() -> Path:
    """The folder of the models of the installed transformers."""
    return Path(str(distribution("transformers").locate_file("transformers"))) / "models"


def facts_of_transformers() -> Facts:
    """transformers' classes that generate text, with their model types; and those whose attention
    no engine can replace."""
    folder = models_of_transformers()
    auto = (folder / "auto" / "modeling_auto.py").read_text(encoding="utf-8")
    types: dict[str, set[str]] = {}
    closed: set[str] = set()
    for path in sorted(folder.glob("*/modeling_*.py")):
        source = path.read_text(encoding="utf-8")
        names = GENERATES.findall(source)
        types |= {name: set() for name in names}
        if OWN_ATTENTION.search(source) and not any(word in source for word in INTERFACES):
            closed |= set(names)
    for task in ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT"):
        for model_type, names in pairs(auto, f"MODEL_FOR_{task}_MAPPING_NAMES"):
            for name in names:
                types.setdefault(name, set()).add(model_type)
    lines = (" ".join([name, *sorted(types[name])]) for name in types)
    facts: Facts = {
        "read": distribution("transformers").version,
        "fallback": FALLBACKS["transformers"],
    }
    return facts | {"native": lines_of(lines), "closed": lines_of(closed)}


def lines_of(entries: Iterable[str]) -> str:
    """Entries, sorted, one a line."""
    return "\n" + "".join(f"{entry}\n" for entry in sorted(entries))


def table_before(engine: str) -> Facts:
    """An engine's table as it is; nothing where there is none."""
    path = DEMANDS / f"classes-{engine}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(engine: str, facts: Facts) -> None:
    """Write a table, and print what is new in each list and what is gone."""
    before = table_before(engine)
    text = "# Made by tools/engine_facts; README.md explains the words.\n\n"
    for key, value in facts.items():
        # a literal string is the quickest to read
        text += f"{key} = '''{value}'''\n" if "\n" in value else f'{key} = "{value}"\n'
        old, new = set(before.get(key, "").splitlines()), set(value.splitlines())
        for word, lines in (("new", new - old - {""}), ("gone", old - new - {""})):
            if lines:
                print(f"{key}: {len(lines)} {word}: {', '.join(sorted(lines))}")
    (DEMANDS / f"classes-{engine}.toml").write_text(text, encoding="utf-8")
    if all(before.get(key, "").strip() == value.strip() for key, value in facts.items()):
        print("nothing changed")


if __name__ == "__main__":
    main()

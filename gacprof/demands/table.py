"""Demands of engines as data: one TOML file an engine, one entry a demand.

An entry has *conditions* (which products it is about), what sizes it asks for, and what the engine
does with others (``outcome``), with its source and the engine's versions. ``docs/lint.md`` lists
the words. A new demand is one entry; a user's own file adds entries or a whole engine.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from gacprof.core.errors import LintError, why_unreadable
from gacprof.core.files import read_text
from gacprof.demands.quantisation import GGUF, KINDS
from gacprof.demands.targets import NumberRange, Version, version

Outcome = Literal["ok", "unknown", "pads", "falls_back", "wrong", "refused"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "unknown", "pads", "falls_back", "wrong", "refused")
"""From the best to the worst. A server that refuses to start serves nothing wrong."""


def in_words(outcome: str) -> str:
    """An outcome as every table, headline and remedy names it."""
    return "loads but wrong" if outcome == "wrong" else outcome.replace("_", " ")


RELATIONS = (
    "multiple", "either", "multiple_or_one", "at_least", "at_most", "one_of", "one_rank", "equal",
    "within_128", "blocks_fit", "never",
)  # fmt: skip
"""How a size has to stand to ``multiple``: divided by it; divided by it or dividing it; divided by
it or one; and so on. ``blocks_fit``: shards in whole blocks take no more blocks than together."""


@dataclass(frozen=True, eq=False)
class Conditions:
    """What all have to hold. Lists: one of them. Ranges: ``>=90,<100``. None: whatever."""

    quant: tuple[str, ...] | None = None
    kind: tuple[str, ...] | None = None
    split: tuple[str, ...] | None = None
    role: tuple[str, ...] | None = None
    family: tuple[str, ...] | None = None
    tool: tuple[str, ...] | None = None
    gpu: tuple[str, ...] | None = None
    group: tuple[int, ...] | None = None
    gguf: tuple[str, ...] | str | None = None
    tp: NumberRange | None = None
    sm: NumberRange | None = None
    version: NumberRange | None = None
    amd: bool | None = None
    gated: bool | None = None
    sharded: bool | None = None
    desc_act: bool | None = None
    symmetric: bool | None = None
    stored: bool | None = None
    partly: bool | None = None

    def hold(self, facts: Mapping[str, Any]) -> bool:
        """Whether all hold of these facts; a fact that is not among them is left aside."""
        return all(
            self._holds(name, asked, facts[name])
            for name, asked in self.asked.items()
            if name in facts
        )

    @cached_property
    def asked(self) -> Mapping[str, Any]:
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None}

    @staticmethod
    def _holds(name: str, asked: Any, fact: Any) -> bool:
        if isinstance(asked, NumberRange):
            return name == "version" if fact is None else asked.holds(fact)
        if name == "gguf":
            held = fact if isinstance(asked, tuple) or not fact else str(GGUF[fact][1])
            return held in asked if isinstance(asked, tuple) else held == asked
        return fact in asked if isinstance(asked, tuple) else fact == asked


@dataclass(frozen=True, eq=False)
class Demand:
    """One entry. ``N``, ``K`` are multiples on the axes of the rank's product, ``width`` on the
    axis that ranks split, ``hidden`` on the other, ``whole`` on the unsplit number. ``to`` is what
    sizes are padded to where that is another multiple. Multiples are numbers or words (``group``,
    ``block``, ``tp``, ``ep``, ``parts``, ``64*tp``). ``says`` are the engine's words about a size,
    ``why`` the reason in a few words."""

    id: str
    outcome: Outcome
    version: str
    source: str
    where: Conditions
    but: Conditions | None = None
    asks: tuple[tuple[str, int | str], ...] = ()
    alternatives: tuple[tuple[tuple[str, int | str], ...], ...] = ()
    to: tuple[tuple[str, int | str], ...] = ()
    relation: str = "multiple"
    shards: str = "sum"
    values: tuple[int, ...] = ()
    kernel: str = ""
    says: str = ""
    why: str = ""
    sure: str = "high"

    def applies(self, facts: Mapping[str, Any]) -> bool:
        but = self.but
        excepted = but and but.asked.keys() <= facts.keys() and but.hold(facts)
        return self.where.hold(facts) and not excepted

    @property
    def since(self) -> str:
        """The first version that does this; empty where nobody knows an earlier one."""
        first = self.version.partition(",")[0]
        return first.removeprefix(">=") if first.startswith(">=") else ""


@dataclass(frozen=True, eq=False)
class Engine:
    """``splits``: tensors or whole layers; ``experts``: how ranks share experts out; ``fused``: the
    products it fuses; ``uneven``: what it deals out although it does not divide; ``covers``: kinds
    of quantisation whose demands were read; ``read``: the version, meant where none is given; below
    ``oldest`` nothing was read."""

    name: str
    read: str
    splits: str = "tensors"
    experts: str = "tp / ep"
    fused: frozenset[str] = frozenset()
    uneven: frozenset[str] = frozenset()
    covers: frozenset[str] = frozenset()
    demands: tuple[Demand, ...] = field(default=(), repr=False)
    at: Version | None = None
    oldest: Version | None = None

    def of(self, asked: Version | None) -> Engine:
        """The engine with the demands of one version only, the newest read by default."""
        at = asked or version(self.read)
        kept = tuple(d for d in self.demands if d.where.hold({"version": at}))
        return replace(self, demands=kept, at=at)


WORDS = ("group", "block", "tp", "ep", "parts", "target")
"""What a multiple may be, besides a number; ``64*tp`` and ``max(64,group)`` too."""
_TERM = rf"(?:\d{{1,6}}|{'|'.join(WORDS)})"
_WORD = re.compile(rf"{_TERM}(?:\*{_TERM})*|max\({_TERM}(?:,{_TERM})+\)")
KNOWN = {
    "quant": KINDS,
    "gguf": tuple(GGUF),
    "kind": ("dense", "expert", "vocab", "count"),
    "split": ("column", "row", "replicated", "none"),
}

_AXES = ("N", "K", "width", "hidden", "whole")
_OWN = {"id", "outcome", "source", "relation", "shards", "values", "kernel", "says", "why", "sure"}


PLACEHOLDERS = ("size", "multiple", "axis", "n", "k", "block", "gcd", "next", "side", "letter")
"""What words of an engine may name in braces."""


def _require(holds: object, message: str) -> None:
    if not holds:
        raise LintError(message)


def _multiples(table: Any, where: str) -> tuple[tuple[str, int | str], ...]:
    is_table = isinstance(table, Mapping) and table and set(table) <= set(_AXES)
    _require(is_table, f"{where}: multiples are a table of {', '.join(_AXES)}")
    for axis, value in table.items():
        known = type(value) is int and 0 < value < 1 << 20
        known = known or (isinstance(value, str) and _WORD.fullmatch(value) is not None)
        words = f"give a positive number or {', '.join(WORDS)}"
        _require(known, f"{where}: {axis} is {value!r}: {words}")
    return tuple(table.items())


def _conditions(table: Mapping[str, Any], where: str) -> Conditions:
    made: dict[str, Any] = {}
    kinds = {f.name: str(f.type) for f in fields(Conditions)}
    for name, value in table.items():
        wanted = kinds.get(name, "")
        if "NumberRange" in wanted and isinstance(value, str):
            made[name] = NumberRange(value)
        elif "bool" in wanted and isinstance(value, bool):
            made[name] = value
        elif "tuple" in wanted and isinstance(value, list):
            made[name] = tuple(value)
        elif name == "gguf" and value in ("32", "64", "256"):
            made[name] = value
        else:
            raise LintError(f"{where}: {name} = {value!r} is not understood")
    for name, known in KNOWN.items():
        listed = made.get(name, ())
        if isinstance(listed, tuple):
            _require(set(listed) <= set(known), f"{where}: {name} is one of {', '.join(known)}")
    return Conditions(**made)


def _demand(entry: Any, file: str) -> Demand:
    is_named = isinstance(entry, dict) and isinstance(entry.get("id"), str)
    _require(is_named, f"{file}: a demand is a table with an id")
    where = f"{file}: demand '{entry['id'][:80]}'"
    for key in ("outcome", "source", "version"):
        _require(entry.get(key) and isinstance(entry[key], str), f"{where} has no {key}")
    names = {f.name for f in fields(Conditions)}
    rest = sorted(set(entry) - _OWN - names - set(_AXES) - {"alternatives", "to", "except"})
    _require(not rest, f"{where}: nothing is called {', '.join(rest)}")
    _require(
        entry["outcome"] in OUTCOMES and entry.get("relation", "multiple") in RELATIONS,
        f"{where}: outcomes are {', '.join(OUTCOMES)}; relations {', '.join(RELATIONS)}",
    )
    try:
        for key in ("says", "kernel", "why"):
            str(entry.get(key, "")).format_map(dict.fromkeys(PLACEHOLDERS, 1))
    except (KeyError, ValueError, IndexError, AttributeError) as error:
        named = ", ".join(PLACEHOLDERS)
        raise LintError(f"{where}: {key} may name {named} in braces: {error}") from None
    values, alternatives = entry.get("values", []), entry.get("alternatives", [])
    whole = isinstance(values, list) and all(type(value) is int for value in values)
    _require(whole, f"{where}: values are a list of whole numbers")
    asks = {axis: entry[axis] for axis in _AXES if axis in entry}
    asked = f"give {', '.join(_AXES)} or alternatives"
    _require(asks or alternatives, f"{where} asks for nothing: {asked}")
    return Demand(
        **{key: entry[key] for key in _OWN & entry.keys() if key != "values"},
        version=entry["version"],
        values=tuple(values),
        where=_conditions({k: v for k, v in entry.items() if k in names}, where),
        but=_conditions(entry["except"], where) if "except" in entry else None,
        asks=_multiples(asks, where) if asks else (),
        alternatives=tuple(_multiples(one, where) for one in alternatives),
        to=_multiples(entry["to"], where) if "to" in entry else (),
    )


def parse_engine(text: str, file: str) -> Engine:
    """An engine's table. Raises :class:`LintError` naming an entry that is not understood."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise LintError(f"{file}: not valid TOML: {error}") from None
    name, listed = data.get("name"), data.get("demand", [])
    is_engine = isinstance(name, str) and isinstance(listed, list)
    _require(is_engine, f"{file}: give the engine's name, and [[demand]] entries")
    known = {"name", "read", "splits", "experts", "fused", "uneven", "covers", "demand", "oldest"}
    rest = sorted(data.keys() - known)
    _require(not rest, f"{file}: nothing is called {', '.join(rest)}")
    return Engine(
        name=str(name),
        read=str(data.get("read", "")),
        splits=str(data.get("splits", "tensors")),
        experts=str(data.get("experts", "tp / ep")),
        fused=frozenset(data.get("fused", ())),
        uneven=frozenset(data.get("uneven", ())),
        covers=frozenset(data.get("covers", ())) | {"none"},
        demands=tuple(_demand(entry, file) for entry in listed),
        oldest=version(str(data.get("oldest", ""))),
    )


@cache
def _shipped(file: str) -> Engine:
    text = (resources.files("gacprof.demands") / "engines" / file).read_text(encoding="utf-8")
    return parse_engine(text, file)


SHIPPED = ("vllm", "sglang", "tensorrt-llm", "transformers", "llama.cpp")
_ALIASES = {
    "trt-llm": "tensorrt-llm", "trtllm": "tensorrt-llm", "tensorrt": "tensorrt-llm",
    "tensorrt_llm": "tensorrt-llm", "hf": "transformers", "huggingface": "transformers",
    "llamacpp": "llama.cpp",
    "llama-cpp": "llama.cpp", "llama_cpp": "llama.cpp", "ollama": "llama.cpp",
    "gguf": "llama.cpp",
}  # fmt: skip


def engine(name: str, own: Sequence[Path] = ()) -> Engine:
    """An engine with all its demands, and those of the user's ``own`` files that are about it.

    Raises :class:`LintError` naming those that there are.
    """
    added = [_read(path) for path in own]
    plain = name.strip().lower()
    plain = _ALIASES.get(plain, plain)
    found = _shipped(f"{plain}.toml") if plain in SHIPPED else None
    for one in added:
        if one.name == plain:
            found = one if found is None else replace(
                found, demands=(*found.demands, *one.demands), covers=found.covers | one.covers
            )  # fmt: skip
    if found is None:
        there = (*SHIPPED, *(one.name for one in added if one.name not in SHIPPED))
        raise LintError(f"no engine '{name}' is known: there are {', '.join(there)}")
    return found


def _read(path: Path) -> Engine:
    try:
        return parse_engine(read_text(path), str(path))
    except (OSError, ValueError) as error:
        raise LintError(f"{path}: cannot be read: {why_unreadable(error)}") from None

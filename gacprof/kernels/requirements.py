"""What serving engines require of the sizes that one TP rank holds, read from TOML.

A row has *conditions* on a product (which format, split, role, GPU, version …), multiples or other
bounds of its sizes, and the outcome for sizes that break them, with its source. A product that no
row is about is unknown. ``README.md`` beside the files lists the words.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from math import lcm
from typing import Any

from gacprof.core.errors import ConfigError

AXES = ("N", "K", "width", "hidden", "whole")
"""Sides of a rank's product: ``width`` is the side that ranks share, ``hidden`` the other one,
``whole`` the number before it is shared."""
TEXTS = ("id", "outcome", "source", "version", "relation", "shards", "kernel", "says", "sure", "to")
NOT_CONDITIONS = (*TEXTS, *AXES, "values", "alternatives", "except", "why")
"""Fields of a row that are not conditions on a product."""


@dataclass(frozen=True, eq=False)
class Requirement:
    """One row. ``relation`` is multiple, at_least, at_most, one_of or never; ``outcome`` is what
    becomes of a size that breaks it: pads, falls back, wrong (loads and answers wrongly), refused
    or unknown. The outcome ok says that sizes within the bounds are served as they are. Bounds are
    numbers or words: ``group``, ``block``, ``tp``, ``64*tp``."""

    id: str
    outcome: str
    source: str
    version: str
    conditions: Mapping[str, Any]
    bounds: Mapping[str, int | str]
    exceptions: Mapping[str, Any] = field(default_factory=dict)
    alternatives: tuple[Mapping[str, int | str], ...] = ()
    to: Mapping[str, int | str] = field(default_factory=dict)
    relation: str = "multiple"
    shards: str = "sum"
    values: tuple[int, ...] = ()
    kernel: str = ""
    says: str = ""
    sure: str = "high"

    def is_about(self, facts: Mapping[str, Any]) -> bool:
        """Whether a product of these facts meets all conditions and no exception."""
        if not matches_all(facts, self.conditions):
            return False
        return not self.exceptions or not matches_all(facts, self.exceptions)


def matches_all(facts: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    """Whether facts meet every condition."""
    return all(matches(facts.get(name), value) for name, value in conditions.items())


@dataclass(frozen=True, eq=False)
class Engine:
    """An engine at a version. ``splits`` is tensors or layers; ``experts`` how TP ranks share them;
    ``fused`` the products that it fuses; ``uneven`` what it deals out although it doesn't
    divide; it pads a vocabulary to ``vocab_multiple``."""

    name: str
    version: str
    read: str
    splits: str
    experts: str
    fused: frozenset[str]
    uneven: frozenset[str]
    vocab_multiple: int
    requirements: tuple[Requirement, ...]


def matches(fact: Any, condition: Any) -> bool:
    """Whether a fact meets a condition: one of a list, equal to a flag, or in a range of numbers
    or versions (``>=0.23,<0.29``); ``all`` is met by everything."""
    if condition == "all":
        return True
    if isinstance(condition, list):
        return fact in condition
    if isinstance(condition, bool) or fact is None:
        return bool(fact == condition)
    return _is_within(str(fact), condition)


@cache
def _is_within(number: str, bounds: str) -> bool:
    for sign, bound in re.findall(r"(>=|<=|==|>|<)([\d.]+)", bounds):
        left, right = version_key(number), version_key(bound)
        holds = {">=": left >= right, "<": left < right, ">": left > right, "<=": left <= right}
        if not holds.get(sign, left == right):
            return False
    return True


def version_key(text: str) -> tuple[int, ...]:
    """``0.8.5``, ``v1.2rc1`` or ``b10000`` as five numbers to compare by."""
    numbers = re.match(r"[vb]?(\d+(?:\.\d+)*)", text.strip().lower())
    if numbers is None:
        raise ConfigError(f"'{text}' names no version: write one such as 0.32.0")
    return (*map(int, numbers[1].split(".")), 0, 0, 0, 0)[:5]


def _read(name: str) -> Mapping[str, Any]:
    return tomllib.loads(files(__package__).joinpath(f"demands/{name}").read_text("utf-8"))


def _requirement(row: Mapping[str, Any]) -> Requirement:
    texts = {name: row[name] for name in TEXTS if name in row}
    texts["outcome"] = row["outcome"].replace("_", " ")
    return Requirement(
        **texts,
        conditions={name: value for name, value in row.items() if name not in NOT_CONDITIONS},
        bounds={axis: row[axis] for axis in AXES if axis in row},
        exceptions=row.get("except", {}),
        alternatives=tuple(row.get("alternatives", ())),
        values=tuple(row.get("values", ())),
    )


@cache
def load_engine(name: str, version: str | None = None) -> Engine:
    """The requirements of an engine's version; None: the newest that was read.

    Raises :class:`ConfigError` for an engine that nobody read, naming those that somebody did.
    """
    engines = _read("engines.toml")
    plain = name.strip().lower()
    for known_name, aliases in engines.items():
        if plain in (known_name, *aliases):
            break
    else:
        raise ConfigError(f"no engine '{name}' was read: use one of {', '.join(engines)}")
    data = _read(f"{known_name}.toml")
    at = version or data["read"]
    key = version_key(at)
    whole = ".".join(map(str, key))
    rows = [_requirement(row) for row in data["requirement"] if matches(whole, row["version"])]
    return Engine(
        known_name,
        at,
        data["read"],
        splits=data["splits"],
        experts=data["experts"],
        fused=frozenset(data["fused"]),
        uneven=frozenset(data.get("uneven", ())),
        vocab_multiple=data.get("vocab_multiple", 1),
        requirements=tuple(rows),
    )


def required_multiple(engine: str, storage: str = "none", sm: int = 90) -> int:
    """The multiple that makes any dense size one that an engine serves as it is: of N and K, in a
    storage format, on a GPU of a compute capability (90: H100)."""
    facts = {"form": storage, "kind": "dense", "sm": sm, "split": "column", "symmetric": True}
    bounds = [1]
    for row in load_engine(engine).requirements:
        if row.relation == "multiple" and "form" in row.conditions and row.is_about(facts):
            bounds += [bound for bound in row.bounds.values() if isinstance(bound, int)]
    return lcm(*bounds)


ANSWERS = {"vllm": "answers-vllm-0.33.0.json", "sglang": "answers-sglang-0.5.23.json"}
"""The newest recorded answers of an engine."""


@cache
def load_answers(engine: str) -> Mapping[str, Any]:
    """What an engine itself answered; without answers where it never was asked.

    ``answers`` are by the digest of a question (``Deployment.question``), their kernels are places
    in ``kernels``.
    """
    if engine not in ANSWERS:
        return {"version": "", "answers": {}}
    text = files(__package__).joinpath(f"demands/{ANSWERS[engine]}").read_text("utf-8")
    answers: Mapping[str, Any] = json.loads(text)
    return answers

"""What serving engines require of the sizes that one TP rank holds, read from TOML.

A row has *conditions* on a product (format, split, role, GPU, version …), bounds of its sizes, and
the outcome for sizes that break them, with its source. ``demands/README.md`` lists the words.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from gacprof.core.errors import ConfigError
from gacprof.core.files import shipped_table

DEMANDS = Path(__file__).with_name("demands")
ANSWERS = {"vllm": "answers-vllm-0.33.0.json", "sglang": "answers-sglang-0.5.23.json"}
"""The newest recorded answers of an engine."""

Bounds = Mapping[str, int | str]
"""By side of a rank's product: ``width`` is the side that ranks share, ``hidden`` the other one,
``whole`` the number before it is shared: a number, or a word (``group``, ``block``, ``64*tp``)."""


@dataclass(frozen=True, eq=False)
class Requirement:
    """One ``[[requirement]]``; ``demands/README.md`` explains its words."""

    id: str
    outcome: Literal["ok", "unknown", "pads", "falls back", "wrong", "refused"]
    source: str
    version: str
    conditions: Mapping[str, Any] = field(default_factory=dict)
    bounds: Bounds = field(default_factory=dict)
    exceptions: Mapping[str, Any] = field(default_factory=dict)
    alternatives: list[Bounds] = field(default_factory=list)
    to: Bounds = field(default_factory=dict)
    relation: Literal["multiple", "at_least", "at_most", "one_of", "never", "scales"] = "multiple"
    entries: Literal["floor", "ceil"] = "floor"
    shards: Literal["sum", "each", "all_but_last"] = "sum"
    values: list[int] = field(default_factory=list)
    kernel: str = ""
    says: str = ""
    sure: Literal["high", "medium", "low"] = "high"

    def is_about(self, facts: Mapping[str, Any]) -> bool:
        """Return whether a product of these facts meets all conditions, and not all exceptions."""
        is_excepted = self.exceptions and matches_all(facts, self.exceptions)
        return matches_all(facts, self.conditions) and not is_excepted


def matches_all(facts: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    """Return whether facts meet every condition."""
    return all(matches(facts.get(name), value) for name, value in conditions.items())


@dataclass(frozen=True, eq=False)
class Engine:
    """An engine at a version, the newest that was ``read``. ``splits`` is tensors or layers;
    ``experts`` is how TP ranks share them; ``fused`` are the products that it fuses; ``uneven`` are
    the counts that it splits even if ranks do not divide them; ``memory`` is the share of a GPU's
    memory that it takes by default; ``required`` are the keys that its classes read of every
    config, by class; ``flags`` are its command (``serve``) and its words for degrees;
    ``calls_sdpa``: PyTorch picks its kernel of attention."""

    name: str
    version: str
    read: str
    splits: str
    experts: str
    fused: frozenset[str]
    requirements: Sequence[Requirement]
    flags: Mapping[str, str]
    uneven: Sequence[str] = ()
    memory: float = 1.0
    calls_sdpa: bool = False
    required: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def serve_command(self, **degrees: int) -> str:
        """Return the command that serves a model at these degrees (``tp=8``). Degrees of 1 are the
        engine's default; for others it may have no flag."""
        words = [self.flags["serve"]]
        for name, degree in degrees.items():
            if degree > 1 and name in self.flags:
                words.append(self.flags[name].format(degree))
        return " ".join(words)

    @property
    def vocab_multiple(self) -> int:
        """What it pads a vocabulary to, whatever the ranks, by its rows about one."""
        for row in self.requirements:
            multiple = row.bounds.get("whole")
            pads = row.outcome == "pads" and row.is_about({"kind": "vocab"})
            if pads and isinstance(multiple, int):
                return multiple
        return 1


def matches(fact: Any, condition: Any) -> bool:
    """Return whether a fact meets a condition: one of a list, equal to a flag, or in a range of
    numbers or versions (``>=0.23,<0.29``); ``all`` is met by everything."""
    if condition == "all":
        return True
    if isinstance(condition, list):
        return fact in condition
    if isinstance(condition, bool) or fact is None:
        return bool(fact == condition)
    return _is_within(str(fact), condition)


@cache
def _is_within(number: str, bounds: str) -> bool:
    return plain_version(number) in SpecifierSet(bounds)


@cache
def plain_version(text: str) -> Version:
    """Return ``0.8.5``, ``v1.2rc1`` (1.2) or ``b10000+`` as a version to compare by."""
    try:
        version = Version(text.lower().strip(" vb+"))
    except InvalidVersion:
        raise ConfigError(f"'{text}' names no version: write one such as 0.32.0") from None
    # A release candidate sorts below its release, but has the requirements of the release.
    return Version(version.base_version)


@cache
def load_engine(name: str, version: str | None = None) -> Engine:
    """Return the requirements of an engine's version, by default the newest that was read. Raises
    :class:`ConfigError` for an engine that nobody read."""
    engines = shipped_table(DEMANDS / "engines.toml", dict[str, list[str]])
    plain = name.strip().lower()
    named = [engine for engine, aliases in engines.items() if plain in (engine, *aliases)]
    if not named:
        raise ConfigError(f"no engine '{name}' was read: use one of {', '.join(engines)}")
    table = shipped_table(DEMANDS / f"{named[0]}.toml", dict[str, Any])
    at = version or table["read"]
    number = str(plain_version(at))
    rows = [Requirement(**row) for row in table.pop("requirement")]
    applying = [row for row in rows if matches(number, row.version)]
    table["fused"] = frozenset(table["fused"])
    return Engine(**table, version=at, requirements=applying)


@cache
def load_answers(engine: str) -> Mapping[str, Any]:
    """Return an engine's own answers: ``answers-ENGINE-VERSION.json``, see ``README.md``."""
    if engine not in ANSWERS:
        return {"version": "", "answers": {}}
    answers: Mapping[str, Any] = json.loads((DEMANDS / ANSWERS[engine]).read_text(encoding="utf-8"))
    return answers

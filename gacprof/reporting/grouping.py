"""Dims that are alike as one row: ``layers 0–31 self_attn.{q,k,v,o}_proj:rank``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Group(Generic[T]):
    """``members`` share all that a table shows of them; ``name`` says which they are."""

    name: str
    members: tuple[T, ...]

    @property
    def first(self) -> T:
        return self.members[0]


def group(
    items: Iterable[T], name_of: Callable[[T], str], shown_of: Callable[[T], Hashable]
) -> list[Group[T]]:
    """Those with the same ``shown_of`` together, in the order of their first members.

    Names are joined over layers first, then over experts, then over what differs at the end: a row
    never names a dim that is not in it.
    """
    found: dict[Hashable, dict[_Name, list[T]]] = defaultdict(dict)
    for item in items:
        found[shown_of(item)].setdefault(_parts(name_of(item)), []).append(item)
    return [
        Group(str(name), tuple(members))
        for alike in found.values()
        for name, members in _joined(_joined(_joined(alike, "layers"), "experts"), "ends").items()
    ]


class _Name(NamedTuple):
    """``model.layers.3–5.mlp.experts.0–127.up_proj:width`` in its parts; what may be several is a
    tuple."""

    before: str
    layers: tuple[int, ...]
    between: str
    experts: tuple[int, ...]
    ends: tuple[str, ...]

    def __str__(self) -> str:
        end = _braced(self.ends)
        if self.experts:
            dot = "." if end and not end.startswith(":") else ""
            end = f"{self.between}.{ranges(self.experts)}{dot}{end}"
        if not self.layers:
            return end
        # "model.layers" and "model.decoder.layers" go without saying, an encoder's do not.
        plain = self.before.removeprefix("model.") in ("layers", "decoder.layers")
        where = "" if plain else f"{self.before} "
        return f"{where}layer{'s' if len(self.layers) > 1 else ''} {ranges(self.layers)} {end}"


def _joined(named: Mapping[_Name, list[T]], field: str) -> dict[_Name, list[T]]:
    """Names that differ in that field only as one."""
    found: dict[_Name, dict[_Name, list[T]]] = defaultdict(dict)
    for name, members in named.items():
        nothing: dict[str, Any] = {field: ()}
        found[name._replace(**nothing)][name] = members
    made = {}
    for rest, alike in found.items():
        parts = [part for name in alike for part in getattr(name, field)]
        whole: dict[str, Any] = {field: tuple(parts if field == "ends" else sorted(parts))}
        made[rest._replace(**whole)] = [item for of_one in alike.values() for item in of_one]
    return made


def ranges(numbers: Sequence[int]) -> str:
    """``0–3, 7, 9–12`` of ascending whole numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def _parts(name: str) -> _Name:
    """``model.layers.3.mlp:width`` → ("model.layers", (3,), "", (), ("mlp:width",)): the first
    number is a layer's, the second an expert's."""
    path, colon, kind = name.partition(":")
    parts = path.split(".")
    digits = [i for i, part in enumerate(parts) if part.isascii() and part.isdigit()][:2]
    numbers = digits if digits and digits[0] < len(parts) - 1 else []
    cuts = [-1, *numbers, len(parts)]
    *texts, end = [".".join(parts[a + 1 : b]) for a, b in pairwise(cuts)]
    before, between = (*texts, "", "")[:2]
    layers, experts = ((*((int(parts[i]),) for i in numbers), (), ()))[:2]
    return _Name(before, layers, between, experts, (end + colon + kind,))


def _braced(ends: Sequence[str]) -> str:
    """``self_attn.{q,k}_proj:rank`` of several; each written out where they have nothing alike."""
    if len(ends) == 1:
        return ends[0]
    front = _alike(ends)
    back = _alike([end[len(front) :][::-1] for end in ends])[::-1]
    middles = [end[len(front) : len(end) - len(back)] for end in ends]
    return f"{front}{{{','.join(middles)}}}{back}"


def _alike(texts: Sequence[str]) -> str:
    """What all begin with."""
    first, last = min(texts), max(texts)
    same = (i for i, letter in enumerate(first) if letter != last[i : i + 1])
    return first[: next(same, len(first))]

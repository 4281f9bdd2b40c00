"""Dims that are alike as one row: ``layers 0–31 self_attn.{q,k,v,o}_proj:rank``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

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

    Names are joined over layers first, then over what differs at the end: a row never names a dim
    that is not in it.
    """
    by_stem: dict[Hashable, dict[tuple[str, str], dict[int | None, T]]] = defaultdict(dict)
    for item in items:
        before, layer, after = _parts(name_of(item))
        by_stem[shown_of(item)].setdefault((before, after), {})[layer] = item
    groups = []
    for stems in by_stem.values():
        alike: dict[tuple[str, tuple[int | None, ...]], dict[str, list[T]]] = defaultdict(dict)
        for (before, after), by_layer in stems.items():
            alike[before, tuple(sorted(by_layer, key=_order))][after] = list(by_layer.values())
        for (before, layers), ends in alike.items():
            members = tuple(item for of_end in ends.values() for item in of_end)
            groups.append(Group(_name(before, layers, list(ends)), members))
    return groups


def ranges(numbers: Sequence[int]) -> str:
    """``0–3, 7, 9–12`` of ascending whole numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)


def _parts(name: str) -> tuple[str, int | None, str]:
    """``model.layers.3.mlp:width`` → ("model.layers", 3, "mlp:width"); the first number counts."""
    parts = name.split(".")
    for i, part in enumerate(parts[:-1]):
        if part.isascii() and part.isdigit():
            return ".".join(parts[:i]), int(part), ".".join(parts[i + 1 :])
    return "", None, name


def _order(layer: int | None) -> int:
    return -1 if layer is None else layer


def _name(before: str, layers: Sequence[int | None], ends: Sequence[str]) -> str:
    end = _braced(ends)
    numbers = [layer for layer in layers if layer is not None]
    if not numbers:
        return end
    # "model.layers" and "model.decoder.layers" go without saying, an encoder's do not.
    where = "" if before.removeprefix("model.") in ("layers", "decoder.layers") else f"{before} "
    return f"{where}layer{'s' if len(numbers) > 1 else ''} {ranges(numbers)} {end}"


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

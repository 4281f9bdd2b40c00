"""Which scale stands beside which weight on each rank: what loads and answers wrongly.

A loader gives every part of a rank a whole number of entries (``floor`` or ``ceil`` of its size by
the block), from entry rank × number on, and puts the parts one behind the other. A kernel looks at
the weight's own place on the rank, divided by the block. The two disagree where a part ends within
a block. What an engine refuses before it loads are rows of requirements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

Entries = Literal["floor", "ceil"]


@dataclass(frozen=True)
class Part:
    """A part of a product's side: its size on a rank, and how many ranks share the whole of it."""

    size: int
    ranks: int = 1


@dataclass(frozen=True)
class Loaded:
    """What becomes of scales: over all ranks ``misplaced`` of ``weights`` get a scale that isn't
    theirs; or ``refusal``, what the loader says of slices that don't fit."""

    misplaced: int = 0
    weights: int = 0
    refusal: str = ""


@dataclass(frozen=True)
class Slice:
    """A part on one rank: its weights start at ``first`` of the whole and ``local`` on the rank;
    ``count`` scales are copied from entry ``start`` of ``stored`` to ``place`` on the rank."""

    size: int
    first: int
    local: int
    start: int
    count: int
    stored: int
    place: int


def load_scales(
    parts: Sequence[Part], block: int, *, entries: Entries, is_sliced: bool = True
) -> Loaded:
    """What a loader does with the scales of every ``block`` weights of fused parts.

    A side that ranks don't share (``is_sliced`` false) has to be as long as what is stored.
    """
    if all(part.size % block == 0 for part in parts):
        return Loaded()
    room = number_of_entries(sum(part.size for part in parts), block, entries)
    misplaced = weights = 0
    for rank in range(max(part.ranks for part in parts)):
        slices = slices_of_rank(parts, rank, block, entries)
        refusal = refusal_of(slices, room, is_sliced)
        if refusal:
            return Loaded(refusal=refusal)
        misplaced += misplaced_on_rank(slices, block)
        weights += sum(part.size for part in parts)
    return Loaded(misplaced, weights)


def number_of_entries(size: int, block: int, entries: Entries) -> int:
    """How many scales a loader gives a size."""
    return size // block if entries == "floor" else ceil(size / block)


def slices_of_rank(parts: Sequence[Part], rank: int, block: int, entries: Entries) -> list[Slice]:
    """What a rank gets of each part; of heads that ranks repeat, several get the same."""
    slices: list[Slice] = []
    local, ranks = 0, max(part.ranks for part in parts)
    for part in parts:
        share = rank * part.ranks // ranks
        count = number_of_entries(part.size, block, entries)
        stored = ceil(part.size * part.ranks / block)
        place = number_of_entries(local, block, entries)
        first, start = share * part.size, share * count
        slices.append(Slice(part.size, first, local, start, count, stored, place))
        local += part.size
    return slices


def refusal_of(slices: Sequence[Slice], room: int, is_sliced: bool) -> str:
    """What torch says of the first slice that doesn't fit, in the checkpoint or on the rank."""
    for piece in slices:
        if not is_sliced and piece.count != piece.stored:
            return f"AssertionError: room for {piece.count} scales, and {piece.stored} are stored"
        for start, length in ((piece.start, piece.stored), (piece.place, room)):
            if start + piece.count > length:
                slice_of = f"start ({start}) + length ({piece.count})"
                return f"{slice_of} exceeds dimension size ({length})"
    return ""


def misplaced_on_rank(slices: Sequence[Slice], block: int) -> int:
    """How many weights of a rank find another scale than their own, or none."""
    loaded: dict[int, tuple[int, int]] = {}  # place on the rank: part and entry of it
    for part, piece in enumerate(slices):
        for entry in range(piece.count):
            loaded[piece.place + entry] = part, piece.start + entry
    misplaced = 0
    for part, piece in enumerate(slices):
        done = 0
        while done < piece.size:  # a run ends where the scale read or the true one changes
            local, weight = piece.local + done, piece.first + done
            run = min(block - local % block, block - weight % block, piece.size - done)
            if loaded.get(local // block) != (part, weight // block):
                misplaced += run
            done += run
    return misplaced

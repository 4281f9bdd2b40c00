"""Compute which scale meets which weight on each rank: what loads and answers wrongly.

A loader gives every part of a rank a whole number of entries (``floor`` or ``ceil`` of its size by
the block), from entry rank × number on, and joins the parts. A kernel looks at the weight's place
on the rank, divided by the block. The two disagree where a part ends within a block. Requirements
have the rows for what an engine refuses before it loads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal

Entries = Literal["floor", "ceil"]


class SliceError(ValueError):
    """An error of scales that a loader cannot copy, in torch's words."""


@dataclass(frozen=True)
class Part:
    """A part of a product's side: its size on a rank, and how many ranks share the whole of it."""

    size: int
    ranks: int = 1


def misplaced_weights(
    parts: Sequence[Part], block: int, *, entries: Entries, is_sliced: bool = True
) -> int:
    """Count the weights of all ranks that get another scale than that of their ``block``, or none.

    A side that ranks don't share (``is_sliced`` false) has to be as long as what is stored. Raises
    :class:`SliceError` where the loader does.
    """
    if all(part.size % block == 0 for part in parts):
        return 0
    misplaced = 0
    for rank in range(max(part.ranks for part in parts)):
        misplaced += sum(part.size for part in parts)
        for place, (start, end) in load_rank(parts, rank, block, entries, is_sliced).items():
            misplaced -= max(0, min(end, (place + 1) * block) - max(start, place * block))
    return misplaced


def load_rank(
    parts: Sequence[Part], rank: int, block: int, entries: Entries, is_sliced: bool
) -> dict[int, tuple[int, int]]:
    """Return the scales on a rank, in order: the start and end of each one's weights."""
    ranks = max(part.ranks for part in parts)
    room = number_of_scales(sum(part.size for part in parts), block, entries)
    loaded: dict[int, tuple[int, int]] = {}
    offset = 0
    for part in parts:
        share = rank * part.ranks // ranks  # heads that ranks repeat: several get the same
        count = number_of_scales(part.size, block, entries)
        place = number_of_scales(offset, block, entries)
        stored = ceil(part.size * part.ranks / block)
        if not is_sliced and count != stored:
            raise SliceError(f"AssertionError: {stored} scales are stored, and {count} fit")
        for start, length in ((share * count, stored), (place, room)):
            if start + count > length:
                piece = f"start ({start}) + length ({count})"
                raise SliceError(f"{piece} exceeds dimension size ({length})")
        for number in range(count):
            start = (share * count + number) * block - share * part.size
            end = min(start + block, part.size)
            loaded[place + number] = offset + max(start, 0), offset + end
        offset += part.size
    return loaded


def number_of_scales(size: int, block: int, entries: Entries) -> int:
    """Return how many scales a loader gives a size."""
    return size // block if entries == "floor" else ceil(size / block)

"""A caching allocator over a finite device memory: pools, segments, blocks with identities.

As torch's: blocks are rounded to 512 bytes and cut from segments of whole 2 MiB, a freed block
stays with its pool, and segments go back to the device only when the cache is emptied. Addresses
are never used twice, so that what was given back can be told from what came after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

import torch

BLOCK, SEGMENT = 512, 2 << 20
Pool = tuple[int, int]
"""As torch's graph pool handles; :data:`DEFAULT` is what all else allocates from."""
DEFAULT: Pool = (0, 0)


@dataclass
class Segment:
    base: int
    size: int
    free: list[tuple[int, int]] = field(default_factory=list)
    """(offset, size) of what is free, in order."""

    @property
    def unused(self) -> bool:
        return self.free == [(0, self.size)]


@dataclass(frozen=True)
class Block:
    id: int
    base: int
    size: int
    pool: Pool
    segment: Segment


class Memory:
    """``allocated`` and ``reserved`` are bytes; ``peak`` is the most that was ever reserved."""

    def __init__(self, total: int) -> None:
        self.total, self.allocated, self.reserved, self.peak = total, 0, 0, 0
        self.live: set[int] = set()
        """Identities of the blocks that are in use."""
        self._segments: dict[Pool, list[Segment]] = {}
        self._users: dict[Pool, int] = {DEFAULT: 1}
        self._base, self._ids = count(1 << 40, 1 << 40), count(1)

    def allocate(self, size: int, pool: Pool = DEFAULT) -> Block:
        """Raises ``OutOfMemoryError`` where the device has no room, even without its cache."""
        size = max(BLOCK, -(-size // BLOCK) * BLOCK)
        segment, place = self._fitting(size, pool) or self._new_segment(size, pool)
        offset, room = segment.free.pop(place)
        if room > size:
            segment.free.insert(place, (offset + size, room - size))
        made = Block(next(self._ids), segment.base + offset, size, pool, segment)
        self.live.add(made.id)
        self.allocated += size
        return made

    def _fitting(self, size: int, pool: Pool) -> tuple[Segment, int] | None:
        found = [
            (room, segment.base, segment, place)
            for segment in self._segments.get(pool, [])
            for place, (_, room) in enumerate(segment.free)
            if room >= size
        ]
        return min(found, key=lambda f: f[:2])[2:] if found else None

    def _new_segment(self, size: int, pool: Pool) -> tuple[Segment, int]:
        whole = -(-size // SEGMENT) * SEGMENT
        if self.reserved + whole > self.total:
            self.empty_cache()
        if self.reserved + whole > self.total:
            raise torch.cuda.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size / 2**30:.2f} GiB. GPU 0 has a total "
                f"capacity of {self.total / 2**30:.2f} GiB of which "
                f"{(self.total - self.reserved) / 2**30:.2f} GiB is free. …"
            )
        made = Segment(next(self._base), whole, [(0, whole)])
        self._segments.setdefault(pool, []).append(made)
        self.reserved += whole
        self.peak = max(self.peak, self.reserved)
        return made, 0

    def free(self, block: Block) -> None:
        self.live.discard(block.id)
        self.allocated -= block.size
        spans = sorted([*block.segment.free, (block.base - block.segment.base, block.size)])
        merged = [spans[0]]
        for offset, size in spans[1:]:
            last, length = merged[-1]
            if last + length == offset:
                merged[-1] = last, length + size
            else:
                merged.append((offset, size))
        block.segment.free = merged

    def use(self, pool: Pool) -> None:
        """A graph allocates from the pool from now on, until it is reset (:meth:`leave`)."""
        self._users[pool] = self._users.get(pool, 0) + 1

    def leave(self, pool: Pool) -> None:
        self._users[pool] -= 1

    def empty_cache(self) -> None:
        """Give back unused segments; those of a graph's pool only once no graph uses it."""
        for pool, segments in self._segments.items():
            if pool == DEFAULT or not self._users.get(pool):
                self.reserved -= sum(s.size for s in segments if s.unused)
                self._segments[pool] = [s for s in segments if not s.unused]

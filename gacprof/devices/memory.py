"""Operands from one piece of memory, so that no dim is fast or slow for where it happens to lie.

Each operand of a call has a piece of its own: two that shared one would be read from half the
bytes. Warm operands of all dims are views that begin at one address; an A/A replicate's begin at
another, else effects of the address would hide from the A/A floor. Cold weights move on through
the memory with each call, so that what one call read is met again only after ``reuse_bytes``
others: the reuse distance that weights have in a model of that size. No cache size is believed;
virtual machines report caches that they share with others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import MeasurementError
from gacprof.operators.base import pattern, repeated

if TYPE_CHECKING:
    import torch

    from gacprof.operators.base import Prepared

BoundCall = Callable[[], Any]
"""A call with its operands; takes nothing more."""

PAGE = 4096
REPLICATE_OFFSET = 9 * PAGE + 1024
"""Bytes: other pages and other cache sets, still aligned to 512 bytes as allocators do."""
GROWTH = 1.25
"""At least, by which memory that is too small grows: each curve brings operands a little larger
than the last, and memory that views still hold is not given back."""


class Arena:
    """Random numbers of one dtype on one device, given out as contiguous views."""

    def __init__(self, dtype: torch.dtype, device: torch.device, seed: int = 0) -> None:
        self.dtype, self._device, self._seed = dtype, device, seed
        self._memory: torch.Tensor | None = None
        self._next = 0
        self.growths = 0
        """How often it has moved to other memory; views given out before are of the old one."""

    def reserve(self, size_bytes: int) -> None:
        """Hold at least so many bytes. Views given out before stay valid, and keep the old ones."""
        import torch

        wanted = _elements(size_bytes + REPLICATE_OFFSET, self.dtype)
        held = 0 if self._memory is None else self._memory.numel()
        if held >= wanted:
            return
        wanted = max(wanted, int(GROWTH * held))
        self._memory = repeated((wanted,), pattern(str(self.dtype), self._device, self._seed))
        self.growths += 1
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def fixed(self, shape: tuple[int, ...], replicate: bool) -> torch.Tensor:
        """The view at the start, or at the replicates' offset."""
        self.reserve(prod(shape) * self.dtype.itemsize)
        assert self._memory is not None
        first = _elements(REPLICATE_OFFSET, self.dtype) if replicate else 0
        return self._memory[first : first + prod(shape)].view(shape)

    def moving(self, shape: tuple[int, ...]) -> torch.Tensor:
        """The next view, a page or more after the last one; from the start at the end."""
        assert self._memory is not None, "reserve first"
        size, page = prod(shape), _elements(PAGE, self.dtype)
        if self._next + size > self._memory.numel():
            self._next = 0
        strides = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
        view = self._memory.as_strided(shape, strides, self._next)
        self._next += -(-size // page) * page
        return view


class Arenas:
    """A device's arenas: one for each dtype of an operand's place in a call."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._arenas: dict[tuple[int, torch.dtype], Arena] = {}

    def place(self, prepared: Prepared, replicate: bool, cold: bool, reuse_bytes: int) -> Placement:
        """Operands from the arenas for the call, cold weights others each time.

        Cold weights have ``reuse_bytes`` between two uses of the same memory. Operands that are
        neither inputs nor weights nor outputs stay what they are.
        """
        placed: list[tuple[int, Arena, tuple[int, ...], bool]] = []
        own = list(prepared.operands)
        for place in (*prepared.inputs, *prepared.weights, *prepared.outputs):
            operand = prepared.operands[place]
            assert operand is not None
            moves = cold and place in prepared.weights
            number = -place - 1 if place in prepared.outputs else place + 1
            arena = self._arena(number, operand.dtype)
            placed.append((place, arena, tuple(operand.shape), moves))
            own[place] = None  # else its memory would be held
        made = Placement(prepared.call, own, placed, replicate)
        made.reserve(reuse_bytes)
        return made

    def view(self, shape: tuple[int, ...], dtype: torch.dtype, number: int) -> torch.Tensor:
        """Random numbers for a call's operand of that number, which other calls may share."""
        return self._arena(number, dtype).fixed(shape, replicate=False)

    def _arena(self, number: int, dtype: torch.dtype) -> Arena:
        key = number, dtype
        if key not in self._arenas:
            self._arenas[key] = Arena(dtype, self._device, seed=number)
        return self._arenas[key]


class Placement:
    """Binds a call to its operands, anew each time: an arena that grows begins elsewhere."""

    def __init__(
        self,
        call: Callable[..., Any],
        own: list[torch.Tensor | None],
        placed: Sequence[tuple[int, Arena, tuple[int, ...], bool]],
        replicate: bool,
    ) -> None:
        """``placed`` are the operand's place, its arena and shape, and whether it moves."""
        self._call, self._own, self._placed, self._replicate = call, own, placed, replicate
        self._bound = -1

    @property
    def growths(self) -> int:
        """How often its arenas have grown: what was bound at fewer lies in older memory."""
        return sum(arena.growths for _, arena, _, _ in self._placed)

    def reserve(self, reuse_bytes: int) -> None:
        """Room for the operands, and between two uses of what moves so many bytes."""
        for _, arena, shape, moves in self._placed:
            arena.reserve(prod(shape) * arena.dtype.itemsize + (reuse_bytes if moves else 0))

    def bind(self) -> BoundCall:
        """Raises :class:`MeasurementError` where two operands share memory."""
        operands, grown = list(self._own), self.growths != self._bound
        for place, arena, shape, moves in self._placed:
            if moves:
                operands[place] = arena.moving(shape)
            elif grown:
                self._own[place] = operands[place] = arena.fixed(shape, self._replicate)
        if grown:
            self._bound = self.growths
            _refuse_overlaps(operands)
        call = self._call
        return lambda: call(*operands)


def _refuse_overlaps(operands: Sequence[torch.Tensor | None]) -> None:
    """Raises :class:`MeasurementError` where two of a call's operands share memory."""
    spans = sorted(
        (t.untyped_storage()._cdata, t.storage_offset() * t.itemsize, t.nbytes, place)
        for place, t in enumerate(operands)
        if t is not None and t.numel()
    )
    for (one, first, size, place), (other, start, _, next_place) in pairwise(spans):
        if one == other and start < first + size:
            raise MeasurementError(f"operands {place} and {next_place} of a call share memory")


def _elements(size_bytes: int, dtype: torch.dtype) -> int:
    return -(-size_bytes // dtype.itemsize)

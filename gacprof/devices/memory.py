"""Operands from one piece of memory, so that no dim is fast or slow for where it happens to lie.

Warm operands of all dims are views that begin at one address; an A/A replicate's begin at
another, else effects of the address would hide from the A/A floor. Cold weights move on through
the memory with each call, so that what one call read is met again only after ``reuse_bytes``
others: the reuse distance that weights have in a model of that size. No cache size is believed;
virtual machines report caches that they share with others.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

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

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype, self._device = dtype, device
        self._memory: torch.Tensor | None = None
        self._next = 0
        self.growths = 0
        """How often it has moved to other memory; views given out before are of the old one."""

    def reserve(self, size_bytes: int) -> None:
        """Hold at least so many bytes. Views given out before stay valid, and keep the old ones."""
        import torch

        wanted = _elements(size_bytes + REPLICATE_OFFSET, self._dtype)
        held = 0 if self._memory is None else self._memory.numel()
        if held >= wanted:
            return
        wanted = max(wanted, int(GROWTH * held))
        self._memory = repeated((wanted,), pattern(str(self._dtype), self._device, seed=0))
        self.growths += 1
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def fixed(self, shape: tuple[int, ...], replicate: bool) -> torch.Tensor:
        """The view at the start, or at the replicates' offset."""
        self.reserve(prod(shape) * self._dtype.itemsize)
        assert self._memory is not None
        first = _elements(REPLICATE_OFFSET, self._dtype) if replicate else 0
        return self._memory[first : first + prod(shape)].view(shape)

    def moving(self, shape: tuple[int, ...]) -> torch.Tensor:
        """The next view, a page or more after the last one; from the start at the end."""
        assert self._memory is not None, "reserve first"
        size, page = prod(shape), _elements(PAGE, self._dtype)
        if self._next + size > self._memory.numel():
            self._next = 0
        strides = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
        view = self._memory.as_strided(shape, strides, self._next)
        self._next += -(-size // page) * page
        return view


class Arenas:
    """A device's arenas: one for inputs and one for weights of each dtype."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._arenas: dict[tuple[str, torch.dtype], Arena] = {}

    def place(
        self, prepared: Prepared, replicate: bool, cold: bool, reuse_bytes: int
    ) -> Callable[[], BoundCall]:
        """What binds the call to operands from the arenas, cold weights to others each time.

        Bound anew for each call: an arena that grows for another point begins elsewhere. Cold
        weights have ``reuse_bytes`` between two uses of the same memory. Operands that are neither
        inputs nor weights stay what they are.
        """
        stay: list[tuple[int, Arena, tuple[int, ...]]] = []
        move: list[tuple[int, Arena, tuple[int, ...]]] = []
        call, own = prepared.call, list(prepared.operands)
        for place in (*prepared.inputs, *prepared.weights):
            operand = prepared.operands[place]
            assert operand is not None
            weight = place in prepared.weights
            arena = self._arena("weights" if weight else "inputs", operand.dtype)
            arena.reserve(operand.nbytes + (reuse_bytes if cold and weight else 0))
            (move if cold and weight else stay).append((place, arena, tuple(operand.shape)))
            own[place] = None  # else its memory would be held
        growths = -1

        def bind() -> BoundCall:
            nonlocal growths
            grown = sum(arena.growths for _, arena, _ in stay)
            if grown != growths:
                growths = grown
                for place, arena, shape in stay:
                    own[place] = arena.fixed(shape, replicate)
            operands = list(own)
            for place, arena, shape in move:
                operands[place] = arena.moving(shape)
            return lambda: call(*operands)

        return bind

    def view(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Random numbers for an operand that need not be its own."""
        return self._arena("weights", dtype).fixed(shape, replicate=False)

    def _arena(self, role: str, dtype: torch.dtype) -> Arena:
        return self._arenas.setdefault((role, dtype), Arena(dtype, self._device))


def _elements(size_bytes: int, dtype: torch.dtype) -> int:
    return -(-size_bytes // dtype.itemsize)

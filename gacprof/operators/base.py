"""What an operator is: a name, its dims and flags, its work, and how to set it up on a device.

A new operator is one class derived from :class:`Operator`, and one line in
``operators/__init__.py``. Nothing here imports torch: suites are validated without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import SuiteError
from gacprof.core.points import BYTES_PER_ELEMENT, MAX_DIM, Flag, Point

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Prepared:
    """``call(*operands)`` is what is timed. A device may call it on copies of the operands.

    ``inputs`` and ``weights`` are the places of contiguous operands of random numbers, which a
    device may take from memory of its own. Weights (and keys and values) are what a model reads
    once a pass: they are not in cache when their turn comes. Inputs were just written.
    ``outputs`` are operands that the call writes, whatever they held before.
    """

    call: Callable[..., Any]
    operands: tuple[torch.Tensor | None, ...]
    inputs: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()

    def __call__(self) -> Any:
        return self.call(*self.operands)


class Operator(ABC):
    """One kind of work whose speed depends on its dims."""

    name: str
    dims: tuple[str, ...]
    """Names of all dims, in the order a reader expects them."""
    default_dims: Mapping[str, int | str] = {}
    """Dims that may be left out: a number, or the name of the dim whose size they take."""
    flags: Mapping[str, tuple[Flag, ...]]
    """Allowed values by flag; the first is the default."""
    omitted_if_default: tuple[str, ...] = ()
    """Flags that a point carries only where they differ from their default. A flag added to an
    operator later is one of these, so that points measured before it existed keep their identity.
    """
    dtypes: tuple[str, ...]

    @abstractmethod
    def flops(self, point: Point) -> int:
        """Floating-point operations of one call."""

    @abstractmethod
    def bytes_moved(self, point: Point) -> int:
        """Bytes that one call must at least read and write."""

    @abstractmethod
    def prepare(self, point: Point, device: torch.device) -> Prepared:
        """Allocate seeded random operands, and say which call is to be timed on them."""

    def problem(self, point: Point) -> str | None:
        """Why this operator cannot take such a point, or None if it can."""
        return None


def canonical(
    operator: Operator, dims: Mapping[str, int], dtype: str, flags: Mapping[str, Flag]
) -> Point:
    """The point with every dim and flag spelt out, save those of ``omitted_if_default``.

    Raises :class:`SuiteError` naming the key at fault.
    """
    full_dims = _complete_dims(operator, dims)
    _refuse_unknown(operator, "dtype", (dtype,), operator.dtypes)
    return Point.of(operator.name, full_dims, dtype, _complete_flags(operator, flags))


def _refuse_unknown(
    operator: Operator, what: str, given: Iterable[str], known: Collection[str]
) -> None:
    for name in given:
        if name not in known:
            raise SuiteError(
                f"operator '{operator.name}' has no {what} '{name}' (it has {', '.join(known)})"
            )


def _complete_dims(operator: Operator, dims: Mapping[str, int]) -> dict[str, int]:
    _refuse_unknown(operator, "dim", dims, operator.dims)
    full: dict[str, int] = {}
    for name in operator.dims:
        size: int | str | None = dims.get(name, operator.default_dims.get(name))
        if isinstance(size, str):
            size = full[size]
        if size is None:
            raise SuiteError(f"operator '{operator.name}' needs a size for its dim '{name}'")
        if isinstance(size, bool) or not isinstance(size, int) or not 0 < size <= MAX_DIM:
            raise SuiteError(
                f"dim '{name}' of operator '{operator.name}' is {size!r}: "
                f"it must be an integer from 1 to {MAX_DIM}"
            )
        full[name] = size
    return full


def _complete_flags(operator: Operator, flags: Mapping[str, Flag]) -> dict[str, Flag]:
    _refuse_unknown(operator, "flag", flags, operator.flags)
    for name, value in flags.items():
        allowed = operator.flags[name]
        if not any(value is a or (type(value) is type(a) and value == a) for a in allowed):
            raise SuiteError(
                f"flag '{name}' of operator '{operator.name}' is {value!r}: "
                f"it must be one of {', '.join(map(repr, allowed))}"
            )
    full = {name: flags.get(name, allowed[0]) for name, allowed in operator.flags.items()}
    for name in operator.omitted_if_default:
        if full[name] == operator.flags[name][0]:
            del full[name]
    return full


def itemsize(point: Point) -> int:
    """Bytes of one element of the point's dtype."""
    return BYTES_PER_ELEMENT[point.dtype]


Source = Callable[[tuple[int, ...], "torch.dtype", int], "torch.Tensor"]
"""Gives a tensor of random numbers of that shape and dtype, for a call's operand of that number:
those of one call share no memory."""

_source: ContextVar[Source | None] = ContextVar("source", default=None)


@contextmanager
def operands_from(source: Source) -> Iterator[None]:
    """Within, operators take their random operands from ``source`` in place of memory of their
    own: a device gives views of memory that all points share."""
    token = _source.set(source)
    try:
        yield
    finally:
        _source.reset(token)


def random_tensor(
    shape: tuple[int, ...], point: Point, device: torch.device, seed: int
) -> torch.Tensor:
    """Standard-normal operands: zeros would run 13–15 % faster than real data does.

    ``seed`` is the operand's number in its call, from 1 on. Numbers drawn once are repeated:
    drawing each operand took longer than timing it.
    """
    source = _source.get()
    if source is not None:
        return source(shape, torch_dtype(point.dtype), seed)
    return repeated(shape, pattern(point.dtype, device, seed))


def written_tensor(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, number: int
) -> torch.Tensor:
    """Memory for what a call writes; ``number`` as for :func:`random_tensor`."""
    import torch

    source = _source.get()
    if source is not None:
        return source(shape, dtype, -number)
    return torch.empty(shape, dtype=dtype, device=device)


def repeated(shape: tuple[int, ...], numbers: torch.Tensor) -> torch.Tensor:
    """A new tensor of that shape, filled with the pattern over and over."""
    elements = prod(shape)
    if elements <= numbers.numel():
        return numbers[:elements].clone().view(shape)
    return numbers.repeat(-(-elements // numbers.numel()))[:elements].view(shape)


PATTERN_ELEMENTS = (1 << 16) + 1
"""More than any kernel's tile, and odd, so that rows of no power of two are all the same."""


@lru_cache(maxsize=64)
def pattern(dtype: str, device: torch.device, seed: int) -> torch.Tensor:
    """Random numbers of a compute or storage dtype, drawn once."""
    import torch

    dtype = dtype.removeprefix("torch.")
    generator = torch.Generator().manual_seed(seed)
    if dtype == "int8":
        shape = (PATTERN_ELEMENTS,)
        drawn = torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)
    else:
        drawn = torch.randn(PATTERN_ELEMENTS, generator=generator).to(torch_dtype(dtype))
    return drawn.to(device)


def torch_dtype(dtype: str) -> torch.dtype:
    """The storage type of a compute dtype (``tf32`` is stored as float32)."""
    import torch

    return getattr(torch, {"tf32": "float32", "float8_e4m3": "float8_e4m3fn"}.get(dtype, dtype))


def set_precision(point: Point) -> None:
    """Let float32 products use TF32 tensor cores if the point's dtype is ``tf32``, else not.

    Process-wide. Not by the ``fp32_precision`` settings: PyTorch raises where code that reads
    the older switch, as Inductor's did, meets a state set by the newer ones alone, while this
    one sets both.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = point.dtype == "tf32"


def moved_off(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """The same contiguous tensor at an address ``elements`` past an allocation's start.

    Allocators give addresses aligned to 64 bytes (CPU) or 512 (CUDA); kernels choose their
    load width by the address as well as by the dims.
    """
    if not elements:
        return tensor
    pool = tensor.new_empty(tensor.numel() + elements)
    return pool[elements:].view(tensor.shape).copy_(tensor)

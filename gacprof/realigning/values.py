"""The elements of new tensors. Here, and only here, cuts read the data.

The best factors of a smaller rank are those of the product's SVD (Eckart and Young), from QR of
both factors and the SVD of the small r×r core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from gacprof.checkpoint.inventory import Place
from gacprof.checkpoint.writer import read_blocks
from gacprof.core.errors import CheckpointError
from gacprof.realigning.changes import Change, NewCheckpoint, NewTensor

TINY = 1e-14
"""Singular values below this share of the largest are noise of float64 (its epsilon is 2e-16)."""
CUTS_KEPT = 32
"""Cuts in memory at once: a cut is needed by every tensor of its dim, and those lie together."""


class NewValues:
    """The elements of new tensors; ``importance`` of entries counts instead of norms."""

    def __init__(
        self,
        new: NewCheckpoint,
        read: Callable[[str], torch.Tensor],
        importance: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self.new = new
        self.read = read
        self.importance = importance or {}
        self._cuts: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def tensor(self, new: NewTensor) -> torch.Tensor:
        """The elements of a new tensor, in the stored dtype: a copy, contiguous."""
        parts = [self.changed(name) for name in new.parts]
        if new.inner:
            inner = self.changed(new.inner)
            sections = inner.double().split([part.shape[1] for part in parts])
            pairs = zip(parts, sections, strict=True)
            parts = [rounded(part.double() @ rows, inner.dtype) for part, rows in pairs]
        if len(parts) == 1:
            return parts[0].clone(memory_format=torch.contiguous_format)
        return torch.cat(parts)

    def blocks(self, new: NewTensor) -> Iterator[torch.Tensor]:
        """Yield a new tensor of a checkpoint on disk in parts along its first axis."""
        if new.inner or len(new.parts) > 1:
            yield self.tensor(new)
            return
        axes = self._axes(new.parts[0])
        for block in self._rows(new.parts[0], axes.pop(0, ())):
            resized_block = block
            for axis, segments in axes.items():
                resized_block = resized(resized_block, axis, segments)
            yield resized_block

    def _rows(self, name: str, segments: Sequence[Segment]) -> Iterator[torch.Tensor]:
        """Yield the first axis of a stored tensor, replaced by segments where there are any."""
        inventory = self.new.inventory
        if not segments:
            yield from read_blocks(inventory, name)
        for segment in segments:
            if isinstance(segment, Take) and isinstance(segment.index, range):
                yield from read_blocks(inventory, name, segment.index)
            else:
                yield segment.read(self.read(name), 0)

    def changed(self, name: str) -> torch.Tensor:
        """Return a stored tensor with all of its changes."""
        tensor = self.read(name)
        for axis, segments in self._axes(name).items():
            tensor = resized(tensor, axis, segments)
        return tensor

    def _axes(self, name: str) -> dict[int, list[Segment]]:
        """The segments of every axis of a stored tensor that changes."""
        shape = self.new.inventory.shape(name)
        stretches: dict[int, list[Stretch]] = {}
        for change, place in self.new.edits.get(name, ()):
            size = change.dim.size * place.per
            stretch = (place.start, size, self._segments(change, place))
            stretches.setdefault(place.axis, []).append(stretch)
        return {axis: compose(shape[axis], changed) for axis, changed in stretches.items()}

    def _segments(self, change: Change, place: Place) -> tuple[Segment, ...]:
        """A place's stretch after the change."""
        start = place.start
        if change.method == "zeros":
            stored = Take(range(start, start + change.dim.size * place.per))
            return stored, Zeros((change.size - change.dim.size) * place.per)
        if change.method == "order":
            return (Take(range(start, start + change.size)),)
        if change.dim.name not in self._cuts:
            if len(self._cuts) == CUTS_KEPT:
                self._cuts.clear()
            self._cuts[change.dim.name] = self._cut(change)
        cut = self._cuts[change.dim.name][place.axis]
        if change.method == "svd":
            return (Mix(start, cut),)
        return (Take([start + i for i in cut.tolist()]),)

    def _cut(self, change: Change) -> tuple[torch.Tensor, torch.Tensor]:
        """By axis, the entries of the dim that are kept, or the matrix that combines them."""
        if change.dim.name in self.importance:
            entries = most_important(self.importance[change.dim.name], change.size)
            return entries, entries
        matrices = []
        for place in change.dim.places:
            tensor = self.read(place.tensor)
            if tensor.dim() == 2:  # a bias says nothing about a width's importance
                stretch = tensor.narrow(place.axis, place.start, change.dim.size)
                matrices.append((place.axis, stretch.double()))
        if change.method == "svd":
            factors = dict(matrices)
            return best_factors(factors[1], factors[0], change.size)
        norms = torch.stack([matrix.norm(dim=1 - axis) for axis, matrix in matrices])
        entries = most_important(norms.prod(0), change.size)
        return entries, entries


def best_factors(
    outer: torch.Tensor, inner: torch.Tensor, rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Matrices [r, rank] to combine the rows of inner [r, in] and the columns of outer [out, r] by.

    With outer = Q₁R₁ and innerᵀ = Q₂R₂ the product is Q₁(R₁R₂ᵀ)Q₂ᵀ; from the core's SVD P·S·Qᵀ
    follow the columns R₂ᵀQS^-½ and the rows S^-½PᵀR₁. Only singular values that stay are inverted.
    """
    outer_r = torch.linalg.qr(outer, mode="r").R
    inner_r = torch.linalg.qr(inner.T, mode="r").R
    p, s, q_t = torch.linalg.svd(outer_r @ inner_r.T, full_matrices=False)
    scale = torch.where(s > TINY * s[0], s.rsqrt(), 0.0)[:rank]
    columns = (inner_r.T @ q_t[:rank].T) * scale
    rows = (outer_r.T @ p[:, :rank]) * scale
    return rows, columns


def most_important(importance: torch.Tensor, count: int) -> torch.Tensor:
    """The indices of the ``count`` largest values, ascending."""
    return importance.argsort(descending=True, stable=True)[:count].sort().values


@dataclass(frozen=True)
class Zeros:
    """``size`` entries that are zero."""

    size: int

    def read(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        shape = list(tensor.shape)
        shape[axis] = self.size
        return tensor.new_zeros(shape)


@dataclass(frozen=True)
class Take:
    """The entries at ``index`` in the source axis, in this order; every bit is kept."""

    index: Sequence[int]

    def read(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        if isinstance(self.index, range):
            return tensor.narrow(axis, self.index.start, len(self.index))
        return tensor.index_select(axis, torch.tensor(self.index, device=tensor.device))


@dataclass(frozen=True, eq=False)
class Mix:
    """Combinations of the entries from ``start`` by a ``matrix`` [old, new], in float64."""

    start: int
    matrix: torch.Tensor

    def read(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        stretch = tensor.narrow(axis, self.start, len(self.matrix)).double()
        mixed = torch.tensordot(stretch, self.matrix, ([axis], [0]))
        return rounded(mixed.movedim(-1, axis), tensor.dtype)


Segment = Zeros | Take | Mix
Stretch = tuple[int, int, Sequence[Segment]]
"""A start and a number of entries from there, to be replaced by segments."""


def compose(length: int, stretches: Iterable[Stretch]) -> list[Segment]:
    """The segments of a whole axis of ``length``, of which disjoint stretches are replaced."""
    segments: list[Segment] = []
    end = 0
    for start, size, new in sorted(stretches, key=lambda stretch: stretch[0]):
        segments += [Take(range(end, start)), *new]
        end = start + size
    return [*segments, Take(range(end, length))]


def resized(tensor: torch.Tensor, axis: int, segments: Iterable[Segment]) -> torch.Tensor:
    """``tensor`` with one axis replaced by its segments, in the same dtype."""
    return torch.cat([segment.read(tensor, axis) for segment in segments], dim=axis)


def rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float64 values rounded to ``dtype``, to nearest, ties to even; never to infinity."""
    narrow = values.to(dtype)
    if not torch.equal(narrow.isfinite(), values.isfinite()):
        raise CheckpointError(f"a computed weight does not fit {dtype}: it overflows")
    return narrow

"""The elements of new tensors. Only here do cuts read the data."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch

from gacprof.checkpoint.inventory import Place
from gacprof.checkpoint.writer import read_blocks
from gacprof.core.errors import CheckpointError
from gacprof.realigning.changes import Change, NewCheckpoint, NewTensor

TINY = 1e-14  # singular values below this share of the largest are noise (float64's eps: 2e-16)
CUTS_KEPT = 32  # at once in memory: all tensors of a dim need its cut, and lie together

Edit = tuple[Change, Place]  # a change of a dim, and one of its places in a tensor


class NewValues:
    """The elements of new tensors. A cut keeps the largest ``importance``, else norms."""

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
        """Return the elements of a new tensor, in the stored dtype: a contiguous copy."""
        parts = [self.changed(name) for name in new.parts]
        if new.inner:
            inner = self.changed(new.inner)
            sections = inner.double().split([part.shape[1] for part in parts])
            pairs = zip(parts, sections, strict=True)
            parts = [rounded(part.double() @ rows, inner.dtype) for part, rows in pairs]
        if len(parts) == 1:
            # A view would keep the whole file mapped, and may have gaps
            return parts[0].clone(memory_format=torch.contiguous_format)
        return torch.cat(parts)

    def blocks(self, new: NewTensor) -> Iterator[torch.Tensor]:
        """Yield a new tensor of a checkpoint on disk in parts along its first axis."""
        name = new.parts[0]
        if new.inner or len(new.parts) > 1 or name in self.new.split_groups:
            yield self.tensor(new)
            return
        edits = self.new.edits.get(name, ())
        across = [edit for edit in edits if edit[1].axis > 0]
        along = [edit for edit in edits if edit[1].axis == 0]
        stored = partial(read_blocks, self.new.inventory, name)
        for block in self._pieces(self.read(name), 0, along, stored) if along else stored():
            yield self._resized(block, across)

    def changed(self, name: str) -> torch.Tensor:
        """Return a stored tensor with all of its changes."""
        if name in self.new.split_groups:
            return self._split_groups(self.read(name), self.new.split_groups[name])
        return self._resized(self.read(name), self.new.edits.get(name, ()))

    def _split_groups(self, tensor: torch.Tensor, place: Place) -> torch.Tensor:
        """Return scales or zero points once for each part of their group, or the new numbers."""
        parts = self.new.parts_of_group
        if place.fill != "group":
            repeated = as_bytes(tensor).repeat_interleave(parts, place.axis)
            return repeated.view(tensor.dtype)
        inputs = torch.arange(len(tensor))
        if not torch.equal(tensor, (inputs // place.group).to(tensor.dtype)):
            raise CheckpointError(
                f"{place.tensor}: its groups are not in the order of the inputs (act order), and "
                "such groups are not split"
            )
        return (inputs // (place.group // parts)).to(tensor.dtype)

    def _resized(self, tensor: torch.Tensor, edits: Sequence[Edit]) -> torch.Tensor:
        """Return the tensor, or rows of it, with these changes, whose places are ascending."""
        for axis in {place.axis for _, place in edits}:
            along = [edit for edit in edits if edit[1].axis == axis]
            kept = partial(section, tensor, axis)
            pieces = list(self._pieces(tensor, axis, along, kept))
            tensor = torch.cat([as_bytes(piece) for piece in pieces], axis).view(tensor.dtype)
        return tensor

    def _pieces(
        self,
        tensor: torch.Tensor,
        axis: int,
        edits: Sequence[Edit],
        kept: Callable[[range], Iterable[torch.Tensor]],
    ) -> Iterator[torch.Tensor]:
        """Yield a tensor with these changes of one axis, in pieces; ``kept`` gives what stays."""
        end = 0
        for change, place in edits:
            size = place.entries(change.dim.size)
            # What only grows is never mapped as a whole: its pages would all stay in memory.
            if place.fill == "size":
                yield from kept(range(end, place.start))
                grown = int(place.unit * (change.size - change.dim.size))
                yield tensor.narrow(axis, place.start, 1) + grown
            elif change.method == "zeros":
                yield from kept(range(end, place.start + size))
                yield new_entries(tensor, change, place)
            else:
                yield from kept(range(end, place.start))
                yield self._cut_stretch(tensor.narrow(axis, place.start, size), change, axis)
            end = place.start + size
        yield from kept(range(end, tensor.shape[axis]))

    def _cut_stretch(self, stretch: torch.Tensor, change: Change, axis: int) -> torch.Tensor:
        """Return what replaces a place's entries where a dim shrinks."""
        if change.method == "order":
            return stretch.narrow(axis, 0, change.size)
        if change.dim.name not in self._cuts:
            if len(self._cuts) == CUTS_KEPT:
                self._cuts.clear()
            self._cuts[change.dim.name] = self._cut(change)
        cut = self._cuts[change.dim.name][axis].to(stretch.device)
        if change.method == "magnitude":
            return stretch.index_select(axis, cut)
        mixed = torch.tensordot(stretch.double(), cut, ([axis], [0]))
        return rounded(mixed.movedim(-1, axis), stretch.dtype)

    def _cut(self, change: Change) -> tuple[torch.Tensor, torch.Tensor]:
        """Return, by axis, the entries of the dim to keep, or the matrix that combines them."""
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


def new_entries(tensor: torch.Tensor, change: Change, place: Place) -> torch.Tensor:
    """Return the entries that a place gains; the function doesn't depend on them (see ``Fill``)."""
    old, size = place.entries(change.dim.size), change.dim.size
    shape = list(tensor.shape)
    shape[place.axis] = place.growth(size, change.size)
    if place.fill == "last":
        return tensor.narrow(place.axis, place.start + old - 1, 1).expand(shape)
    if place.fill == "group":
        numbers = torch.arange(size, change.size) // place.group
        return numbers.to(tensor.dtype)
    bits = int(place.fill)
    return torch.full(shape, bits, dtype=tensor.dtype) if bits else tensor.new_zeros(shape)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, as plain bytes if elements have one: not all such types join."""
    return tensor.view(torch.uint8) if tensor.itemsize == 1 else tensor


def section(tensor: torch.Tensor, axis: int, rows: range) -> list[torch.Tensor]:
    return [tensor.narrow(axis, rows.start, len(rows))]


def best_factors(
    outer: torch.Tensor, inner: torch.Tensor, rank: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return matrices [r, rank] to combine the rows of inner [r, in] and the columns of outer [out,
    r] by.

    They are those of the product's SVD (Eckart and Young). With outer = Q₁R₁ and innerᵀ = Q₂R₂ the
    product is Q₁(R₁R₂ᵀ)Q₂ᵀ; the SVD P·S·Qᵀ of this r×r core gives R₂ᵀQS^-½ and S^-½PᵀR₁.
    """
    # Q is not needed: it turns the core, whose singular values are the product's
    outer_r = torch.linalg.qr(outer, mode="r").R
    inner_r = torch.linalg.qr(inner.T, mode="r").R
    p, s, q_t = torch.linalg.svd(outer_r @ inner_r.T, full_matrices=False)
    # Noise stays at zero: the inverse root of it would swamp the weights
    scale = torch.where(s > TINY * s[0], s.rsqrt(), 0.0)[:rank]
    columns = (inner_r.T @ q_t[:rank].T) * scale
    rows = (outer_r.T @ p[:, :rank]) * scale
    return rows, columns


def most_important(importance: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices of the ``count`` largest values, ascending."""
    # A stable sort, so that ties are cut the same on every machine
    return importance.argsort(descending=True, stable=True)[:count].sort().values


def rounded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return float64 values rounded to ``dtype``, to nearest, ties to even; never to infinity."""
    narrow = values.to(dtype)
    # A float64 beyond the type's range becomes infinite without an error
    if not torch.equal(narrow.isfinite(), values.isfinite()):
        raise CheckpointError(f"a computed weight does not fit {dtype}: it overflows")
    return narrow

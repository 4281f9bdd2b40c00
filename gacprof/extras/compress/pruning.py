"""Pruning of hidden units and heads on one model: importance once, then any sizes.

A dim's units are ordered by importance; a size keeps the first of that order, from the original
weights. Heads go in whole groups that share their keys and values, and are the method's own choice:
a group's size is a multiple of the head_dim already. Widths are what a map can move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from statistics import median
from typing import Any

import torch

from gacprof.checkpoint.inventory import AttentionHeads, Dim, Inventory, Module, NewSizes
from gacprof.checkpoint.layouts.declared import with_widths
from gacprof.core.errors import CompressionError
from gacprof.core.factors import COMPUTABLE, Stored, norms
from gacprof.extras.compress.activations import hidden, pass_through
from gacprof.extras.compress.gradients import FILE, Found, Gather, back_through
from gacprof.extras.compress.layered import LayeredModel
from gacprof.extras.compress.methods.llmpruner import (
    TaylorPruning,
    Units,
    strongest,
    strongest_first,
)
from gacprof.extras.compress.methods.low_rank import bent, loss_of_tails
from gacprof.extras.compress.request import TAYLOR
from gacprof.extras.compress.state import Work
from gacprof.extras.compress.writing import OutputTensor, unique

SCORES = (TAYLOR, "magnitude")
"""By what units are ranked: Taylor unless the magnitude of their weights is asked for."""

IMPORTANCE = "importance.safetensors"


@dataclass(frozen=True)
class Slice:
    """Where one kind of unit is written in a tensor: unit i has ``width`` entries from
    ``start`` + i·``width`` of ``axis``."""

    tensor: str
    axis: int
    start: int
    width: int


@dataclass(frozen=True)
class UnitGroup:
    """Units that are pruned one by one, and all the places that a unit is written in."""

    dim: str
    layer: int
    count: int
    parameters: int
    slices: tuple[Slice, ...]
    is_heads: bool = False


class Pruning:
    """``score`` is ``taylor`` or ``magnitude``; ``gather`` is what a backward pass collects."""

    fuses, thin = True, ""

    def __init__(
        self, work: Work, method: TaylorPruning, score: str, gather: Gather | None = None
    ) -> None:
        self.reader, self.method, self.score = work.reader, method, score
        self._work, self.gather = work, gather or Gather(scores=True)
        if score not in SCORES:
            raise CompressionError(
                f"{method.name} ranks units by taylor (no --score) or magnitude, not '{score}'"
            )
        self.groups, self.left = groups_of(work.reader.inventory)
        inside = method.layers(1 + max(group.layer for group in self.groups))
        self.pruned = [group for group in self.groups if group.layer in inside]
        whole = (group.dim for group in self.groups if group.layer not in inside)
        self.left |= dict.fromkeys(whole, "the method leaves the first and the last layers whole")

    def prepare(self) -> None:
        """Work out the importance of every unit, unless an earlier try has."""
        if not self._work.state.has(IMPORTANCE):
            values = self._magnitudes() if self.score == "magnitude" else self._taylor()
            self._work.state.save(IMPORTANCE, values)
            self._work.state.drop(hidden(0, "gradient"))

    def _magnitudes(self) -> dict[str, torch.Tensor]:
        """Σ w² over a unit's weights."""
        found = {}
        for group in self.groups:
            total = torch.zeros(group.count, dtype=torch.float64)
            for part in group.slices:
                info = self.reader.info(part.tensor)
                if len(info.shape) != 2:
                    continue
                squares = norms(Stored(self.reader.read(part.tensor), info.dtype), part.axis) ** 2
                total += _by_unit(torch.from_numpy(squares), group, part)
            found[group.dim] = total
        return found

    def _taylor(self) -> dict[str, torch.Tensor]:
        state, model = self._work.state, LayeredModel(self.reader, self._work.device)
        pass_through(model, self._work)
        last = len(model.layers)

        def take(index: int, found: Found, spent: Sequence[str]) -> None:
            if index < last:
                state.save(FILE.format(index), found.scores | self._curves(index, found))
            for file in spent:
                state.drop(file)

        back_through(
            model, self._work, [*self._watched(model.layers), {}], self.gather,
            lambda index: index == last or state.has(FILE.format(index)), take,
        )  # fmt: skip
        return {
            group.dim: self._importance_of(group, state.load(FILE.format(group.layer)))
            for group in self.groups
        }

    def _importance_of(self, group: UnitGroup, held: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """By unit, from the scores of the group's layer."""
        total = torch.zeros(group.count, dtype=torch.float64)
        for part in group.slices:
            what = "taylor_columns" if part.axis == 1 else "taylor_rows"
            key = f"{part.tensor.removesuffix('.weight')}/{what}"
            if key in held:  # biases are not watched
                total += _by_unit(held[key].double().cpu(), group, part)
        return total

    def _curves(self, layer: int, found: Found) -> dict[str, torch.Tensor]:
        """What keeping 0 … all units adds to the loss, the important ones kept first: the
        second-order estimate for the layer that reads them, from whose weight columns go."""
        curves = {}
        for group in self.groups if self.gather.outputs else ():
            by = next((p for p in group.slices if p.axis == 1), None)
            if group.layer != layer or by is None:
                continue
            name = by.tensor.removesuffix(".weight")
            seen, slopes = found.seen.get(name), found.slopes.get(name)
            if seen is None or slopes is None:  # an expert that no token was sent to
                continue
            units = strongest_first(self._importance_of(group, found.scores).tolist())
            order = [by.start + unit * by.width + i for unit in units for i in range(by.width)]
            columns = self.reader.torch(by.tensor).double()[:, order]
            moments = seen.as_mapping(name)["moments"].cpu()[order][:, order]
            curvature = slopes.covariance(name).double().cpu()
            lost = loss_of_tails(bent(columns, curvature), moments)
            curves[f"{group.dim}/loss"] = lost[:: by.width].contiguous()
        return curves

    @cached_property
    def lost(self) -> dict[str, list[float]]:
        """By dim name: what keeping 0 … all units adds to the loss, by its second order. An expert
        that no token was sent to is taken for the median width."""
        found = dict[str, list[float]]()
        for layer, groups in groupby(self.pruned, lambda group: group.layer):
            held = self._work.state.load(FILE.format(layer))
            curves = {group.dim: held.get(f"{group.dim}/loss") for group in groups}
            found |= {dim: curve.tolist() for dim, curve in curves.items() if curve is not None}
        widths = [g.dim for g in self.pruned if not g.is_heads]
        like = median([found[dim][0] for dim in widths if dim in found] or [0.0])
        for dim in widths:
            found.setdefault(dim, [like * (1 - share) for share in self.kept[dim]])
        return found

    def _watched(self, layers: list[str]) -> list[dict[str, str]]:
        """By layer, the modules that hold units, and where they are in it."""
        watched: list[dict[str, str]] = [{} for _ in layers]
        for group in self.groups:
            for part in group.slices:
                module, _, kind = part.tensor.rpartition(".")
                if kind == "weight":
                    prefix = f"{layers[group.layer]}."
                    watched[group.layer][module] = module.removeprefix(prefix)
        return watched

    @cached_property
    def _importance(self) -> dict[str, list[float]]:
        held = self._work.state.load(IMPORTANCE)
        return {name: values.tolist() for name, values in held.items()}

    @property
    def parameters(self) -> int:
        """Of the units of all layers, those that stay whole included."""
        return sum(group.count * group.parameters for group in self.groups)

    @cached_property
    def most(self) -> dict[str, int]:
        return {group.dim: group.count for group in self.pruned}

    @property
    def by_ratio_alone(self) -> bool:
        """Whether the method's own sizes follow from the ratio, before :meth:`prepare`."""
        return self.method.scope == "local"

    def requested_sizes(self, ratio: float, *, alike: bool = False) -> dict[str, int | None]:
        """Those that the method would choose by itself; before :meth:`prepare` as if all units were
        ``alike``, for its refusals."""
        units = [
            Units(
                g.dim, g.count, g.parameters,
                [1.0] * g.count if alike else self._importance[g.dim], g.is_heads,
            )
            for g in self.pruned
        ]  # fmt: skip
        return dict(self.method.sizes(units, self.parameters - self.budget(ratio, {})))

    def rounded(self, sizes: NewSizes, multiple: int) -> dict[str, int | None]:
        return {
            group.dim: sizes[group.dim]
            if group.is_heads
            else self.method.rounded(sizes[group.dim] or 0, multiple, group.count)
            for group in self.pruned
        }

    def multiples(self, multiple: int, requested: NewSizes) -> dict[str, dict[int | None, int]]:
        """By dim name the widths that are multiples, and the whole one, each with what it takes of
        :meth:`budget`. Heads have the size requested alone, layers that stay whole their own."""
        found: dict[str, dict[int | None, int]] = {}
        for group in self.groups:
            sizes = [*range(multiple, group.count, multiple), group.count]
            if group.is_heads or group.dim not in self.most:
                sizes = [requested.get(group.dim) or group.count]
            found[group.dim] = {size: size * group.parameters for size in sizes}
        return found

    def budget(self, ratio: float, requested: NewSizes) -> int:
        return int(self.parameters * (1 - ratio))

    @cached_property
    def kept(self) -> dict[str, list[float]]:
        """By dim name: the share of importance that 0 … all units keep, the best ones first. Units
        of none (of an expert that no token was sent to) are alike."""
        found = {}
        for group in self.pruned:
            own = sorted(self._importance[group.dim], reverse=True)
            sums = list(accumulate(own if any(own) else [1.0] * len(own), initial=0.0))
            found[group.dim] = [min(1.0, value / sums[-1]) for value in sums]
        return found

    def weights(self) -> dict[str, float] | None:
        """What a lost share of each dim's importance costs, in proportion: Taylor importance is an
        estimate of the loss itself, comparable between layers. Magnitudes are not."""
        if self.score != TAYLOR:
            return None
        return {group.dim: sum(self._importance[group.dim]) for group in self.pruned}

    def scores(self) -> dict[str, float]:
        """The mean importance of a parameter, by dim name."""
        return {
            group.dim: sum(self._importance[group.dim]) / (group.count * group.parameters)
            for group in self.pruned
        }

    def tensors(self, sizes: NewSizes) -> list[OutputTensor]:
        cuts: dict[str, list[tuple[UnitGroup, Slice]]] = {}
        for group in self.pruned:
            if sizes[group.dim] != group.count:
                for part in group.slices:
                    cuts.setdefault(part.tensor, []).append((group, part))
        return [
            self._cut(info, cuts[info.name], sizes)
            if info.name in cuts
            else OutputTensor(info.name, info.dtype, info.shape)
            for info in unique(self.reader)
        ]

    def _cut(
        self, info: Any, parts: list[tuple[UnitGroup, Slice]], sizes: NewSizes
    ) -> OutputTensor:
        left: dict[int, int] = {}
        for group, part in parts:
            left[part.axis] = left.get(part.axis, 0) + (sizes[group.dim] or 1) * part.width
        shape = tuple(left.get(axis, n) for axis, n in enumerate(info.shape))

        def make() -> torch.Tensor:
            kept: dict[int, list[int]] = {}
            for group, part in sorted(parts, key=lambda entry: entry[1].start):
                units = strongest(self._importance[group.dim], sizes[group.dim] or 1)
                kept.setdefault(part.axis, []).extend(
                    part.start + unit * part.width + i for unit in units for i in range(part.width)
                )
            value = self.reader.torch(info.name)
            for axis, indices in kept.items():
                value = value.index_select(axis, torch.tensor(indices))
            return value

        return OutputTensor(info.name, info.dtype, shape, make)

    def config(self, sizes: NewSizes) -> dict[str, Any]:
        """With the width and the heads where all layers have the same; else as it was, as
        LLM-Pruner leaves it, and with the head_dim that it then no longer implies."""
        source = self.reader.inventory
        widths = {g.dim: sizes.get(g.dim, g.count) for g in self.groups if not g.is_heads}
        config = with_widths(source.config, source.dims, widths)
        heads = {g.layer: sizes.get(g.dim, g.count) for g in self.groups if g.is_heads}
        counts = {(a.heads, a.kv_heads, a.head_dim) for a in source.attentions}
        pruned = any(heads[g.layer] != g.count for g in self.groups if g.is_heads)
        if pruned and len(counts) == 1:
            ((all_heads, kv_heads, head_dim),) = counts
            config["head_dim"] = head_dim
            if len(set(heads.values())) == 1 and len(heads) == len(source.attentions):
                kept = next(iter(heads.values())) or kv_heads
                config["num_key_value_heads"] = kept
                config["num_attention_heads"] = kept * (all_heads // kv_heads)
        return config


def _by_unit(values: torch.Tensor, group: UnitGroup, part: Slice) -> torch.Tensor:
    """A vector along the part's axis, summed over the entries of each unit."""
    section = values[part.start : part.start + group.count * part.width]
    return section.reshape(group.count, part.width).sum(1)


def groups_of(inventory: Inventory) -> tuple[list[UnitGroup], dict[str, str]]:
    """The units that can be pruned, and the layers that cannot, with the reason.

    Raises :class:`CompressionError` where there are none.
    """
    groups, left = [], {}
    for dim in inventory.dims:
        reason = _refusal(inventory, dim)
        if reason:
            left[dim.name.partition(":")[0]] = reason
        elif dim.layer is not None:
            slices = tuple(Slice(p.tensor, p.axis, p.start, 1) for p in dim.places)
            groups.append(UnitGroup(dim.name, dim.layer, dim.size, dim.params_per_unit, slices))
    modules = {(m.layer, m.role): m for m in inventory.modules if m.kind == "dense"}
    for attention in inventory.attentions:
        parts = [modules.get((attention.layer, role)) for role in ("q", "k", "v", "o")]
        made = _heads(inventory, attention, [part for part in parts if part is not None])
        if made is None:
            left[f"attention of layer {attention.layer}"] = "q, k, v and o are not plain layers"
        else:
            groups.append(made)
    if all(group.is_heads for group in groups):
        raise CompressionError(f"{inventory.path}: no MLP is found whose width could be pruned")
    return sorted(groups, key=lambda g: (g.layer, not g.is_heads, g.dim)), left


PRUNED = ("mlp", "expert", "shared_expert")


def _refusal(inventory: Inventory, dim: Dim) -> str:
    if dim.kind != "width" or dim.role not in PRUNED:
        return "it is no width of an MLP"
    if dim.padding == "refused":
        return dim.why
    stored = {inventory.tensors[place.tensor].dtype for place in dim.places}
    if not stored <= set(COMPUTABLE):
        return f"it is stored as {', '.join(sorted(stored))}"
    return ""


def _heads(
    inventory: Inventory, attention: AttentionHeads, parts: Sequence[Module]
) -> UnitGroup | None:
    """Groups of heads that share their keys and values, of the modules q, k, v and o; None where
    these are not plain layers."""
    if len(parts) < 4:
        return None
    one = attention.head_dim
    wide = attention.heads // attention.kv_heads * one
    slices, parameters = [], 0
    for module, width, axis in zip(parts, (wide, one, one, wide), (0, 0, 0, 1), strict=True):
        info = inventory.tensors.get(module.gemms[0].weight)
        plain = info is not None and info.shape == (module.out_features, module.in_features)
        if info is None or not plain or info.shape[axis] != width * attention.kv_heads:
            return None
        slices.append(Slice(info.name, axis, 0, width))
        parameters += width * info.shape[1 - axis]
        bias = f"{module.name}.bias"
        if axis == 0 and bias in inventory.tensors:
            slices.append(Slice(bias, 0, 0, width))
            parameters += width
    name = f"{parts[-1].name.rpartition('.')[0]}:heads"
    return UnitGroup(name, attention.layer, attention.kv_heads, parameters, tuple(slices), True)

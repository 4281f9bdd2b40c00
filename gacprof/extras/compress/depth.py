"""Depth pruning: whole decoder layers go, one by one the one whose absence costs the least loss.

The loss is measured on the calibration text, without those that are gone already: SLEB (arXiv
2402.09025). Shortened LLaMA (2402.02834) measures every layer once; ShortGPT (2403.03853) compares
what a layer gives with what it is given instead. No size changes, so no map is asked.

A layer is measured again only where what its absence cost before lets it be the next one to go: it
is taken to cost no less once others are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from math import inf, prod
from typing import Any

import torch
from torch import nn

from gacprof.checkpoint.inventory import NewSizes
from gacprof.checkpoint.layouts.declared import config_of_part, part_of
from gacprof.checkpoint.skeleton import build_skeleton
from gacprof.core.errors import CheckpointError, CompressionError
from gacprof.core.files import read_json, write_json
from gacprof.extras.compress.layered import (
    LayeredModel,
    batch_of,
    refuse_infinite,
    window_loss,
)
from gacprof.extras.compress.request import CompressRequest
from gacprof.extras.compress.state import Work
from gacprof.extras.compress.writing import OutputTensor, inventory_of_output, unique

LOSSES = "losses.json"
"""Of the text, by the layers that are gone."""

AT_ONCE = 4
"""Layers that are left out by turns in one pass: so many hidden states of the whole text are in
memory besides those of the model without any of them."""

DEPTHS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
"""What families call the number of layers in their configs."""
BY_NUMBER = ("scale_attn_by_inverse_layer_idx", "num_kv_shared_layers")
"""What makes a layer's function follow from its number as it runs (GPT-2, Gemma 3n)."""

Gone = frozenset[int]


class DropLayers:
    """The method: its one choice is made by measurement."""

    name = "drop-layers"


def refuse_sizes(request: CompressRequest) -> None:
    """Raises :class:`CompressionError` for what chooses sizes: none changes."""
    given = (request.round_to, request.score, request.objective)
    if request.has_source or any(one is not None for one in given):
        raise CompressionError(
            f"{DropLayers.name} removes whole layers and changes no size: leave out --map, --gpu, "
            "--round, --score and --objective"
        )


class Depth:
    """Layers as sizes: None where one stays, 0 where it goes."""

    fuses, thin, gather = False, "", None

    def __init__(self, work: Work) -> None:
        self.reader, self._work = work.reader, work
        self.model = LayeredModel(work.reader, work.device)
        self.layers = self.model.layers
        self.left: dict[str, str] = {}
        self._counts = [0] * len(self.layers)
        self._of: dict[str, int | None] = {}  # the layer of every tensor
        for info in unique(work.reader):
            within = (i for i, n in enumerate(self.layers) if info.name.startswith(f"{n}."))
            index = self._of[info.name] = next(within, None)
            if index is not None:
                self._counts[index] += prod(info.shape)
        self._losses: dict[Gone, float] = {}
        self._cost: dict[int, float] = {}

    def prepare(self) -> None:
        """Refuse before anything is measured a model whose layers cannot be renumbered; take up
        what was measured before."""
        if len(self.layers) > 1:
            every_other = {n: None if i % 2 else 0 for i, n in enumerate(self.layers)}
            self._refuse_other_layers(every_other)
        if self._work.state.has(LOSSES):
            held = read_json(self._work.state.path(LOSSES))
            self._losses = {frozenset(gone): loss for gone, loss in held}

    # --- which layers

    @property
    def parameters(self) -> int:
        """Of all decoder layers."""
        return sum(self._counts)

    def requested_sizes(self, ratio: float, *, alike: bool = False) -> dict[str, int | None]:
        """Layers go until at least ``ratio`` of the parameters are gone; none where ``alike`` says
        that nothing is measured yet.

        Raises :class:`CompressionError` where no layer would be left.
        """
        gone, wanted = list[int](), int(self.parameters * ratio)
        none_left = CompressionError(
            f"the ratio {ratio:g} cannot be met: of {len(self.layers)} layers one must stay"
        )
        if self.parameters - min(self._counts) < wanted:
            raise none_left
        if alike:
            return dict.fromkeys(self.layers)
        while sum(self._counts[i] for i in gone) < wanted:
            if len(gone) == len(self.layers) - 1:
                raise none_left
            gone.append(self._next(gone))
            more = self._loss(gone) - self._loss([])
            self._work.tell(f"{self.layers[gone[-1]]} goes: loss {more:+.4f} nats a token")
        sizes = {name: 0 if i in gone else None for i, name in enumerate(self.layers)}
        self._refuse_other_layers(sizes)
        return sizes

    def _next(self, gone: Sequence[int]) -> int:
        """The layer whose absence costs the least besides those that are ``gone``."""
        self._measure([gone])
        fresh: dict[int, float] = {}
        while True:
            rest = [i for i in range(len(self.layers)) if i not in gone and i not in fresh]
            rest.sort(key=lambda i: self._cost.get(i, -inf))
            least = min(fresh.values(), default=inf)
            if not rest or least <= self._cost.get(rest[0], -inf):
                self._cost |= fresh
                return min(fresh, key=lambda i: fresh[i])
            self._work.tell(f"{len(gone)} layers are gone, {len(rest)} may be tried")
            batch = rest[:AT_ONCE]
            self._measure([[*gone, i] for i in batch])
            fresh |= {i: self._loss([*gone, i]) - self._loss(gone) for i in batch}

    def _loss(self, gone: Collection[int]) -> float:
        return self._losses[frozenset(gone)]

    def _measure(self, choices: Sequence[Collection[int]]) -> None:
        new = [gone for gone in map(frozenset, choices) if gone not in self._losses]
        if new:
            found = losses_without(self.model, self._work.ids, new)
            self._losses |= dict(zip(new, found, strict=True))
            held = [[sorted(gone), loss] for gone, loss in self._losses.items()]
            write_json(self._work.state.path(LOSSES), held)

    def loss_added(self, sizes: NewSizes) -> float:
        """What was measured on the calibration text, in nats a token."""
        gone = [i for i, name in enumerate(self.layers) if sizes[name] == 0]
        return self._loss(gone) - self._loss([])

    @property
    def kept(self) -> dict[str, list[float]]:
        """The share of a layer that is left at 0."""
        return {name: [0.0] for name in self.layers}

    # --- what is written

    def _staying(self, sizes: NewSizes) -> list[int]:
        return [i for i, name in enumerate(self.layers) if sizes[name] is None]

    def tensors(self, sizes: NewSizes) -> list[OutputTensor]:
        """The layer ``kept[i]`` as layer i."""
        kept = self._staying(sizes)
        places = {old: place for place, old in enumerate(kept)}
        made = []
        for name, old in self._of.items():
            info = self.reader.info(name)
            if old is None or places.get(old) == old:
                made.append(OutputTensor(name, info.dtype, info.shape))
            elif old in places:
                renamed = self.layers[places[old]] + name.removeprefix(self.layers[old])
                read = partial(self.reader.torch, name)
                made.append(OutputTensor(renamed, info.dtype, info.shape, read))
        return made

    def config(self, sizes: NewSizes) -> dict[str, Any]:
        """With fewer layers, and every list that has an entry a layer cut likewise."""
        source, layers, kept = self.reader.inventory, len(self.layers), self._staying(sizes)
        part = dict(config_of_part(source.config))
        key = next((key for key in DEPTHS if part.get(key) == layers), None)
        by_number = next((key for key in BY_NUMBER if part.get(key)), None)
        why = f"no entry of its config says that there are {layers}" if key is None else ""
        if key is None or by_number is not None:
            why = why or f"they differ by their numbers ({by_number})"
            raise CompressionError(f"{source.path}: its layers cannot be renumbered: {why}")
        text: Any = self.model.model.config
        types = getattr(text.get_text_config(), "layer_types", None)
        if types is not None:  # also where they follow from a pattern that a cut would shift
            part["layer_types"] = list(types)
        for name, value in part.items():
            if isinstance(value, list) and len(value) == layers and "token" not in name:
                part[name] = [value[i] for i in kept]
        part[key] = len(kept)
        inner = next(iter(part_of(source.config)), None)
        new = part if inner is None else {**source.config, inner: part}
        return {name: value for name, value in new.items() if name != "auto_map"}

    def _refuse_other_layers(self, sizes: NewSizes) -> None:
        """Raises :class:`CompressionError` unless transformers builds of the new config the very
        layers that stay: same modules, shapes and settings."""
        path, kept = self.reader.inventory.path, self._staying(sizes)
        config, cannot = self.config(sizes), f"{path}: its layers cannot be renumbered"
        try:
            shorter = inventory_of_output(path, self.tensors(sizes), config)
            model, _ = build_skeleton(shorter, torch.float32)
        except CheckpointError as error:
            raise CompressionError(f"{cannot}: {error}") from None
        for place, old in enumerate(kept):
            was = settings_of(self.model.model.get_submodule(self.layers[old]), old)
            now = settings_of(model.eval().get_submodule(self.layers[place]), place)
            other = next((k for k in {**was, **now} if was.get(k) != now.get(k)), None)
            if other is not None:
                raise CompressionError(
                    f"{cannot}: as layer {place} layer {old} has {other} {now.get(other)}, not "
                    f"{was.get(other)}"
                )


def settings_of(layer: nn.Module, index: int) -> Mapping[str, Any]:
    """What a layer computes besides its weights' values: classes, shapes, plain attributes. Its own
    number among them is called so."""
    found: dict[str, Any] = {name: p.shape for name, p in layer.named_parameters()}
    for path, module in layer.named_modules():
        found[path] = type(module).__name__
        for key, value in vars(module).items():
            if isinstance(value, int | float | str | None):
                named = "layer" in key or "idx" in key
                own = named and type(value) is int and value == index
                found[f"{path}.{key}"] = "its number" if own else value
    return found


@torch.no_grad()
def losses_without(model: LayeredModel, ids: torch.Tensor, choices: Sequence[Gone]) -> list[float]:
    """The mean loss of a token (nats) without the layers of each choice; what choices have in
    common is computed once, and a layer is read once for all.

    Raises :class:`CompressionError` for a loss that is not finite.
    """
    streams = {Gone(): torch.cat([*model.embed(ids)])}  # by what is gone so far
    for index in range(len(model.layers)):
        ahead = {Gone(i for i in choice if i <= index) for choice in choices}
        passed = {gone: streams[gone - {index}] for gone in ahead if index in gone}
        if len(passed) < len(ahead):
            with model.holding(index) as layer:
                for gone in ahead - passed.keys():
                    parts = streams[gone].split(batch_of(ids.shape[1]))
                    passed[gone] = torch.cat([model.run(index, layer, part) for part in parts])
        streams = passed
    with model.head() as logits:
        losses = torch.stack([
            torch.stack([
                window_loss(logits, window[None], ids[i : i + 1])
                for i, window in enumerate(streams[choice])
            ])
            for choice in choices
        ])  # fmt: skip
    refuse_infinite(losses)
    return [float(of_choice.double().mean()) for of_choice in losses]

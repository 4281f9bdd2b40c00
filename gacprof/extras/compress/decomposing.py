"""Every weight decomposed once, layer by layer, with what the method and the scores have to know.

The first r entries of a decomposition are the best factors of rank r. So what is kept of each
weight is enough for every ratio and every map.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from gacprof.core.errors import CompressionError
from gacprof.core.files import read_json, write_json
from gacprof.extras.compress import sensitivity
from gacprof.extras.compress.activations import (
    FORWARD,
    Seen,
    add_seen,
    enter,
    hidden,
    pass_on,
    pass_through,
    watching,
    window,
)
from gacprof.extras.compress.gradients import FILE, Found, Gather, Slopes, back_through
from gacprof.extras.compress.layered import LayeredModel
from gacprof.extras.compress.methods.low_rank import decompose, loss_of_cuts
from gacprof.extras.compress.methods.method import LowRank, TargetLayer
from gacprof.extras.compress.request import BACKWARD
from gacprof.extras.compress.state import Work

FACTORS = "factors-{}.safetensors"
BACK, LOSSES = "backward.json", "sensitivities.json"


class Piece(NamedTuple):
    """A target and its stored weight; what is known of its inputs, and the covariance of its
    outputs' gradients (one number c for c·I), both None where it has seen no token."""

    target: TargetLayer
    stored: torch.Tensor
    inputs: Mapping[str, torch.Tensor] | None
    curvature: torch.Tensor | None = None


SPARE = 128
"""Entries are kept up to the next multiple of this behind the rank at which a pair is as large as
its dense weight: a tool's own rounding may go beyond."""


class Decompositions:
    """Of the ``targets``. ``gather`` is what a backward pass collects, None for none; where the
    work has no calibration no text is run."""

    def __init__(
        self, work: Work, method: LowRank, targets: Sequence[TargetLayer], gather: Gather | None
    ) -> None:
        self.method, self.targets = method, targets
        self._work, self._state, self._gather = work, work.state, gather
        self._pending: deque[tuple[str, Callable[[], dict[str, torch.Tensor]], Sequence[str]]] = (
            deque()
        )
        self._latest: tuple[str, dict[str, torch.Tensor]] = ("", {})

    def prepare(self) -> None:
        """Decompose every target, unless an earlier try has; gather scores and sensitivities."""
        calibration, backward = self._work.calibration, self._gather is not None
        wanted = [BACK if backward else FORWARD, *[LOSSES] * bool(self.method.probed)]
        if calibration is not None and all(self._state.has(file) for file in wanted):
            return
        # Without a text it is made all the same: it refuses what could not be loaded again.
        model = LayeredModel(self._work.reader, self._work.device)
        if calibration is None:
            for index in [*range(len(model.layers)), None]:
                self._decompose_layer(index, {})
            self._save(all_of_them=True)
            return
        if backward:
            pass_through(model, self._work)
            self._backward(model)
        else:
            self._forward(model)
        if self.method.probed and not self._state.has(LOSSES):
            losses = sensitivity.search(
                model, self._work, calibration.ids, self.targets, self.method.probed, self._pair
            )
            listed = [[name, share, loss] for (name, share), loss in losses.items()]
            write_json(self._state.path(LOSSES), listed)

    def _forward(self, model: LayeredModel) -> None:
        """Run the text through the layers and decompose each on the way."""
        ids = self._work.ids
        if self._state.has(FORWARD):
            model.record(ids)
            return
        begun, moments = enter(model, self._state, ids), self.method.reads == "moments"
        for index in range(len(model.layers)):
            if index < begun and self._state.has(_file_of(index)):
                continue
            self._work.tell(f"layer {index + 1} of {len(model.layers)}")
            with model.holding(index) as layer:
                paths = self._paths(model, index)
                seen = pass_on(model, self._work, index, layer, paths, moments)
            self._decompose_layer(index, seen, spent=[hidden(index)])
        last = hidden(len(model.layers))
        heads = {t.name: model.model.get_submodule(t.name) for t in self._in_layer(None)}
        if heads:
            source, seen = self._state.array(last), {}
            with torch.no_grad(), model.head() as logits:
                for i in range(len(source)):
                    with watching(heads, moments) as one:
                        logits(window(source, i, 1, model.device), ids[i : i + 1])
                    add_seen(seen, one)
            self._decompose_layer(None, seen)
        self._save(all_of_them=True)
        write_json(self._state.path(FORWARD), {})
        self._state.drop(last)

    def _backward(self, model: LayeredModel) -> None:
        """Decompose every layer by what a pass back over the layers shows."""
        last, gather = len(model.layers), self._gather
        if self._state.has(BACK):
            return
        assert gather is not None
        watched = [self._paths(model, index) for index in range(last + 1)]

        def is_done(index: int) -> bool:
            files = [_file_of(index if index < last else None)] * bool(watched[index])
            files += [FILE.format(index)] * (gather.scores and index < last)
            return all(self._state.has(file) for file in files)

        def take(index: int, found: Found, spent: Sequence[str]) -> None:
            if gather.scores and index < last:
                self._state.save(FILE.format(index), found.scores)
            layer = index if index < last else None
            self._decompose_layer(layer, found.seen, found.slopes, spent)

        back_through(model, self._work, watched, gather, is_done, take)
        self._save(all_of_them=True)
        write_json(self._state.path(BACK), {})
        self._state.drop(hidden(0, "gradient"))

    def _in_layer(self, layer: int | None) -> list[TargetLayer]:
        return [target for target in self.targets if target.layer == layer]

    def _paths(self, model: LayeredModel, index: int) -> dict[str, str]:
        """A layer's targets and where they are in it; behind the last, the head's in the model."""
        if index == len(model.layers):
            return {t.name: t.name for t in self._in_layer(None)}
        prefix = f"{model.layers[index]}."
        return {t.name: t.name.removeprefix(prefix) for t in self._in_layer(index)}

    def _decompose_layer(
        self,
        layer: int | None,
        seen: Mapping[str, Seen],
        slopes: Mapping[str, Slopes] | None = None,
        spent: Sequence[str] = (),
    ) -> None:
        """Submit a layer; its factors are saved, and files ``spent`` on it dropped, when they
        come."""
        targets, file = self._in_layer(layer), _file_of(layer)
        if not self._state.has(file) and (targets or layer is not None):
            facts: dict[int, Mapping[str, torch.Tensor]] = {}  # q, k and v share theirs
            pieces: list[Piece] = []
            for target in targets:
                one = seen.get(target.name)
                if one is not None and id(one) not in facts:
                    facts[id(one)] = one.as_mapping(target.name)
                slope = (slopes or {}).get(target.name)
                curvature = None if slope is None else slope.covariance(target.name)
                known = facts.get(id(one))
                pieces.append(Piece(target, self._finite(target), known, curvature))
            wanted = self._work.tasks.submit(decomposed, self.method, pieces, self._work.device)
            self._pending.append((file, wanted, spent))
        else:
            for done_with in spent:
                self._state.drop(done_with)
        self._save()

    def _save(self, all_of_them: bool = False) -> None:
        while len(self._pending) > (0 if all_of_them else self._work.tasks.ahead):
            file, wanted, spent = self._pending.popleft()
            self._state.save(file, wanted())
            for done_with in spent:
                self._state.drop(done_with)

    def _finite(self, target: TargetLayer) -> torch.Tensor:
        reader = self._work.reader
        stored = reader.torch(target.weight)
        if not torch.isfinite(stored.to(torch.float32)).all():
            raise CompressionError(
                f"{reader.inventory.path}: '{target.weight}' holds NaN or infinity; mend it"
            )
        return stored

    def of(self, target: TargetLayer) -> dict[str, torch.Tensor]:
        """What was worked out for the target's layer: ``name/group/u``, ``/v``, ``/sigma``, and
        ``name/magnitude``, ``name/activation``."""
        file = _file_of(target.layer)
        if self._latest[0] != file:
            self._latest = file, self._state.load(file)
        return self._latest[1]

    def _pair(self, target: TargetLayer, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """u [out, rank] and v [rank, in] of a target of one group."""
        held = self.of(target)
        return held[f"{target.name}/0/u"][:, :rank], held[f"{target.name}/0/v"][:rank]

    def sensitivities(self) -> dict[sensitivity.Variant, float]:
        """What the method's search has measured each cut to add to the loss of a token, in nats, by
        (target, share)."""
        if not self.method.probed:
            return {}
        listed = read_json(self._state.path(LOSSES))
        losses = {(name, share): loss for name, share, loss in listed}
        whole = losses.pop(sensitivity.WHOLE)
        return {variant: loss - whole for variant, loss in losses.items()}

    def scores(self, name: str) -> dict[str, float]:
        """Importance by dim name: four scores of the field, each of a group of a weight's rows.

        =========== ==========================================================================
        magnitude   ‖W‖_F
        activation  ‖X‖_F of the layer's inputs over the calibration text
        gradient    Σ |∂L/∂h · h| of its outputs h, mean over windows
        fisher      √(mean over windows of (∂L/∂W)²), mean over entries
        =========== ==========================================================================

        The first needs no text, the second a forward pass, the others a backward pass. PaLU
        averages the Fisher information as above; as Eq. 4 only weighs dims against each other, no
        scale matters.
        """
        found = {}
        for target in self.targets:
            rows = self._rows(target, name).double()
            for i, dim in enumerate(target.dims):
                # The one number of an activation is of all groups.
                part = rows if name == "activation" else rows[target.group(i)]
                total = float(part.sum())
                found[dim] = {
                    "gradient": total,
                    "fisher": total / (target.rows * target.in_features),
                }.get(name, total**0.5)
        return found

    def _rows(self, target: TargetLayer, score: str) -> torch.Tensor:
        """By row of the target's weight the sum of squares (magnitude) or of the score (gradient,
        fisher); the square of the one score (activation)."""
        if score not in BACKWARD:
            return self.of(target)[f"{target.name}/{score}"]
        return self._state.load(FILE.format(target.layer))[f"{target.name}/{score}_rows"]


def _file_of(layer: int | None) -> str:
    return FACTORS.format("head" if layer is None else layer)


def decomposed(method: LowRank, pieces: Sequence[Piece], device: str) -> dict[str, torch.Tensor]:
    """The factors of a layer's targets. Needs nothing but its arguments."""
    found: dict[str, torch.Tensor] = {}
    scalings: dict[int, Any] = {}
    with_text = any(piece.inputs is not None for piece in pieces)
    for piece in pieces:
        known = piece.inputs
        if known is not None and id(known) not in scalings:
            scalings[id(known)] = method.scaling(known)
        # An expert that no token was sent to has seen nothing: its plain SVD.
        if known is None and with_text:
            found[f"{piece.target.name}/activation"] = torch.zeros(1)
        found |= _decompose(method, piece, scalings.get(id(known)), device)
    return found


def _decompose(method: LowRank, piece: Piece, scaling: Any, device: str) -> dict[str, torch.Tensor]:
    target, known, curvature = piece.target, piece.inputs or {}, piece.curvature
    weight = piece.stored.to(device, torch.float64)
    found = {f"{target.name}/magnitude": weight.square().sum(1).float()}
    if "norm" in known:
        found[f"{target.name}/activation"] = known["norm"].square().reshape(1).float()
    kept = entries_kept(target)
    for i in range(target.groups):
        rows = target.group(i)
        own = None if curvature is None else curvature.double()
        own = own[rows, rows] if own is not None and own.dim() else own
        left = None if own is None else method.left(own)
        made = decompose(weight[rows], scaling, left)
        for what, value in (("u", made.u[:, :kept]), ("v", made.v[:kept])):
            narrow = value.to(piece.stored.dtype)
            if not torch.isfinite(narrow).all():
                raise CompressionError(
                    f"the factors of '{target.name}' do not fit {target.dtype}: they overflow"
                )
            found[f"{target.name}/{i}/{what}"] = narrow
        found[f"{target.name}/{i}/sigma"] = made.sigma
        if own is not None:
            lost = {"loss": own} | ({"gscalar": own.diagonal().mean()} if own.dim() else {})
            for by, measure in lost.items():
                curve = loss_of_cuts(made, known["moments"], measure)
                found[f"{target.name}/{i}/{by}"] = curve
    return found


def entries_kept(target: TargetLayer) -> int:
    """How many entries of each decomposition are kept."""
    return min(target.full, -(-target.even // SPARE) * SPARE if target.groups == 1 else target.full)

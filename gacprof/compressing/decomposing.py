"""Every weight decomposed once, layer by layer, with what the method and the scores have to know.

The first r entries of a decomposition are the best factors of rank r. So what is kept of each
weight is enough for every ratio and every map.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gacprof.checkpoint.tensors import TensorReader
from gacprof.compressing.calibration import Calibration
from gacprof.compressing.scores import BACKWARD
from gacprof.compressing.state import State
from gacprof.compressors.low_rank import decompose
from gacprof.compressors.method import LowRank, Target
from gacprof.core.errors import CompressionError
from gacprof.core.tasks import Tasks

if TYPE_CHECKING:
    import torch

    from gacprof.compressing.activations import Seen
    from gacprof.compressing.layered import LayeredModel

Tell = Callable[[str], None]

FACTORS = "factors-{}.safetensors"
FORWARD, LOSSES = "forward.json", "losses.json"

SPARE = 128
"""Entries are kept up to the next multiple of this behind the rank at which a pair is as large as
its dense weight: a tool's own rounding may go beyond."""


class Decompositions:
    """Of the ``targets``, in files of ``state``. ``score`` is the importance to be gathered, if
    any; without a ``calibration`` no text is run."""

    def __init__(
        self,
        reader: TensorReader,
        method: LowRank,
        targets: tuple[Target, ...],
        state: State,
        calibration: Calibration | None,
        device: str,
        score: str | None,
        tell: Tell,
        tasks: Tasks,
    ) -> None:
        self.reader, self.method, self.targets, self.state = reader, method, targets, state
        self._tasks = tasks
        self._pending: deque[tuple[str, Callable[[], dict[str, torch.Tensor]], str]] = deque()
        self._calibration, self._device, self._tell = calibration, device, tell
        self._score = score
        self._latest: tuple[str, dict[str, Any]] = ("", {})

    def prepare(self) -> None:
        """Decompose every target, unless an earlier try has; gather scores and sensitivities."""
        backward = self._score in BACKWARD
        if self._calibration is None:
            self._without_text()
            return
        ahead = self._is_done(FORWARD) and (not self.method.probed or self._is_done(LOSSES))
        if ahead and not (backward and not self._has_gradients()):
            return
        from gacprof.compressing.layered import LayeredModel

        model = LayeredModel(self.reader, self._device)
        self._forward(model, self._calibration, keep=backward)
        if self.method.probed and not self._is_done(LOSSES):
            from gacprof.compressing.sensitivity import search

            losses = search(
                model, self.state, self.targets, self.method.probed, self._calibration.ids,
                self._pair, self._tell,
            )  # fmt: skip
            listed = [[name, share, loss] for (name, share), loss in losses.items()]
            self.state.save_json(LOSSES, listed)
        if backward:
            from gacprof.compressing.activations import back_through

            watched = [self._paths(name, i) for i, name in enumerate(model.layers)]
            back_through(model, self.state, self._calibration.ids, watched, self._tell)

    def _without_text(self) -> None:
        from gacprof.compressing.layered import LayeredModel

        model = LayeredModel(self.reader, self._device)  # refuses what could not be loaded again
        for index in [*range(len(model.layers)), None]:
            self._decompose_layer(index, {})
        self._save(all_of_them=True)

    def _is_done(self, file: str) -> bool:
        return self.state.has(file)

    def _has_gradients(self) -> bool:
        from gacprof.compressing.activations import FILE

        return self.state.has(FILE.format(0))  # the last that a pass back writes

    def _forward(self, model: LayeredModel, calibration: Calibration, keep: bool) -> None:
        from gacprof.compressing.activations import enter, hidden, pass_on, watching

        if self._is_done(FORWARD):
            model.record(calibration.ids)
            return
        enter(model, self.state, calibration.ids)
        moments = self.method.reads == "moments"
        for index, name in enumerate(model.layers):
            ahead = range(index + 1, len(model.layers) + 1)
            if self.state.has(FACTORS.format(index)) and any(
                self.state.has(hidden(i)) for i in ahead
            ):
                continue
            self._tell(f"layer {index + 1} of {len(model.layers)}")
            with model.holding(index) as layer:
                paths = self._paths(name, index)
                watched = {target: layer.get_submodule(path) for target, path in paths.items()}
                seen = pass_on(model, self.state, index, layer, watched, moments)
            self._decompose_layer(index, seen, done_with="" if keep else hidden(index))
        last = hidden(len(model.layers))
        heads = {t.name: model.model.get_submodule(t.name) for t in self._in_layer(None)}
        if heads:
            with watching(heads, moments) as seen:
                _through_head(model, self.state, last, calibration)
            self._decompose_layer(None, seen)
        self._save(all_of_them=True)
        self.state.save_json(FORWARD, {})
        if not keep:
            self.state.drop(last)

    def _in_layer(self, layer: int | None) -> list[Target]:
        return [target for target in self.targets if target.layer == layer]

    def _paths(self, layer: str, index: int) -> dict[str, str]:
        """The layer's targets, and where they are in it."""
        return {t.name: t.name.removeprefix(f"{layer}.") for t in self._in_layer(index)}

    def _decompose_layer(
        self, layer: int | None, seen: Mapping[str, Seen], done_with: str = ""
    ) -> None:
        """Submit a layer; its factors are saved, and ``done_with`` is dropped, when they come."""
        targets, file = self._in_layer(layer), FACTORS.format("head" if layer is None else layer)
        if not self.state.has(file) and (targets or layer is not None):
            numbers: dict[int, int] = {}
            facts: list[Mapping[str, torch.Tensor]] = []
            pieces: list[tuple[Target, torch.Tensor, int | None]] = []
            for target in targets:
                one = seen.get(target.name)
                if one is not None and id(one) not in numbers:
                    numbers[id(one)] = len(facts)
                    facts.append(one.as_mapping(target.name))
                stored = self._finite(target)
                pieces.append((target, stored, None if one is None else numbers[id(one)]))
            wanted = self._tasks.submit(decomposed, self.method, pieces, facts, self._device)
            self._pending.append((file, wanted, done_with))
        elif done_with:
            self.state.drop(done_with)
        self._save()

    def _save(self, all_of_them: bool = False) -> None:
        while len(self._pending) > (0 if all_of_them else self._tasks.ahead):
            file, wanted, done_with = self._pending.popleft()
            self.state.save(file, wanted())
            if done_with:
                self.state.drop(done_with)

    def _finite(self, target: Target) -> torch.Tensor:
        import torch

        stored = self.reader.torch(target.weight)
        if not torch.isfinite(stored.to(torch.float32)).all():
            raise CompressionError(
                f"{self.reader.inventory.path}: '{target.weight}' holds NaN or infinity; mend it"
            )
        return stored

    def of(self, target: Target) -> dict[str, torch.Tensor]:
        """What was worked out for the target's layer: ``name/group/u``, ``/v``, ``/sigma``, and
        ``name/magnitude``, ``name/activation``."""
        file = FACTORS.format("head" if target.layer is None else target.layer)
        name, held = self._latest
        if name != file:
            held = self.state.load(file)
            self._latest = file, held
        return held

    def _pair(self, target: Target, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """u [out, rank] and v [rank, in] of a target of one group."""
        held = self.of(target)
        return held[f"{target.name}/0/u"][:, :rank], held[f"{target.name}/0/v"][:rank]

    def losses(self) -> dict[tuple[str, float], float]:
        """What the method's search has measured, by (target, share)."""
        listed = self.state.load_json(LOSSES) if self.method.probed else ()
        return {(name, share): loss for name, share, loss in listed}

    def rows(self, target: Target, score: str) -> torch.Tensor:
        """What a score is made of, by row of the target's weight (:mod:`.scores`)."""
        if score not in BACKWARD:
            return self.of(target)[f"{target.name}/{score}"]
        from gacprof.compressing.activations import FILE

        if target.layer is None:
            raise CompressionError(
                f"the score {score} is not known of '{target.name}': take magnitude or activation"
            )
        return self.state.load(FILE.format(target.layer))[f"{target.name}/{score}_rows"]


def decomposed(
    method: LowRank,
    pieces: Sequence[tuple[Target, torch.Tensor, int | None]],
    facts: Sequence[Mapping[str, torch.Tensor]],
    device: str,
) -> dict[str, torch.Tensor]:
    """The factors of a layer's targets, each with its stored weight and, by their place in
    ``facts``, what is known of its inputs. Needs nothing but its arguments."""
    import torch

    found: dict[str, torch.Tensor] = {}
    scalings: dict[int, Any] = {}
    for target, stored, place in pieces:
        known = {} if place is None else facts[place]
        if place is not None and place not in scalings:
            scalings[place] = method.scaling(target, known)
        # An expert that no token was sent to has seen nothing: its plain SVD.
        scaling = None if place is None else scalings[place]
        if place is None and facts:
            found[f"{target.name}/activation"] = torch.zeros(1)
        found |= _decompose(target, stored, scaling, known, device)
    return found


def _decompose(
    target: Target, stored: torch.Tensor, scaling: Any, facts: Mapping[str, Any], device: str
) -> dict[str, torch.Tensor]:
    import torch

    weight = stored.to(device, torch.float64)
    found = {f"{target.name}/magnitude": weight.square().sum(1).float()}
    if "norm" in facts:
        found[f"{target.name}/activation"] = facts["norm"].square().reshape(1).float()
    for i in range(target.groups):
        part = weight[i * target.rows : (i + 1) * target.rows]
        made = decompose(part, scaling, entries_kept(target))
        for what, value in (("u", made.u), ("v", made.v)):
            narrow = value.to(stored.dtype)
            if not torch.isfinite(narrow).all():
                raise CompressionError(
                    f"the factors of '{target.name}' do not fit {target.dtype}: they overflow"
                )
            found[f"{target.name}/{i}/{what}"] = narrow
        found[f"{target.name}/{i}/sigma"] = made.sigma
    return found


def entries_kept(target: Target) -> int:
    """How many entries of each decomposition are kept."""
    return min(target.full, -(-target.even // SPARE) * SPARE if target.groups == 1 else target.full)


def _through_head(model: LayeredModel, state: State, file: str, calibration: Calibration) -> None:
    """Run the head on all windows, for what it is given."""
    import torch

    from gacprof.compressing.activations import window

    source = state.array(file)
    with torch.no_grad(), model.head() as logits:
        for i in range(len(source)):
            logits(window(source, i, 1, model.device), calibration.ids[i : i + 1])

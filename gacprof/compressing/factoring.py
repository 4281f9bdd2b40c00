"""A low-rank method on one model: every weight decomposed once, layer by layer, at all ranks.

The first r entries of a decomposition are the best factors of rank r. So what is kept of each
weight is enough for every ratio and every map: the final factors at the chosen sizes are cut from
it, and a rank that is raised holds more of the original weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gacprof.checkpoint.tensors import TensorReader
from gacprof.compressing.calibration import Calibration
from gacprof.compressing.dense import Choice
from gacprof.compressing.scores import BACKWARD, scores_of
from gacprof.compressing.state import State
from gacprof.compressing.writing import NewTensor
from gacprof.compressors.low_rank import decompose
from gacprof.compressors.method import Evidence, LowRank, Target, uniform_rank
from gacprof.core.errors import CompressionError
from gacprof.planning.memory import NewSizes

if TYPE_CHECKING:
    import torch

    from gacprof.compressing.inputs import Seen
    from gacprof.compressing.layered import LayeredModel

Tell = Callable[[str], None]

FACTORS = "factors-{}.safetensors"
FORWARD, LOSSES = "forward.json", "losses.json"

SPARE = 128
"""Entries are kept up to the next multiple of this behind the rank at which a pair is as large as
its dense weight: a tool's own rounding may go beyond."""


class Factoring:
    """``score`` is the importance to be gathered, if any: the method's own or what Eq. 4 takes."""

    kind = "rank"

    def __init__(
        self,
        reader: TensorReader,
        method: LowRank,
        choice: Choice,
        state: State,
        calibration: Calibration | None,
        device: str,
        score: str | None,
        tell: Tell,
    ) -> None:
        self.reader, self.method, self.state = reader, method, state
        self.targets, self.left = choice.targets, choice.left
        self._calibration, self._device, self._tell = calibration, device, tell
        self.score = score

    # --- what is worked out from the weights and the text

    def prepare(self) -> None:
        """Decompose every target, unless an earlier try has; gather scores and sensitivities."""
        backward = self.score in BACKWARD
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
            from gacprof.compressing.gradients import back_through

            watched = [self._paths(name, i) for i, name in enumerate(model.layers)]
            back_through(model, self.state, self._calibration.ids, watched, self._tell)

    def _without_text(self) -> None:
        from gacprof.compressing.layered import LayeredModel

        model = LayeredModel(self.reader, self._device)  # refuses what could not be loaded again
        for index in [*range(len(model.layers)), None]:
            self._decompose_layer(index, {})

    def _is_done(self, file: str) -> bool:
        return self.state.has(file)

    def _has_gradients(self) -> bool:
        from gacprof.compressing.gradients import FILE

        return self.state.has(FILE.format(0))  # the last that a pass back writes

    def _forward(self, model: LayeredModel, calibration: Calibration, keep: bool) -> None:
        from gacprof.compressing.forward import enter, hidden, pass_on
        from gacprof.compressing.inputs import watching

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
            self._decompose_layer(index, seen)
            if not keep:
                self.state.drop(hidden(index))
        last = hidden(len(model.layers))
        heads = {t.name: model.model.get_submodule(t.name) for t in self._of(None)}
        if heads:
            with watching(heads, moments) as seen:
                _through_head(model, self.state, last, calibration)
            self._decompose_layer(None, seen)
        self.state.save_json(FORWARD, {})
        if not keep:
            self.state.drop(last)

    def _of(self, layer: int | None) -> list[Target]:
        return [target for target in self.targets if target.layer == layer]

    def _paths(self, layer: str, index: int) -> dict[str, str]:
        """The layer's targets, and where they are in it."""
        return {t.name: t.name.removeprefix(f"{layer}.") for t in self._of(index)}

    def _decompose_layer(self, layer: int | None, seen: Mapping[str, Seen]) -> None:
        targets, file = self._of(layer), FACTORS.format("head" if layer is None else layer)
        if self.state.has(file) or not targets:
            if layer is not None and not self.state.has(file):
                self.state.save(file, {})
            return
        found: dict[str, torch.Tensor] = {}
        scalings: dict[int, Any] = {}
        for target in targets:
            facts = seen[target.name].as_mapping(target.name) if target.name in seen else {}
            shared = id(seen.get(target.name))
            if shared not in scalings or not facts:
                scalings[shared] = self.method.scaling(target, facts)
            found |= self._decompose(target, scalings[shared], facts)
        self.state.save(file, found)

    def _decompose(
        self, target: Target, scaling: Any, facts: Mapping[str, Any]
    ) -> dict[str, torch.Tensor]:
        import torch

        stored = self.reader.torch(target.weight)
        weight = stored.to(self._device, torch.float64)
        if not torch.isfinite(weight).all():
            raise CompressionError(
                f"{self.reader.inventory.path}: '{target.weight}' holds NaN or infinity; mend it"
            )
        found = {f"{target.name}/magnitude": weight.square().sum(1).float()}
        if "norm" in facts:
            found[f"{target.name}/activation"] = facts["norm"].square().reshape(1).float()
        for i in range(target.groups):
            part = weight[i * target.rows : (i + 1) * target.rows]
            made = decompose(part, scaling, _stored(target))
            for what, value in (("u", made.u), ("v", made.v)):
                narrow = value.to(stored.dtype)
                if not torch.isfinite(narrow).all():
                    raise CompressionError(
                        f"the factors of '{target.name}' do not fit {target.dtype}: they overflow"
                    )
                found[f"{target.name}/{i}/{what}"] = narrow
            found[f"{target.name}/{i}/sigma"] = made.sigma
        return found

    def _factors(self, target: Target) -> dict[str, torch.Tensor]:
        file = FACTORS.format("head" if target.layer is None else target.layer)
        name, held = self._latest
        if name != file:
            held = self.state.load(file)
            self._latest = file, held
        return held

    _latest: tuple[str, dict[str, Any]] = ("", {})

    def _pair(self, target: Target, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
        """u [out, rank] and v [rank, in] of a target of one group."""
        held = self._factors(target)
        return held[f"{target.name}/0/u"][:, :rank], held[f"{target.name}/0/v"][:rank]

    # --- what a loop asks of it

    @property
    def parameters(self) -> int:
        """Of all targets together, dense."""
        return sum(target.parameters for target in self.targets)

    @property
    def most(self) -> dict[str, int]:
        """The largest rank worth choosing, by dim name: where parameters count, the dense weight
        is smaller beyond."""
        by_latents = self.method.counts == "latents"
        return {
            name: target.full if by_latents else target.even
            for target in self.targets
            for name in target.dims
        }

    def wish(self, ratio: float) -> dict[str, int | None]:
        """The ranks that the method would choose by itself."""
        scores = self.scores() if self.method.scored else {}
        return self.method.ranks(self.targets, ratio, Evidence(scores, self._losses()))

    def rounded(self, sizes: NewSizes, multiple: int) -> dict[str, int | None]:
        """The method's own rounding of its ranks."""
        rounded: dict[str, int | None] = {}
        for target in self.targets:
            for name in target.dims:
                size, most = sizes[name], _stored(target)
                rounded[name] = (
                    None if size is None else min(self.method.rounded(size, multiple, most), most)
                )
        return rounded

    def budget(self, ratio: float, wish: NewSizes) -> int:
        """Parameters that the targets may have together."""
        if self.method.counts == "latents":
            return sum(t.unit * (wish[name] or 0) for t in self.targets for name in t.dims)
        return int(self.parameters * (1 - ratio))

    @cached_property
    def kept(self) -> dict[str, list[float]]:
        """By dim name: the share of Σσ² of W·S kept at ranks 0 … full."""
        found = {}
        for target in self.targets:
            held = self._factors(target)
            for i, name in enumerate(target.dims):
                energy = held[f"{target.name}/{i}/sigma"].square()
                total = max(float(energy.sum()), 1e-300)
                found[name] = [0.0, *(energy.cumsum(0) / total).clamp(max=1).tolist()]
        return found

    def weights(self) -> dict[str, float] | None:
        """What a lost share of each dim's energy costs, in proportion; None where nothing tells.

        ASVD's search has measured it: the loss that a cut adds, over the share that it loses. With
        Fisher information F the second-order estimate of the loss is F·‖ΔW‖²; other scores are
        taken as they are.
        """
        if self.method.probed:
            return self._measured_weights()
        if self.score is None:
            return None
        if self.score != "fisher":
            return self.scores()
        sizes = {
            target.name: self._factors(target)[f"{target.name}/magnitude"]
            for target in self.targets
        }
        norms = scores_of("magnitude", self.targets, sizes)
        return {name: (score * norms[name]) ** 2 for name, score in self.scores().items()}

    def _measured_weights(self) -> dict[str, float]:
        losses = self._losses()
        least = min(losses.values())
        found = {}
        for target in self.targets:
            shares = [share for name, share in losses if name == target.name]
            added = sum(losses[target.name, share] - least for share in shares)
            kept = self.kept[target.dims[0]]
            gone = sum(1 - kept[uniform_rank(target, 1 - share)] for share in shares)
            found[target.dims[0]] = added / gone if gone > 0 else 0.0
        return found

    def _losses(self) -> dict[tuple[str, float], float]:
        listed = self.state.load_json(LOSSES) if self.method.probed else ()
        return {(name, share): loss for name, share, loss in listed}

    def scores(self) -> dict[str, float]:
        """Importance by dim name, by the score that was asked for."""
        name = self.score or "magnitude"
        rows = {}
        for target in self.targets:
            if name in BACKWARD:
                from gacprof.compressing.gradients import FILE

                held = self.state.load(FILE.format(target.layer))
                rows[target.name] = held[f"{target.name}/{name}_rows"]
            else:
                rows[target.name] = self._factors(target)[f"{target.name}/{name}"]
        return scores_of(name, self.targets, rows)

    def tensors(self, sizes: NewSizes) -> list[NewTensor]:
        """Every tensor of the model with these ranks, in the source's order."""
        targets = {t.weight: t for t in self.targets if sizes[t.dims[0]] is not None}
        biases = {t.bias for t in targets.values() if t.bias}
        made = []
        for info in unique(self.reader):
            if info.name in targets:
                made += self._factored(targets[info.name], sizes)
            elif info.name not in biases:
                made.append(NewTensor(info.name, info.dtype, info.shape))
        return made

    def _factored(self, target: Target, sizes: NewSizes) -> list[NewTensor]:
        names = self.method.names(target)
        assert names is not None
        ranks = [sizes[name] or 0 for name in target.dims]

        def factor(group: int, what: str) -> torch.Tensor:
            held = self._factors(target)[f"{target.name}/{group}/{what}"]
            return held[:, : ranks[group]] if what == "u" else held[: ranks[group]]

        def inner() -> torch.Tensor:
            import torch

            return torch.cat([factor(i, "v") for i in range(target.groups)])

        dtype, rows = target.dtype, target.rows
        made = [NewTensor(names.inner, dtype, (sum(ranks), target.in_features), inner)]
        for i, name in enumerate(names.outer):
            shape = (rows, ranks[i])
            made.append(NewTensor(name, dtype, shape, lambda i=i: factor(i, "u")))  # type: ignore[misc]
        for i, name in enumerate(names.biases):
            bias = str(target.bias)
            part = slice(i * rows, (i + 1) * rows)
            own = self.reader.info(bias).dtype
            made.append(
                NewTensor(name, own, (rows,), lambda p=part, b=bias: self.reader.torch(b)[p])  # type: ignore[misc]
            )
        return made

    def config(self, sizes: NewSizes) -> dict[str, Any]:
        ranks: dict[str, Sequence[int]] = {
            t.name: [sizes[name] or 0 for name in t.dims]
            for t in self.targets
            if sizes[t.dims[0]] is not None
        }
        return self.method.config(self.reader.inventory.config, ranks)


def _stored(target: Target) -> int:
    return min(target.full, -(-target.even // SPARE) * SPARE if target.groups == 1 else target.full)


def unique(reader: TensorReader) -> list[Any]:
    """The tensors of the source, one that is stored under two names once."""
    seen: dict[object, Any] = {}
    for info in reader.inventory.tensors.values():
        place = (info.file, info.offset, info.shape) if info.offset is not None else info.name
        seen.setdefault(place, info)
    return list(seen.values())


def _through_head(model: LayeredModel, state: State, file: str, calibration: Calibration) -> None:
    """Run the head on all windows, for what it is given."""
    import torch

    from gacprof.compressing.forward import window

    source = state.array(file)
    with torch.no_grad(), model.head() as logits:
        for i in range(len(source)):
            logits(window(source, i, 1, model.device), calibration.ids[i : i + 1])

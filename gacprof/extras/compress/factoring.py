"""A low-rank method on one model, as the loop asks for it: sizes, what they keep, and tensors.

The final factors at the chosen sizes are cut from the decompositions of the original weights, so a
rank that is raised holds more of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from statistics import median
from typing import Any

import numpy as np
import torch

from gacprof.checkpoint.inventory import Inventory, Module, NewSizes
from gacprof.checkpoint.layouts.declared import in_tower
from gacprof.checkpoint.scanning import TensorReader
from gacprof.core.errors import CompressionError
from gacprof.core.factors import COMPUTABLE
from gacprof.core.formatting import counted
from gacprof.extras.compress.calibration import Calibration
from gacprof.extras.compress.decomposing import Decompositions, entries_kept
from gacprof.extras.compress.gradients import Gather
from gacprof.extras.compress.methods.method import LowRank, RankEvidence, TargetLayer, uniform_rank
from gacprof.extras.compress.request import BACKWARD
from gacprof.extras.compress.state import Work
from gacprof.extras.compress.writing import OutputTensor, unique


class Factoring:
    """``score`` is the importance to be gathered, if any: the method's own or what Eq. 4 takes;
    ``gather`` is what a backward pass collects, ``objective`` what chooses the sizes."""

    def __init__(
        self,
        work: Work,
        method: LowRank,
        score: str | None,
        gather: Gather | None,
        objective: str = "loss",
    ) -> None:
        self.reader, self.method, self.score = work.reader, method, score
        self.gather, self._objective = gather, objective
        self.targets, self.left = targets_of(work.reader, method)
        head = next((target.name for target in self.targets if target.layer is None), None)
        if head and score in BACKWARD and (objective == "gac" or not method.probed):
            raise CompressionError(
                f"the score {score} is not known of '{head}': take magnitude or activation"
            )
        self._work = work
        self._found = Decompositions(work, method, self.targets, gather)
        self.thin = _thin(self.targets, method, work.calibration, gather)

    def prepare(self) -> None:
        """Work out what later questions need, unless an earlier try has."""
        self._found.prepare()

    @property
    def parameters(self) -> int:
        """Of all targets together, dense."""
        return sum(target.parameters for target in self.targets)

    @property
    def fuses(self) -> bool:
        """Whether a dense weight may take a factor pair's place: not where the latents count,
        which it has not."""
        return self.method.counts != "latents"

    @cached_property
    def most(self) -> dict[str, int]:
        """The largest rank worth choosing, by dim name: where parameters count, the dense weight
        is smaller beyond."""
        return {n: t.even if self.fuses else t.full for t in self.targets for n in t.dims}

    @property
    def by_ratio_alone(self) -> bool:
        """Whether the method's own ranks follow from the ratio, before :meth:`prepare`."""
        return not (self.method.probed or self.method.scored)

    def requested_sizes(self, ratio: float, *, alike: bool = False) -> dict[str, int | None]:
        """The ranks that the method would choose by itself; before :meth:`prepare` as if all
        targets were ``alike``, for its refusals."""
        if alike:
            losses = {(t.name, share): 0.0 for t in self.targets for share in self.method.probed}
            known = RankEvidence(dict.fromkeys(self.most, 1.0), losses)
        else:
            scores = self.scores() if self.method.scored else {}
            known = RankEvidence(scores, self._found.sensitivities())
        return self.method.ranks(self.targets, ratio, known)

    def rounded(self, sizes: NewSizes, multiple: int) -> dict[str, int | None]:
        """The method's own rounding of its ranks."""
        most = {name: entries_kept(target) for target in self.targets for name in target.dims}
        return {
            n: None if (r := sizes[n]) is None else min(self.method.rounded(r, multiple, m), m)
            for n, m in most.items()
        }

    def multiples(self, multiple: int, requested: NewSizes) -> dict[str, dict[int | None, int]]:
        """By dim name the ranks that are multiples, each with what it takes of :meth:`budget`; last
        the dense weight where it may take a pair's place."""
        found: dict[str, dict[int | None, int]] = {}
        for target in self.targets:
            for name in target.dims:
                ranks = range(multiple, self.most[name] + 1, multiple) or [self.most[name]]
                dense = {None: target.parameters} if self.fuses else {}
                found[name] = {rank: rank * target.unit for rank in ranks} | dense
        return found

    def budget(self, ratio: float, requested: NewSizes) -> int:
        """Parameters that the targets may have together."""
        if self.method.counts == "latents":
            return sum(t.unit * (requested[name] or 0) for t in self.targets for name in t.dims)
        return int(self.parameters * (1 - ratio))

    @cached_property
    def kept(self) -> dict[str, list[float]]:
        """By dim name: the share of Σσ² of W·S kept at ranks 0 … full."""
        found = {}
        for target in self.targets:
            held = self._found.of(target)
            for i, name in enumerate(target.dims):
                energy = held[f"{target.name}/{i}/sigma"].square()
                total = max(float(energy.sum()), 1e-300)
                found[name] = [0.0, *(energy.cumsum(0) / total).clamp(max=1).tolist()]
        return found

    @cached_property
    def lost(self) -> dict[str, list[float]]:
        """By dim name: what ranks 0 … full add to the loss, by its second order; where the method's
        search measured more, as much as that.

        Of an expert that no token was sent to nothing is known: it is taken for one of the median
        loss of its role, which falls as the energy that is cut.
        """
        found, unknown = {}, []
        for target in self.targets:
            held = self._found.of(target)
            for i, name in enumerate(target.dims):
                curve = held.get(f"{target.name}/{i}/loss")
                if self._objective == "gscalar":  # or the pass back kept no more than that
                    curve = held.get(f"{target.name}/{i}/gscalar", curve)
                if curve is None:
                    unknown.append((name, target.role))
                else:
                    found[name] = curve.tolist()
        known = [(found[n][0], t.role) for t in self.targets for n in t.dims if n in found]
        for name, role in unknown:
            alike = [most for most, of in known if of == role]
            like = median(alike or [most for most, _ in known])
            found[name] = [like * (1 - share) for share in self.kept[name]]
        return self._as_measured(found) if self.method.probed else found

    def _as_measured(self, lost: dict[str, list[float]]) -> dict[str, list[float]]:
        """The estimates, raised to what the search has measured at its shares: by the factor that
        is missing there, between two shares by one between theirs, and beyond by the nearest."""
        unit = 2 * self._work.ids.numel()  # from nats a token
        measured, found = self._found.sensitivities(), {}
        for target in self.targets:
            curve = np.array(lost[target.dims[0]])
            ranks = [uniform_rank(target, 1 - share) for share in self.method.probed]
            added = [measured[target.name, share] * unit for share in self.method.probed]
            missing = np.ones(len(ranks))
            np.divide(added, curve[ranks], out=missing, where=curve[ranks] > 0)
            factors = np.interp(np.arange(len(curve)), ranks, np.maximum(missing, 1.0))
            found[target.dims[0]] = (curve * factors).tolist()
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
        scores = self.scores()
        if self.score != "fisher":
            return scores
        norms = self._found.scores("magnitude")
        return {name: (score * norms[name]) ** 2 for name, score in scores.items()}

    def _measured_weights(self) -> dict[str, float]:
        losses = self._found.sensitivities()
        least = min(losses.values())
        found = {}
        for target in self.targets:
            shares = [share for name, share in losses if name == target.name]
            added = sum(losses[target.name, share] - least for share in shares)
            kept = self.kept[target.dims[0]]
            gone = sum(1 - kept[uniform_rank(target, 1 - share)] for share in shares)
            found[target.dims[0]] = added / gone if gone > 0 else 0.0
        return found

    def scores(self) -> dict[str, float]:
        """Importance by dim name, by the score that was asked for."""
        return self._found.scores(self.score or "magnitude")

    def tensors(self, sizes: NewSizes) -> list[OutputTensor]:
        """Every tensor of the model with these ranks, in the source's order."""
        targets = {t.weight: t for t in self.targets if sizes[t.dims[0]] is not None}
        biases = {t.bias for t in targets.values() if t.bias}
        made = []
        for info in unique(self.reader):
            if info.name in targets:
                made += self._factored(targets[info.name], sizes)
            elif info.name not in biases:
                made.append(OutputTensor(info.name, info.dtype, info.shape))
        return made

    def _factored(self, target: TargetLayer, sizes: NewSizes) -> list[OutputTensor]:
        names = self.method.names(target)
        assert names is not None
        ranks = [sizes[name] or 0 for name in target.dims]

        def factor(group: int, what: str) -> torch.Tensor:
            held = self._found.of(target)[f"{target.name}/{group}/{what}"]
            return held[:, : ranks[group]] if what == "u" else held[: ranks[group]]

        def inner() -> torch.Tensor:
            return torch.cat([factor(i, "v") for i in range(target.groups)])

        def bias(group: int) -> torch.Tensor:
            return self.reader.torch(str(target.bias))[target.group(group)]

        made = [OutputTensor(names.inner, target.dtype, (sum(ranks), target.in_features), inner)]
        for i, name in enumerate(names.outer):
            shape = (target.rows, ranks[i])
            made.append(OutputTensor(name, target.dtype, shape, partial(factor, i, "u")))
        for i, name in enumerate(names.outer if target.bias else ()):
            dtype = self.reader.info(str(target.bias)).dtype
            own = f"{name.removesuffix('weight')}bias"
            made.append(OutputTensor(own, dtype, (target.rows,), partial(bias, i)))
        return made

    def config(self, sizes: NewSizes) -> dict[str, Any]:
        ranks: dict[str, Sequence[int]] = {
            t.name: [sizes[name] or 0 for name in t.dims]
            for t in self.targets
            if sizes[t.dims[0]] is not None
        }
        return self.method.config(self.reader.inventory.config, ranks)


def _thin(
    targets: Sequence[TargetLayer],
    method: LowRank,
    calibration: Calibration | None,
    gather: Gather | None,
) -> str:
    """Says so where the text has fewer tokens than a matrix that it estimates has rows: A, the
    covariance of a layer's inputs, or G, that of its output gradients."""
    inputs = method.reads == "moments" or bool(gather and gather.inputs)
    outputs = bool(gather and gather.outputs == "whole")
    if calibration is None:
        return ""
    (windows, length), tokens = calibration.ids.shape, calibration.ids.numel()
    rows = {
        "A (inputs)": max(t.in_features for t in targets) * inputs,
        "G (output gradients)": max(t.rows for t in targets) * outputs,
    }
    short = [f"the {count:,} rows of {name}" for name, count in rows.items() if count > tokens]
    if not short:
        return ""
    low = "; the loss added is estimated too low" if gather and gather.outputs else ""
    more = "give a longer text" if calibration.ended else "read more of the text (--windows)"
    return (
        f"{counted(windows, 'window')} of {length} tokens were read of the calibration text, "
        f"{tokens:,} in all, fewer than {' and '.join(short)}: a ridge makes these "
        f"regular{low}: {more}"
    )


def targets_of(
    reader: TensorReader, method: LowRank
) -> tuple[tuple[TargetLayer, ...], dict[str, str]]:
    """The layers that the method factors, and those that it leaves dense, with the reason.

    Raises :class:`CompressionError` where it factors none.
    """
    inventory = reader.inventory
    roles = method.roles(inventory.ties_head or not inventory.has_own_head)
    found, left = [], {}
    for module in inventory.modules:
        if not module.gemms or module.kind == "embedding":
            continue
        target = _target(inventory, module, method)
        reason = _refusal(inventory, module, roles)
        if not reason and method.names(target) is None:
            reason = f"the layout of {method.layout} has no name for it"
        if reason:
            left[module.name] = reason
        else:
            found.append(target)
    if not found:
        why = next(iter(left.items()), ("", "it has no linear layers"))
        raise CompressionError(
            f"{inventory.path}: {method.name} finds nothing to compress: {': '.join(why)}"
        )
    return tuple(found), left


def _target(inventory: Inventory, module: Module, method: LowRank) -> TargetLayer:
    attention = next((a for a in inventory.attentions if a.layer == module.layer), None)
    groups = 1
    if attention is not None and module.role in ("k", "v"):
        groups = method.groups(module, attention.heads, attention.kv_heads)
    gemm = module.gemms[0]
    return TargetLayer(
        name=module.name,
        weight=gemm.weight,
        bias=f"{module.name}.bias" if gemm.bias else None,
        out_features=gemm.N,
        in_features=gemm.K,
        dtype=module.dtype,
        layer=module.layer,
        role=module.role,
        groups=groups,
    )


def _refusal(inventory: Inventory, module: Module, roles: Sequence[str]) -> str:
    """Why a layer stays dense; empty where it does not."""
    if in_tower(module.name):
        return "a vision or audio tower is left as it is"
    if module.role.removeprefix("expert_") not in roles:
        return "the method does not touch it"
    if module.layer is None and module.role != "head":
        return "it is in no decoder layer"
    info = inventory.tensors.get(module.gemms[0].weight)
    if info is not None and len(info.shape) == 3:
        return "all experts are stored in one tensor"
    if info is None or info.shape != (module.out_features, module.in_features):
        return "its weight is stored transposed"
    if info.dtype not in COMPUTABLE:
        return f"it is stored as {info.dtype}"
    return ""

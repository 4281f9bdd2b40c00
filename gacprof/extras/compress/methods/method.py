"""What a compression method says of itself, so that one loop can run any of them.

A method is what the tool's publication describes, and nothing about maps or budgets: which layers
it touches, what it has to know of their inputs, which sizes it would choose by itself, and how its
tensors are named. ``gacprof/extras/compress`` asks it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gacprof.checkpoint.inventory import Module
from gacprof.checkpoint.layouts.layout import rank_names
from gacprof.core.errors import CompressionError
from gacprof.extras.compress.methods.low_rank import cholesky

PROJECTIONS = ("q", "k", "v", "o", "qkv", "gate", "up", "gate_up", "down")
"""Roles of the linear layers inside a decoder layer that the publications compress."""


@dataclass(frozen=True)
class TargetLayer:
    """A dense linear layer to be factored: ``weight`` [out, in], cut into ``groups`` of rows that
    are factored each by itself (PaLU's groups of heads; else one)."""

    name: str
    weight: str
    bias: str | None
    out_features: int
    in_features: int
    dtype: str
    layer: int | None
    role: str
    groups: int = 1

    @property
    def rows(self) -> int:
        """Rows of the weight that one group has."""
        return self.out_features // self.groups

    def group(self, index: int) -> slice:
        """The rows of one group."""
        return slice(index * self.rows, (index + 1) * self.rows)

    @property
    def parameters(self) -> int:
        return self.out_features * self.in_features

    @property
    def unit(self) -> int:
        """Parameters of one more rank, of one group."""
        return self.rows + self.in_features

    @property
    def even(self) -> int:
        """The largest rank at which a group's factors are no larger than its dense weight."""
        return self.rows * self.in_features // self.unit

    @property
    def full(self) -> int:
        """The largest rank that a group's weight can have."""
        return min(self.rows, self.in_features)

    @property
    def dims(self) -> list[str]:
        """The names of its rank dims, one a group."""
        return rank_names(self.name, self.groups)


@dataclass(frozen=True)
class FactorNames:
    """Tensor names of a factored layer: one ``inner``, one ``outer`` a group. A bias goes with the
    outer ones: ``X.bias`` beside ``X.weight``."""

    inner: str
    outer: tuple[str, ...]


@dataclass(frozen=True)
class RankEvidence:
    """What a method may choose ranks by. ``scores`` are importances by dim name; ``losses`` the
    mean negative log-likelihood with one target cut to a ratio, by (target, ratio)."""

    scores: Mapping[str, float] = field(default_factory=dict)
    losses: Mapping[tuple[str, float], float] = field(default_factory=dict)


class LowRank:
    """A method that replaces weights by factor pairs. The defaults are those of plain SVD.

    ``name`` is the method's, ``layout`` that of the checkpoints it writes. ``reads`` says what it
    has to know of a layer's inputs x: ``nothing``, their ``magnitude`` (mean |x| per feature), or
    their ``moments`` (Σ x·xᵀ). ``probed`` are the ratios at which it wants every target's
    sensitivity; ``two_sided`` says that its factors depend on the gradients by the outputs too;
    ``scored`` is the importance that its own choice of ranks follows. Its ratio counts
    ``parameters``, or ``latents`` (the ranks themselves, which a cache holds).
    """

    name = ""
    layout = ""
    reads = "nothing"
    probed: tuple[float, ...] = ()
    two_sided = False
    scored: str | None = None
    counts = "parameters"

    def roles(self, tied_head: bool) -> tuple[str, ...]:
        """The roles of the layers that it compresses."""
        return PROJECTIONS

    def groups(self, module: Module, heads: int, kv_heads: int) -> int:
        """Into how many groups of rows a layer's weight is cut."""
        return 1

    def names(self, target: TargetLayer) -> FactorNames | None:
        """Where its factors are stored; None where the layout has no name for such a layer."""
        raise NotImplementedError

    def scaling(self, seen: Mapping[str, Any]) -> Any:
        """S of the SVD of W·S, as :func:`~.low_rank.decompose` takes it; None for I."""
        return cholesky(seen["moments"]) if self.reads == "moments" else None

    def left(self, curvature: Any) -> Any:
        """R of the SVD of Rᵀ·W·S, by the covariance [out, out] of the gradients by a target's
        outputs; None for I."""
        return None

    def ranks(
        self, targets: Sequence[TargetLayer], ratio: float, evidence: RankEvidence
    ) -> dict[str, int | None]:
        """The ranks it would choose by itself, by dim name; None leaves a target dense.

        ``ratio`` is the share of what it counts to be removed from its targets.
        """
        return {name: uniform_rank(target, ratio) for target in targets for name in target.dims}

    def rounded(self, rank: int, multiple: int, most: int) -> int:
        """A rank as the tool's own rounding would have it: here down, so that the ratio holds."""
        return max(rank // multiple * multiple, min(multiple, most))

    def config(
        self, config: Mapping[str, Any], ranks: Mapping[str, Sequence[int]]
    ) -> dict[str, Any]:
        """The config of the compressed model; ``ranks`` by module name."""
        return dict(config)


def uniform_rank(target: TargetLayer, ratio: float) -> int:
    """``int(parameters · kept) // (in + out)``, as ASVD and SVD-LLM count it.

    Raises :class:`CompressionError` where no rank is that small.
    """
    rank = int(target.rows * target.in_features * (1 - ratio)) // target.unit
    if rank < 1:
        raise CompressionError(
            f"the ratio {ratio:g} cannot be met: '{target.name}' "
            f"[{target.out_features}, {target.in_features}] has more parameters at rank 1"
        )
    return rank


_STEM = re.compile(r"(.*\.)(?:(q|k|v|o|out|gate|up|down)_proj|(fc1|fc2|w1|w2|w3))", re.DOTALL)


class PlainSvd(LowRank):
    """Blind to what a layer sees; one ratio for all layers. The baseline of every publication."""

    name = "svd"
    layout = "svd-llm"

    def names(self, target: TargetLayer) -> FactorNames | None:
        """SVD-LLM's names; None for a layer that it has no name for."""
        match = _STEM.fullmatch(target.name)
        if match is None:
            return None
        stem = match[1] + (match[2] or match[3])
        return FactorNames(f"{stem}_v_proj.weight", (f"{stem}_u_proj.weight",))


class Whitened(PlainSvd):
    """SVD-LLM (arXiv 2403.07378): S is the Cholesky factor of the inputs' second moments, so that a
    cut singular value is an error of the output."""

    name = "svd-llm"
    reads = "moments"


DAMPING = 1e-6
"""Share of the mean diagonal that is added to the gradients' covariance: it is summed in float32,
so that what lies below is rounding, and its inverse would magnify that."""


class TwoSided(Whitened):
    """The SVD of Rᵀ·W·S, S·Sᵀ = Σ x·xᵀ and R·Rᵀ = G, the covariance of the gradients by the
    outputs: a cut singular value is then the second-order loss itself, with K-FAC's factors of the
    curvature (arXiv 1503.05671). It is the generalised, Fisher-weighted SVD of arXiv 2505.17974;
    arXiv 2207.00112 weighs rows alone."""

    name = "kfac-svd"
    two_sided = True

    def left(self, curvature: Any) -> Any:
        if not curvature.dim():
            return None
        damped = curvature.clone()
        damped.diagonal().add_(DAMPING * curvature.diagonal().mean())
        return cholesky(damped)

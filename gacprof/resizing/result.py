"""What realigning did, as a value: printed, given to ``--json``, and kept with the output."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from gacprof.core.files import Record

EXACT = "mathematically exact: only zeros were added, so only rounding can differ"
FUSED = (
    "the same function in real arithmetic: factors were multiplied out and rounded once to the "
    "stored type, else only zeros were added"
)
CUT = "entries were cut: the function changes by what the losses say"
INFORMED = (
    "ranks were raised with the original weights: the function changes, towards the original "
    "model's, by what the residuals say"
)
NOT_FINITE = (
    "weights hold NaN or infinity: what the model computes is not finite before nor after, and "
    "nothing is promised of it"
)
COPIED = "nothing had to change: a copy"


@dataclass(frozen=True)
class Resized:
    """One dim and what became of it.

    ``how`` is ``zeros`` for padding, ``residual`` for a rank filled from the original weights:
    ``residual`` is then ‖W − u·v‖ / ‖W‖ before and after. For cuts it is ``order`` (trailing
    entries), ``svd`` (best rank-k factors) or ``magnitude`` (smallest products of norms; a
    stand-in where no importance is stored). ``loss`` is the relative Frobenius error of the
    factors' product, for ``magnitude`` the share of the summed products given up, else None.
    """

    dim: str
    kind: str
    before: int
    after: int
    how: str
    loss: float | None = None
    residual: tuple[float, float] | None = None


@dataclass(frozen=True)
class RealignResult(Record):
    """``parameters_*`` count all stored elements; ``bytes_written`` is what the weights take.

    ``resumed`` lists weight files that an earlier, killed run had finished; ``fused`` the modules
    whose factors were multiplied out; ``not_finite`` the changed tensors that hold NaN or
    infinity (of files written by this run; tensors that stay as they are, are not looked at).
    ``rounding`` is what rounding the ``fused`` products may move a logit by, as a share of the
    largest (``core/dtypes.py``); ``verify`` allows for it.
    """

    derived: ClassVar = ("exact", "meaning")

    source: str
    out: str
    layout: str
    container: str
    resized: tuple[Resized, ...]
    parameters_before: int
    parameters_after: int
    bytes_written: int
    files: tuple[str, ...]
    resumed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    fused: tuple[str, ...] = ()
    not_finite: tuple[str, ...] = ()
    rounding: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether the function is the same in real arithmetic and no stored value was rounded."""
        return not (self.fused or self.informed or self.not_finite or self._cut)

    @property
    def _cut(self) -> bool:
        return any(change.how not in ("zeros", "residual") for change in self.resized)

    @property
    def informed(self) -> tuple[Resized, ...]:
        """The ranks that were filled from the original weights."""
        return tuple(change for change in self.resized if change.residual is not None)

    @property
    def residuals(self) -> tuple[float, float]:
        """Root mean square of the residuals of :attr:`informed` ranks, before and after."""
        found = [change.residual for change in self.resized if change.residual is not None]
        before, after = (math.sqrt(sum(r[i] ** 2 for r in found) / len(found)) for i in (0, 1))
        return before, after

    @property
    def meaning(self) -> str:
        """What the changes do to the function, in a sentence."""
        if self.not_finite:
            return NOT_FINITE
        if self._cut or self.informed:
            return "; ".join([CUT] * self._cut + [INFORMED] * bool(self.informed))
        if not self.resized and not self.fused:
            return COPIED
        if not self.fused:
            return EXACT
        return f"{FUSED}, which may move a logit by {self.rounding:.1e} of the largest"

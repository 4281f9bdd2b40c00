"""What ``realign`` and ``import-gguf`` are asked, and what ``realign`` answers, each one value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from gacprof.core import Progress
from gacprof.core.dtypes import full_name
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.core.files import Record
from gacprof.core.request import Request, argument, hook, option
from gacprof.diagnosing.request import OnCheckpoint
from gacprof.resizing.sizes import Asked, Fuse

if TYPE_CHECKING:
    import torch

    from gacprof.diagnosing.request import Model

ONE_OF = "One of"


class RealignRequest(OnCheckpoint):
    """What :func:`gacprof.realign` is asked: sizes, in one of five ways, and where to write.

    ``asked`` is a plan or its file, sizes by dim name (None: multiply out), a word (``minimal``,
    ``optimal``, ``uniform``, ``fuse``), or :class:`Padding`, :class:`Uniform` or :class:`Fuse`
    with other multiples or of some modules. ``strategy``, ``uniform``, and ``fuse`` with its
    ``module`` say the words. Without ``out`` the checkpoint is a model in memory: a resized copy
    is returned, or with ``inplace`` the model itself is changed.
    """

    error = PlanError

    asked: Asked | None = option(
        default=None, kw_only=False, name="--plan", read=Path, group=ONE_OF, help="A plan's file."
    )
    out: str | Path | None = option(
        default=None, kw_only=False, read=Path,
        help="The new checkpoint's folder; must not exist.",
    )  # fmt: skip
    strategy: str | None = option(
        default=None, choices=("minimal", "optimal"), group=ONE_OF,
        help="Without a map: minimal pads to 8, optimal to 16.",
    )  # fmt: skip
    uniform: bool = option(default=False, group=ONE_OF, help="One common width: a plain config.")
    fuse: bool = option(
        default=False, group=ONE_OF, help="Multiply factor pairs out into dense weights."
    )
    module: Sequence[str] | None = option(
        default=None, many=True, group=ONE_OF, help="With --fuse: only this module (repeatable)."
    )
    base: Model | None = option(
        default=None, help="The dense original: raised ranks get what it has, not zeros."
    )
    inplace: bool = field(default=False)
    progress: Progress | None = hook(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum((self.asked is not None, self.strategy is not None, self.uniform, self.fuse)) != 1:
            raise PlanError(
                "give one of --plan FILE, --strategy minimal|optimal, --uniform and --fuse"
            )
        if self.base is not None and (self.uniform or self.fuse):
            raise PlanError("--base raises ranks: it goes with --plan or --strategy")
        if self.module and not self.fuse:
            raise PlanError("--module names what --fuse fuses: give --fuse too")

    @property
    def sizes(self) -> Asked:
        """What is asked, in one form."""
        if self.fuse:
            return Fuse(tuple(self.module) if self.module else None)
        if self.asked is not None:
            return self.asked
        return self.strategy or "uniform"


class ImportRequest(Request):
    """What :func:`gacprof.import_gguf` is asked."""

    error = CheckpointError

    source: str | Path = argument(
        kw_only=False, read=Path, metavar="GGUF", help="A *.gguf file, or a folder with one."
    )
    out: str | Path = option(kw_only=False, like=RealignRequest)
    dtype: torch.dtype | str = option(
        default="bfloat16", read=full_name, help="Of the weights written."
    )


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

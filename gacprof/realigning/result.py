"""What realigning did, as a value: printed, given to ``--json``, and kept with the output."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

EXACT = "mathematically exact: only zeros were added, so only rounding can differ"
FUSED = (
    "the same function in real arithmetic: factors were multiplied out and rounded once to the "
    "stored type, else only zeros were added"
)
CUT = "entries were cut: the function changes by what the losses say"


@dataclass(frozen=True)
class Resized:
    """One dim and what became of it.

    ``how`` is ``zeros`` for padding; for cuts ``order`` (trailing entries), ``svd`` (best
    rank-k factors) or ``magnitude`` (smallest products of norms; a stand-in where no importance
    is stored). ``loss`` is the relative Frobenius error of the factors' product, for
    ``magnitude`` the share of the summed products given up, None for padding.
    """

    dim: str
    kind: str
    before: int
    after: int
    how: str
    loss: float | None = None


@dataclass(frozen=True)
class RealignResult:
    """``parameters_*`` count all stored elements; ``bytes_written`` is what the weights take.

    ``resumed`` lists weight files that an earlier, killed run had finished; ``fused`` the modules
    whose factors were multiplied out.
    """

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
    notes: tuple[str, ...] = field(default=())
    fused: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether the function is the same in real arithmetic and no stored value was rounded."""
        return not self.fused and self._uncut

    @property
    def _uncut(self) -> bool:
        return all(change.how == "zeros" for change in self.resized)

    @property
    def meaning(self) -> str:
        """What the changes do to the function, in a sentence."""
        if not self._uncut:
            return CUT
        return FUSED if self.fused else EXACT

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"exact": self.exact, "meaning": self.meaning}

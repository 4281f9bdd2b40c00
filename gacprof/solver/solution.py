"""What the solver answers with: a choice and the proof of how good it is, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass

from gacprof.core.errors import SolverError


class InfeasibleBudget(SolverError):  # noqa: N818 (it is a budget that is infeasible)
    """No choice fits. ``resource`` is what is short, ``nearest`` the least that would do.

    ``resource`` is ``"budget"`` or ``"limit"``. Where each would do alone but not both
    together, it is ``"budget"``, and ``nearest`` the least budget within the given limit.
    """

    def __init__(self, message: str, resource: str, nearest: int | float) -> None:
        super().__init__(message)
        self.resource = resource
        self.nearest = nearest


@dataclass(frozen=True)
class Solution:
    """One candidate per class, and what is certain about it.

    ``choice[i]`` is the place of class i's candidate in its own list (its column, if the
    input was padded). ``cost`` is exact; ``value`` and ``latency`` are correctly rounded sums
    (``math.fsum``). ``bound``: no choice within the budget has a greater ``value``.
    ``proved``: the search was exhaustive, so that no choice is better than this one.
    ``interrupted``: Ctrl-C ended it early.
    """

    choice: tuple[int, ...]
    value: float
    cost: int
    bound: float
    proved: bool
    latency: float | None = None
    notes: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def gap(self) -> float:
        """How much better a choice could at most be: ``bound − value``, never negative."""
        return self.bound - self.value

"""What will be served: token counts with weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from numbers import Real

from gacprof.core.errors import PlanError

DEFAULT_TOKENS: Mapping[int, float] = {1: 1.0, 1024: 1.0}
"""One decode step and one prefill of 1024 tokens (the papers' sequence length), equally."""

Tokens = Mapping[int, float] | Sequence[int]
"""Token counts and their weights; counts alone weigh 1 each."""


def workload_of(tokens: Tokens | None) -> dict[int, float]:
    """``{1: 0.9, 1024: 0.1}`` or ``[1, 1024]`` as counts with weights; None is the default.

    Raises :class:`PlanError` for anything but a list of positive counts.
    """
    if tokens is None:
        return dict(DEFAULT_TOKENS)
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Mapping | Sequence | Set):
        raise PlanError(
            f"the tokens are {tokens!r}: give counts such as [1, 1024], or counts with weights "
            "such as {1: 0.9, 1024: 0.1}"
        )
    pairs = tokens.items() if isinstance(tokens, Mapping) else [(count, 1.0) for count in tokens]
    if not pairs:
        raise PlanError("no token counts were given: leave tokens out for 1 and 1024, or name some")
    for count, weight in pairs:
        known = is_number(count, int) and is_number(weight)
        if not known or count <= 0 or not 0 < weight < float("inf"):
            raise PlanError(
                f"the workload {tokens} needs positive token counts (whole numbers) and weights"
            )
    return {int(count): float(weight) for count, weight in pairs}


def is_number(value: object, kind: type = Real) -> bool:
    """Whether the value is a number of that kind; True and False are none."""
    return isinstance(value, kind) and not isinstance(value, bool)

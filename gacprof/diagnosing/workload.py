"""What will be served: token counts with weights, and the dtype that a map answers in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from numbers import Real

from gacprof.checkpoint.inventory import Inventory
from gacprof.cliffmap import CliffMap
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


def choose_dtype(cliff_map: CliffMap, inventory: Inventory, asked: str | None) -> tuple[str, str]:
    """The map's dtype to predict in and, where it is not the checkpoint's, a note.

    Raises :class:`PlanError`.
    """
    held = sorted({curve.dtype for curve in cliff_map.select("linear")})
    if asked is not None:
        if held and asked not in held:
            raise PlanError(
                f"the map '{cliff_map.name}' holds no {asked}; it holds {', '.join(held)}"
            )
        return asked, ""
    counts = Counter(module.dtype for module in inventory.modules).most_common(1)
    stored = counts[0][0] if counts else "float16"
    if stored in held or not held:  # an empty map's errors say what to sweep
        return stored, ""
    which = "the only dtype" if len(held) == 1 else "the first dtype"
    return held[0], (
        f"stored as {stored}; predicted in {held[0]}, {which} of this map: what the weights cost "
        f"when computed in {held[0]}. Other kernels serve {stored}, with other cliffs and times; "
        f"'gacprof sweep --for CHECKPOINT --dtype {stored}' measures those"
    )

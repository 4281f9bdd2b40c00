"""Two resources: the prefixes and suffixes of a choice, each of which loses but a part of g.

States of two resources seldom dominate each other, and their number grows exponentially with
the loss allowed. But in any order of the classes, a choice that loses at most g splits at one
class: the classes before it lose at most g/2, those after it at most g/2, and only with that
class's candidate g/2 is passed (or it never is). So prefixes and suffixes up to g/2 are listed,
and every prefix that a candidate carries past g/2 is joined with the suffixes that fill the room
it leaves: a narrow window of them, since unused room is a loss as well.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gacprof.solver.core import Core, OverQuotaError, States
from gacprof.solver.problem import Ints

CHUNK = 1 << 18
"""Pairs tried at once."""


def meet_in_the_middle(core: Core, check: Callable[[], None]) -> None:
    """Search ``core`` by prefixes and suffixes. Raises :class:`OverQuotaError`."""
    half = core.bar / 2
    suffixes = _suffixes(core, half * (1 + 1e-9), check)
    front = half if suffixes else core.bar
    states = core.root()
    for k in range(core.classes):
        check()
        if suffixes:
            _join(core, states, suffixes, k, front)
        states = core.extend(states, k, core.after(k + 1), front)
        core.record(states)
        if not len(states.loss):
            return


def _suffixes(core: Core, most: float, check: Callable[[], None]) -> list[States]:
    """States of the classes from k on that lose at most ``most``, for every k; none if they
    explode: prefixes alone may not, being bounded by what is still to come."""
    start, quota = core.spent, core.quota
    core.quota = start + quota // 4
    suffixes = [core.root()]
    try:
        for k in reversed(range(core.classes)):
            check()
            suffixes.append(core.extend(suffixes[-1], k, core.before(k), most))
    except OverQuotaError:
        core.spent = start  # what was tried in vain is work, but not held against the quota
        return []
    finally:
        core.quota = quota
    return suffixes[::-1]


def _join(core: Core, states: States, suffixes: list[States], k: int, front: float) -> None:
    """Carry prefixes past ``front`` by a candidate of class k, and join them with suffixes."""
    loss = np.add.outer(core.item_loss[core.bounds[k] : core.bounds[k + 1]], states.loss)
    item, place = np.nonzero((loss > front) & (loss <= core.bar))
    core.charge(len(item))
    carried = core.moved(states, place, item + core.bounds[k])
    carried = carried.only(core.completable(carried, core.after(k + 1)))
    tails = suffixes[k + 1]
    if not len(carried.loss) or not len(tails.loss):
        return
    # The resource along which a window of equal loss holds the fewest suffixes.
    spread = [float(w.max() - w.min()) for w in tails.weights]
    axis = int(np.argmax(core.multipliers * spread))
    order = np.argsort(tails.weights[axis], kind="stable")
    weight = tails.weights[axis][order].astype(np.float64)
    room = (core.slack[axis] - carried.weights[axis]).astype(np.float64)
    slop = 2.0**-50 * (np.abs(room) + np.abs(weight).max())
    high = np.searchsorted(weight, room + slop, side="right")
    with np.errstate(divide="ignore"):
        lowest = room - slop - (core.bar - carried.loss) / core.multipliers[axis]
    low = np.searchsorted(weight, lowest, side="left")
    counts = np.maximum(high - low, 0)
    ends = np.cumsum(counts)
    at = 0
    while at < len(counts):
        done = int(ends[at - 1]) if at else 0
        upto = max(at + 1, int(np.searchsorted(ends, done + CHUNK)))
        core.charge(int(ends[upto - 1]) - done)
        left = np.repeat(np.arange(at, upto), counts[at:upto])
        first = np.repeat(ends[at:upto] - counts[at:upto] - done, counts[at:upto])
        right = order[low[left] + np.arange(len(left)) - first]
        _try_pairs(core, k, carried, left, suffixes, right)
        at = upto


def _try_pairs(
    core: Core, k: int, carried: States, left: Ints, suffixes: list[States], right: Ints
) -> None:
    """Pair prefixes ``left`` with suffixes ``right`` one by one; keep the best that fits."""
    tails = suffixes[k + 1]
    weights = carried.weights[:, left] + tails.weights[:, right]
    gain = carried.gain[left] + tails.gain[right]
    pair = core.best_fitting(weights, gain)
    if pair is None:
        return
    i, s = int(left[pair]), int(right[pair])
    items = [*core.trace(k - 1, int(carried.before[i])), int(carried.item[i])]
    none = np.zeros(1, dtype=np.int64)
    loss = carried.loss[[i]] + tails.loss[[s]]
    joined = States(weights[:, [pair]], gain[[pair]], loss, none, none)
    for tail in suffixes[k + 1 : core.classes]:
        items.append(int(tail.item[s]))
        s = int(tail.before[s])
    core.take(joined, items)

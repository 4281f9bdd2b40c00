"""Two resources: prefixes and suffixes of a choice meet, each of which loses but a part of g.

States of two resources seldom dominate each other, and their number grows exponentially with
the loss allowed. But in any order of the classes, a choice that loses at most g splits at one
class: the classes before it lose at most g − h, those after it at most h, and only with that
class's candidate g − h is passed (or it never is). So prefixes up to g − h and suffixes up to h
are listed, and every prefix that a candidate carries past g − h is met with the suffixes that
fill the room it leaves: a narrow window of them, since unused room is a loss as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gacprof.solver.problem import Floats, Ints
from gacprof.solver.states import Found, OverQuotaError, States

if TYPE_CHECKING:
    from gacprof.solver.core import Core

SHARES = (0.5, 0.25, 0.125)
"""h as a part of g: half is best unless the suffixes explode earlier than the prefixes."""

CHUNK = 1 << 18


def meet(core: Core, check: Callable[[], None]) -> None:
    """Search ``core`` by prefixes and suffixes. Raises :class:`OverQuotaError`."""
    whole = core.limit + core.margin
    tail = _suffixes(core, whole, check)
    front = whole - tail
    states = core.root()
    for k in range(core.classes):
        check()
        if tail:
            _match(core, states, k, front)
        states = core.extend(states, k, core.after(k + 1), front)
        core.history.append(states.trail)
        if not len(states.rho):
            return
        core.note(k, states)


def _suffixes(core: Core, whole: float, check: Callable[[], None]) -> float:
    """List the suffixes from every class on in ``core.tails``; the loss up to which they are."""
    start, quota = core.spent, core.quota
    for share in SHARES:
        core.quota = start + quota // 4
        tails = [core.root()]
        try:
            for k in reversed(range(core.classes)):
                check()
                tails.append(core.extend(tails[-1], k, core.before(k), whole * share * (1 + 1e-9)))
        except OverQuotaError:
            core.spent = start  # what was tried in vain is work, but not held against the quota
            continue
        finally:
            core.quota = quota
        core.tails = tails[::-1]
        return whole * share
    return 0.0


def _match(core: Core, states: States, k: int, front: float) -> None:
    """Carry prefixes past ``front`` by a candidate of class k, and meet them with suffixes."""
    carried, items = _carried(core, states, k, front)
    tails = core.tails[k + 1]
    if not len(items) or not len(tails.rho):
        return
    axis = _narrowest(core, tails)
    order = np.argsort(tails.weights[axis], kind="stable")
    weight = tails.weights[axis][order].astype(np.float64)
    room = (core.slack[axis] - carried.weights[axis]).astype(np.float64)
    slop = 2.0**-50 * (np.abs(room) + np.abs(weight).max(initial=0.0))
    high = np.searchsorted(weight, room + slop, side="right")
    spare = core.limit + core.margin - carried.rho
    with np.errstate(divide="ignore"):
        lowest = room - slop - spare / core.prices[axis]
    low = np.searchsorted(weight, lowest, side="left")
    counts = np.maximum(high - low, 0)
    ends = np.cumsum(counts)
    at = 0
    while at < len(counts):
        done = ends[at - 1] if at else 0
        upto = max(at + 1, int(np.searchsorted(ends, done + CHUNK)))
        core.charge(int(ends[upto - 1] - done))
        _pairs(core, k, carried, items, (at, upto), low, counts, order)
        at = upto


def _carried(core: Core, states: States, k: int, front: float) -> tuple[States, Ints]:
    """Prefixes with a candidate of class k that lose more than ``front``, and those candidates."""
    here = np.arange(core.bounds[k], core.bounds[k + 1])
    rho = states.rho + core.rho[here][:, None]
    item, place = np.nonzero((rho > front) & (rho <= core.limit + core.margin))
    item = here[item]
    core.charge(len(item))
    carried = States(
        [w[place] + m[item] for w, m in zip(states.weights, core.moves, strict=True)],
        states.gain[place] + core.gains[item],
        states.rho[place] + core.rho[item],
        place,
        item,
    )
    carried = carried.only(core.completable(carried, core.after(k + 1)))
    return carried, carried.move


def _narrowest(core: Core, tails: States) -> int:
    """The resource along which a window of equal loss holds the fewest suffixes."""
    spread = [
        price * float(w.max() - w.min())
        for price, w in zip(core.prices, tails.weights, strict=True)
    ]
    return int(np.argmax(spread))


def _pairs(
    core: Core,
    k: int,
    carried: States,
    items: Ints,
    part: tuple[int, int],
    low: Ints,
    counts: Ints,
    order: Ints,
) -> None:
    """Every carried prefix of ``part`` with every suffix in its window; keep the best that fits."""
    tails = core.tails[k + 1]
    some = np.arange(*part)
    left = np.repeat(some, counts[some])
    first = np.repeat(np.cumsum(counts[some]) - counts[some], counts[some])
    right = order[low[left] + np.arange(len(left)) - first]
    fits = np.ones(len(left), dtype=bool)
    weights = []
    for w, tail, room in zip(carried.weights, tails.weights, core.slack, strict=True):
        weights.append(w[left] + tail[right])
        fits &= weights[-1] <= room
    where = np.flatnonzero(fits)
    if not len(where):
        return
    gain = carried.gain[left[where]] + tails.gain[right[where]]
    best = int(np.argmax(gain))
    pair = where[best]
    i, s = int(left[pair]), int(right[pair])
    rho: Floats = np.array([carried.rho[i] + tails.rho[s]])
    none = np.zeros(1, dtype=np.int64)
    state = States([w[[pair]] for w in weights], gain[[best]], rho, none, none)
    chain = []
    for at in range(k + 1, core.classes):
        chain.append((at, s))
        s = int(core.tails[at].before[s])
    core.take(state, Found(k - 1, int(carried.before[i]), int(items[i]), tuple(chain)))

"""Refinement: few dims of a long axis, and more where something changes.

Which kernel serves a dim, and so its latency, is largely piecewise constant *within* each residue
class of 16 elements (32 bytes of a 16-bit type: the widest alignment that cuBLAS, FlashAttention
and Triton ask for), but not across classes. So a grid of every ninth dim comes first: nine is odd,
and the grid visits the classes in turn. Then the dim midway between two neighbours of a class that
differ in kernel, in success, or in latency by more than noise and the growth of the axis, the
largest differences first, until no such pair has a dim between.

What comes next is a pure function of what was measured. An interrupted sweep therefore resumes
from its samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf, log
from statistics import median

from gacprof.cliffmap.curves import Measured

RESIDUES = 16
GRID = 9
MEASURE_ALL_BELOW = 600
"""Shorter axes are measured whole: a third of sixteen classes of some thirty dims is ten each, too
few to locate several edges."""
LARGEST_SHARE = 3
"""At most a third of the axis is measured: where it wanders so much that halving all of it would
take more, the largest differences are located first."""


Known = Mapping[int, Measured | None]
"""What was measured of dims; None of one that failed."""


def next_dims(dims: Sequence[int], known: Known, floor: float) -> list[int]:
    """Which of ascending ``dims`` to measure next, where those ``known`` were; none at the end.
    ``floor`` is the smallest change of interest (a fraction)."""
    if not known:
        return [*dims] if len(dims) < MEASURE_ALL_BELOW else sorted({*dims[::GRID], dims[-1]})
    limit = len(dims) // LARGEST_SHARE - len(known)
    if len(dims) < MEASURE_ALL_BELOW or limit <= 0:
        return []
    classes = residue_classes(dims)
    growth = _growth(classes, known)
    found: list[tuple[float, int]] = []
    for members in classes:
        places = [i for i, d in enumerate(members) if d in known]
        for low, high in pairwise(places):
            a, b = members[low], members[high]
            change = _change(known[a], known[b], growth * log(b / a), floor)
            if change > 0 and high - low > 1:
                found.append((change, members[(low + high) // 2]))
    return sorted(d for _, d in sorted(found, reverse=True)[:limit])


def residue_classes(dims: Iterable[int]) -> list[list[int]]:
    """The dims by their remainder of 16, each class ascending; empty classes left out."""
    found: dict[int, list[int]] = {}
    for d in sorted(dims):
        found.setdefault(d % RESIDUES, []).append(d)
    return [found[remainder] for remainder in sorted(found)]


def _growth(classes: list[list[int]], known: Known) -> float:
    """The power of the dim with which latency grows along most of the axis: 0 on a plateau."""
    found = []
    for members in classes:
        for a, b in pairwise(d for d in members if d in known):
            first, last = known[a], known[b]
            if first and last:
                found.append(log(last.us / first.us) / log(b / a))
    return median(found) if found else 0.0


def _change(a: Measured | None, b: Measured | None, grown: float, floor: float) -> float:
    """How much changes between two dims, beyond ``grown``: |log ratio|; infinite between one that
    works and one that does not; 0 for the same kernel within noise or within the ``floor``."""
    if a is None or b is None:
        return 0.0 if a is b else inf
    apart = abs(log(b.us / a.us) - grown)
    if a.kernels and b.kernels and a.kernels != b.kernels:
        return max(apart, floor)
    noise = (a.half_width or 0.0) + (b.half_width or 0.0)
    return apart if apart > max(log(1 + floor), noise) else 0.0

"""How far the rules hold on measured maps: the rows of docs/rules.md, and every counter-example.

    python benchmarks/rules_on_published.py [GPU=MAP ...]

GPU is a name as of 'gacprof gpus', MAP a shipped map's name or a file of it, by default both
published ones; the rules are those of the map's release of PyTorch. Precision: of the dims that
rules name, those measured so; recall: the other way round. Sizes that the measurement leaves
undecided, or that the map has nothing larger to compare with, count for neither; those that rules
leave undecided count as not named.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.schema import Curve
from gacprof.core.errors import MapError
from gacprof.rules import NoRuleError, step, target
from gacprof.rules.target import Target
from gacprof.rules.verdicts import judged

PUBLISHED = ("a100=a100-published", "h100=h100-published")


def compared(curve: Curve, about: Target) -> tuple[list[int], list[str]]:
    """How many dims both decide; then of safe dims and of the frontier how many are in both sets,
    in the rules', in the measured one; and the dims on which they disagree.

    Raises :class:`NoRuleError` where no rule covers the curve."""
    dims, axis = curve.points.d, curve.axis
    at = judged(curve.point(dims[0]), axis, dims, about)
    if len(at) < 2:
        raise NoRuleError(f"{curve.identity}: fewer than two sizes that are served")
    ruled = {d: found.verdict for d, found in at.items() if found.verdict != "undecided"}
    best = (d for d, found in at.items() if found.tier == 1)
    widest = set({step(curve.point(d), axis, about): d for d in best}.values())
    comparable = {d for d in dims if curve.coverage.compares(d) and d in at}
    measured = dict(zip(dims, curve.verdicts, strict=True))
    known = {d for d in comparable if measured[d] != "undecided"}
    safe = {d for d, verdict in ruled.items() if verdict == "safe"}
    wrong = [
        f"{curve.identity}: {d} is {ruled[d]} by rules, {measured[d]} as measured"
        for d in sorted(known & ruled.keys())
        if (d in safe) != (measured[d] == "safe")
    ]
    counts = [len(known & ruled.keys())]
    for ours, theirs in ((safe & known, set(curve.safe) & known),
                         (widest & comparable, set(curve.frontier) & comparable)):  # fmt: skip
        counts += [len(ours & theirs), len(ours), len(theirs)]
    return counts, wrong


def lines(given: str) -> Iterator[str]:
    """A row for each operator's axis of a map, then its counter-examples."""
    gpu, _, name = given.partition("=")
    cliff_map = CliffMap.load(name)
    device = cliff_map.environment
    about = target(gpu, device.stack["torch"])
    if about.arch != device.arch:
        raise MapError(f"'{name}' is of {device.name} ({device.arch}): rules of {gpu} do not fit")
    sums: dict[str, list[int]] = defaultdict(lambda: [0] * 7)
    wrong = []
    for curve in cliff_map.curves:
        try:
            counts, found = compared(curve, about)
        except NoRuleError:
            continue
        wrong += found
        if counts[0]:
            operator = f"{curve.operator} " if curve.operator.startswith("row_") else ""
            label = f"{gpu.upper()} {operator}{curve.axis}"
            sums[label] = [a + b for a, b in zip(sums[label], counts, strict=True)]
    for label, (dims, *shares) in sums.items():
        cells = (share(shares[i], of) for i in (0, 3) for of in shares[i + 1 : i + 3])
        yield f"| {label} | {dims} | {' | '.join(cells)} |"
    yield from wrong


def share(agreed: int, of: int) -> str:
    return f"{100 * agreed / of:.0f} % ({agreed}/{of})" if of else f"– ({agreed}/{of})"


if __name__ == "__main__":
    print("| axis | dims | safe: precision | recall | frontier: precision | recall |")
    print("|---|---:|---:|---:|---:|---:|")
    for given in sys.argv[1:] or PUBLISHED:
        print(*lines(given), sep="\n")

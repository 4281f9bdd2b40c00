"""Settle what the two papers disagree about, on the GPU at hand.

    python reports/paper/disputes.py [--device cuda] [--only 7] --out DIR

Every point is measured as a sweep measures it, in blocks with A/A replicates; a second call goes
on where the first stopped. Written are the samples, ``disputes.md`` and ``disputes.json``.
Without a GPU the disputes that need none are settled, and the others say what they need.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from command_line import arguments, run
from experiments import DISPUTES, OPEN, UNDECIDED, Dispute, Results

from gacprof import api
from gacprof.cli.printing import progress as bar
from gacprof.cli.printing import say
from gacprof.cliffmap.build import noise_of_blocks
from gacprof.cliffmap.detect import ASSUMED_FLOOR
from gacprof.core import Progress
from gacprof.core.errors import MeasurementError
from gacprof.core.files import write_json, write_text
from gacprof.core.points import Point
from gacprof.devices.device import device_name
from gacprof.explain.case import Where
from gacprof.sweeping import Suite, environment_of, read_blocks, read_samples
from gacprof.sweeping.suite import Sweep

PAGE, DATA = "disputes.md", "disputes.json"


@dataclass(frozen=True)
class Verdict:
    """``basis`` is ``measured`` or ``static``; ``needs`` says what it takes where it is open."""

    number: int
    title: str
    status: str
    finding: str
    evidence: tuple[str, ...] = ()
    basis: str = ""
    needs: str = ""


def settle(disputes: Iterable[Dispute] = DISPUTES, results: Results | None = None) -> list[Verdict]:
    """A verdict on each dispute; without results, as far as it can be settled without a GPU."""
    return [_settle(dispute, results) for dispute in disputes]


def _settle(dispute: Dispute, results: Results | None) -> Verdict:
    about = dispute.number, dispute.title
    if results is not None and dispute.rule is not None:
        status, finding, evidence = dispute.decide(results)
        failures = [why for p, why in results.failures.items() if p in dispute.points]
        if status != UNDECIDED:
            return Verdict(*about, status, finding, evidence, "measured")
        if not (failures and dispute.static):
            evidence = (*evidence, *failures[:3])
            return Verdict(*about, status, finding, evidence, "measured", dispute.needs)
    if dispute.static is None:
        return Verdict(*about, OPEN, f"not settled: it takes {dispute.needs}", needs=dispute.needs)
    status, finding, evidence = dispute.static()
    if status == OPEN:
        return Verdict(*about, status, finding, evidence, needs=dispute.needs)
    return Verdict(*about, status, finding, evidence, "static")


def chosen(numbers: Iterable[int] = ()) -> list[Dispute]:
    """The disputes of these numbers, all for none. Raises :class:`MeasurementError`."""
    by_number = {dispute.number: dispute for dispute in DISPUTES}
    asked = list(numbers) or list(by_number)
    for number in asked:
        if number not in by_number:
            raise MeasurementError(
                f"there is no dispute {number}: they go from 1 to {max(by_number)}"
            )
    return [by_number[number] for number in asked]


def measure(
    disputes: Sequence[Dispute],
    device: str,
    folder: Path,
    budget_s: float | None = None,
    progress: Progress | None = None,
) -> Results:
    """Sweep the disputes' points into ``folder``, or go on there, and read them.

    The noise floor is that of the sweep's own replicates. Raises :class:`MeasurementError`.
    """
    points = list(dict.fromkeys(point for dispute in disputes for point in dispute.points))
    begun = folder.is_dir() and any(folder.iterdir())
    api.sweep(
        suite_of(points), device=device, out=folder, resume=begun, budget_s=budget_s,
        progress=progress,
    )  # fmt: skip
    floor = noise_of_blocks(read_blocks(folder)).floor
    where = Where.of(environment_of(folder))
    return Results(read_samples(folder), where, ASSUMED_FLOOR if floor is None else floor)


def suite_of(points: Sequence[Point]) -> Suite:
    """A suite of these points, those that differ in one dim on one curve: points of a block are
    compared best. The longest curves come first; a point is on one of them only."""
    left, sweeps = list(points), []
    while left:
        curves: dict[tuple[str, Point], list[Point]] = defaultdict(list)
        for point in left:
            for axis in point.dim:
                curves[axis, point.with_dim(axis, 1)].append(point)
        (axis, _), members = max(curves.items(), key=lambda item: len(item[1]))
        first = members[0]
        sweeps.append(
            Sweep(
                operator=first.operator,
                axis=axis,
                values=[*sorted(point.dim[axis] for point in members)],
                dims={name: size for name, size in first.dims if name != axis},
                dtype=first.dtype,
                flags=dict(first.flag),
            )
        )
        left = [point for point in left if point not in members]
    return Suite(name="disputes", sweep=sweeps)


def write(folder: Path, verdicts: Sequence[Verdict], where: str) -> None:
    """``disputes.md`` for people and ``disputes.json`` for programs; ``where`` names the device."""
    claims = {dispute.number: dispute.claims for dispute in DISPUTES}
    lines = ["# What the papers disagree about", "", f"Looked into on {where}.", ""]
    for v in verdicts:
        basis = f" ({v.basis})" if v.basis else ""
        lines += [f"## {v.number}. {v.title}", "", f"**{v.status}**{basis}: {v.finding}", ""]
        lines += [f"- claim: {claim}" for claim in claims[v.number]]
        lines += [f"- evidence: {line}" for line in v.evidence]
        lines += [f"- to settle it: {v.needs}", ""] if v.needs else [""]
    write_text(folder / PAGE, "\n".join(lines))
    write_json(folder / DATA, [asdict(verdict) for verdict in verdicts])


def main(asked: argparse.Namespace) -> int:
    disputes = chosen(asked.only)
    device = device_name(asked.device)
    if device.startswith("cuda"):
        with bar("disputes") as advance:
            results = measure(disputes, device, asked.out / "samples", None, advance)
        where = environment_of(asked.out / "samples").name
        verdicts, basis = settle(disputes, results), f"{where}, noise floor {results.floor:.1%}"
    elif asked.device is None:
        where = "a machine without a GPU"
        verdicts, basis = settle(disputes), "no GPU at hand: settled without one"
    else:
        raise MeasurementError(
            f"the disputes are about GPUs, not '{device}': leave --device out to see which are "
            "settled without one"
        )
    write(asked.out, verdicts, where)
    for v in verdicts:
        say(f"{v.number}. {v.title}  {v.status}: {v.finding}")
    settled = sum(verdict.status == "settled" for verdict in verdicts)
    say(f"{settled} of {len(verdicts)} settled; {basis}; written: {asked.out / PAGE}")
    return 0


def command(given: Sequence[str] | None = None) -> None:
    parser = arguments(__doc__)
    parser.add_argument("--device", help="cuda or cuda:N; default: the first GPU, if there is one")
    parser.add_argument("--only", type=int, action="append", default=[], help="a dispute's number")
    parser.add_argument("--out", type=Path, required=True, help="folder for samples and verdicts")
    run(main, parser, given)


if __name__ == "__main__":
    command()

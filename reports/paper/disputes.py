"""Settle what the two papers disagree about, on the GPU at hand.

    python reports/paper/disputes.py [--device cuda] [--only 7] --out DIR

Every point is measured as a sweep measures it, in blocks with A/A replicates; a second call goes
on where the first stopped. Written are the samples, ``disputes.md`` and ``disputes.json``.
Without a GPU the disputes that need none are settled, and the others say what they need.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from experiments import DISPUTES, OPEN, SETTLED, UNDECIDED, Dispute, Results
from typer import Option

import gacprof
from gacprof.cli.app import main
from gacprof.cli.printing import progress as bar
from gacprof.cli.printing import say
from gacprof.cliffmap.detect import ASSUMED_FLOOR
from gacprof.core import Progress
from gacprof.core.errors import MapError, MeasurementError
from gacprof.core.files import write_json, write_text
from gacprof.core.formatting import percent
from gacprof.core.points import Point
from gacprof.devices.opening import device_name
from gacprof.explaining.case import Where
from gacprof.sweeping import Suite, build_map_of, environment_of, read_samples
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
    gacprof.sweep(
        suite_of(points), device=device, out=folder, resume=begun, budget_s=budget_s,
        progress=progress,
    )  # fmt: skip
    try:
        floor = build_map_of(folder).floor
    except MapError:  # nothing could be measured
        floor = None
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


script = typer.Typer(name="disputes.py", add_completion=False, rich_markup_mode=None)


@script.command(name="disputes", help=__doc__)
def disputes_verb(
    out: Annotated[Path, Option(help="The folder for samples and verdicts.")],
    device: Annotated[str | None, Option(help="cuda or cuda:N. Default: a GPU, if any.")] = None,
    only: Annotated[list[int] | None, Option(help="A dispute's number; repeatable.")] = None,
) -> None:
    disputes = chosen(only or ())
    name = device_name(device)
    where, basis, results = "a machine without a GPU", "no GPU at hand: settled without one", None
    if name.startswith("cuda"):
        with bar("disputes") as advance:
            results = measure(disputes, name, out / "samples", None, advance)
        where = environment_of(out / "samples").name
        basis = f"{where}, noise floor {percent(results.floor)}"
    elif device is not None:
        raise MeasurementError(
            f"the disputes are about GPUs, not '{name}': leave --device out to see which are "
            "settled without one"
        )
    verdicts = settle(disputes, results)
    write(out, verdicts, where)
    for v in verdicts:
        say(f"{v.number}. {v.title}  {v.status}: {v.finding}")
    settled = sum(verdict.status == SETTLED for verdict in verdicts)
    say(f"{settled} of {len(verdicts)} settled; {basis}; written: {out / PAGE}")


if __name__ == "__main__":
    main(script)

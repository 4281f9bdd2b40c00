"""The verbs ``plan`` and ``pareto``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gacprof.cli.options import Drawing, Reasons, from_requests
from gacprof.cli.printing import (
    MOST_ROWS,
    complain,
    emit,
    print_table,
    progress,
    say,
    say_notes,
    search_line,
)
from gacprof.core import formatting
from gacprof.core.errors import PlanError
from gacprof.core.files import read_json, refuse_to_replace
from gacprof.core.formatting import at_most, counted, microseconds, percent
from gacprof.core.request import option
from gacprof.planning import ParetoRequest, PlanRequest
from gacprof.planning.request import BUDGET
from gacprof.reporting.grouping import group
from gacprof.reporting.wording import by_phase, planned

if TYPE_CHECKING:
    from gacprof import Plan
    from gacprof.planning.pareto import Pareto, Variant
    from gacprof.planning.schema import Choice


class PlanFile(Reasons):
    """Where a plan is written, and what is printed of it."""

    out: Path = option(default=Path("plan.json"), read=Path, help="The plan's file.")


@from_requests
def plan(asked: PlanRequest, output: PlanFile) -> None:
    """Choose a good size for every dim, within limits.

    The plan is a JSON file, which realign takes.

    Ctrl-C ends a long search: the best plan so far is written and printed with its gap, and
    the exit code is 130.
    """
    import gacprof

    checkpoint, target = str(asked.checkpoint), output.out
    _refuse_to_replace(target, checkpoint)
    with search_line(asked.objective) as report:
        made = gacprof.plan(replace(asked, progress=report))
    made.save(target)
    emit(made, output.as_json, _print_plan, target, checkpoint, output.every, output.why)
    if made.certificate.interrupted:
        complain(f"interrupted: {target} holds the best plan found, not proved to be the best")
        raise typer.Exit(130)


@from_requests
def pareto(asked: ParetoRequest, output: Drawing) -> None:
    """Set plans over many budgets side by side.

    Naive rounding and the paper's choice stand beside them.

    Constraints and limits bind our plans only: rounding knows of none.
    """
    import gacprof
    from gacprof.reporting.figures_models import pareto_figure
    from gacprof.reporting.figures_style import save

    with progress("pareto") as advance:
        found = gacprof.pareto(replace(asked, progress=advance))
    files = save(pareto_figure(found.as_dict()), output.out) if output.out else []
    emit(found, output.as_json, _print_pareto, files)


def _refuse_to_replace(target: Path, checkpoint: str) -> None:
    """Raise :class:`PlanError` where a plan would take the place of something that is none, or
    of what a loader looks for in the checkpoint."""
    from gacprof.checkpoint.scanning import belongs

    folder = Path(checkpoint) if Path(checkpoint).is_dir() else Path(checkpoint).parent
    parent = Path(os.path.realpath(target)).parent  # Path.resolve raises for a link to itself
    inside = folder.is_dir() and parent == Path(os.path.realpath(folder))
    if inside and belongs(target.name):
        raise PlanError(f"{target} is a file of the checkpoint's own: name another for the plan")
    refuse_to_replace(target, "plan", _is_plan)


def _is_plan(path: Path) -> bool:
    try:
        data = read_json(path)
    except (OSError, ValueError):
        return False
    return isinstance(data, dict) and str(data.get("schema", "")).startswith("gacprof.plan/")


def _print_plan(made: Plan, target: Path, checkpoint: str, every: bool, why: bool) -> None:
    """What the plan comes to and what changes; ``why`` adds limits, verdicts, proof and notes."""
    from gacprof.cliffmap.view import NOISY
    from gacprof.diagnosing.fixed import UNCHANGED
    from gacprof.diagnosing.merging import MERGING
    from gacprof.planning.warnings import OF_BEST_TIER

    data = made.as_dict()
    for sentence in filter(None, (planned(data), "" if made.by_tier else by_phase(data))):
        say(sentence)
    if every:
        _print_choices(made)
    else:
        _print_changes(made)
    if why or every:
        _print_reasons(made)
    else:
        if not made.certificate.proved:
            _print_certificate(made)
        beyond = [
            note for note in made.warnings
            if note.startswith((MERGING, UNCHANGED, NOISY, BUDGET)) or OF_BEST_TIER in note
        ]  # fmt: skip
        say_notes([*beyond, *made.certificate.notes])
        say("--why prints what was asked for, how sizes were judged, the proof, and notes")
    if any(choice.after != choice.before for choice in made.choices):
        say(f"plan: {target}    next: gacprof realign {checkpoint} --plan {target} --out DIR")
    else:
        say(f"plan: {target}    nothing to realign: every size stays as it is")


def _print_reasons(made: Plan) -> None:
    if made.tolerance is not None:
        say(f"verdicts are on the planned sizes, by a tolerance of {percent(made.tolerance)}")
    _print_preset(made)
    _print_costs(made)
    if made.predicted_after_us is not None or not made.by_tier:
        _print_time(made)
    if made.energy_kept is None:
        say("energy kept: not known (no spectra were read, or a width is cut)")
    else:
        say(f"energy kept, mean over {len(made.choices)} dims: {made.energy_kept:.6f}")
    _print_certificate(made)
    say_notes([*made.warnings, *made.certificate.notes])


def _print_changes(made: Plan) -> None:
    """What changes, dims that change alike in one row, the most time gained first."""
    changed = [c for c in made.choices if c.after != c.before]
    rows = group(changed, lambda c: c.dim.rpartition(":")[0], _change_shown)
    rows.sort(key=lambda row: -len(row.members) * (_gained(row.first) or 0.0))
    each = not made.by_tier  # else a gain is claimed of all changes together alone
    table = [
        (
            row.name, f"{row.first.dim.rpartition(':')[2]} {row.first.before}",
            "dense" if row.first.after is None else row.first.after, f"×{len(row.members)}",
            *([_gains_shown(row.members)] * each), *_change_shown(row.first)[-2:],
        )
        for row in rows[:MOST_ROWS]
    ]  # fmt: skip
    if table:
        columns = ("dims", "size", "plan", "n", *(["gains"] * each), "kept", "verdict")
        print_table("", columns, table)
    left = sum(len(row.members) for row in rows[MOST_ROWS:])
    if left:
        say(f"… and {left} more (--all shows each)")


def _gained(c: Choice) -> float | None:
    before, after = c.latency_before_us, c.latency_after_us
    return None if before is None or after is None else before - after


def _gains_shown(alike: Sequence[Choice]) -> str | None:
    """What dims that change alike gain in all."""
    gained = _gained(alike[0])
    return "unknown" if gained is None else microseconds(len(alike) * gained)


def _change_shown(c: Choice) -> tuple[Any, ...]:
    """All that a row shows of a change, as it is shown: equal rows become one."""
    kept = None if c.energy_kept is None else f"{c.energy_kept:.4f}"
    return c.dim.rpartition(":")[2], c.before, c.after, _gains_shown([c]), kept, c.verdict


def _print_choices(made: Plan) -> None:
    """Every dim; the plan's file has the sizes that each had on offer."""
    names = [c.dim.removeprefix("model.layers.") for c in made.choices]
    rows = [
        (
            name, c.before, "dense" if c.after is None else c.after,
            microseconds(c.latency_before_us), microseconds(c.latency_after_us), c.verdict,
            None if c.verdict is None else at_most(c.penalty_high),
        )
        for name, c in zip(names, made.choices, strict=True)
    ]  # fmt: skip
    columns = ("dim", "size", "plan", "now", "planned", "verdict", "at most")
    print_table(f"objective {made.objective}", columns, rows)


def _print_preset(made: Plan) -> None:
    if made.preset is None:
        return
    if not made.preset.demands:
        say(f"preset {made.preset.text}: it takes any size")
    for demand in made.preset.demands:
        say(
            f"preset {made.preset.text}: multiples of {demand.multiple} for "
            f"{counted(demand.dims, 'dim')}, since "
            f"{demand.why} ({demand.source})"
        )


def _print_costs(made: Plan) -> None:
    budget, memory = made.budget, made.memory
    say(f"objective {made.objective}")
    limit = f"{budget.limit:,}" if budget.limit is not None else "none"
    say(f"parameters planned: {budget.before:,} → {budget.used:,}; limit {limit} ({budget.basis})")
    if budget.checkpoint_before and budget.checkpoint_after:
        more = budget.checkpoint_after / budget.checkpoint_before - 1
        say(
            f"parameters in all: {budget.checkpoint_before:,} → {budget.checkpoint_after:,} "
            f"({percent(more, signed=True)})"
        )
    if memory is not None:
        most = f"{memory.limit:,} bytes" if memory.limit is not None else "none"
        say(f"bytes of weights: {memory.before:,} → {memory.after:,}; limit {most}")


def _print_time(made: Plan) -> None:
    before, after = made.predicted_before_us, made.predicted_after_us
    when = formatting.workload(made.workload.tokens)
    now, planned = (microseconds(us) or "unknown" for us in (before, after))
    change = f" ({percent(after / before - 1, signed=True)})" if before and after else ""
    say(f"predicted time in the planned weights' products, {when}: {now} → {planned}{change}")


def _print_certificate(made: Plan) -> None:
    proof = made.certificate
    bound = "no bound" if proof.bound is None else f"bound {proof.bound:.10g}"
    gap = "" if proof.gap is None else f", gap {proof.gap:.3g}"
    proved = "proved optimal" if proof.proved else "not proved optimal"
    what = f" ({proof.measures})" if proof.measures else ""
    estimated = f"; {proof.estimated}" if proof.estimated else ""
    say(
        f"certificate: {proof.solver}, value {proof.value:.10g}{what}, {bound}{gap}, {proved}"
        f"{estimated}"
    )


def _print_pareto(found: Pareto, files: Sequence[Path]) -> None:
    rows = [
        (
            v.method, f"{v.parameters:,}", f"{v.nbytes / 1e6:,.2f} MB", _time(v),
            f"{1 - v.energy_kept:.4f}" if v.energy_kept is not None else None, percent(v.aligned),
            v.note if v.proved is not False else f"not proved optimal; {v.note}",
        )
        for v in found.variants
    ]  # fmt: skip
    columns = (
        "method", "parameters", "weights", "planned products",
        "energy lost", "aligned", "note",
    )  # fmt: skip
    print_table(f"{found.checkpoint} on {found.device}", columns, rows)
    say_notes(found.notes)
    for file in files:
        say(str(file))


def _time(v: Variant) -> str | None:
    """The predicted time, an estimated one with its bounds."""
    if v.latency_us is None or v.bounds_us is None:
        return microseconds(v.latency_us)
    low, high = map(microseconds, v.bounds_us)
    return f"{microseconds(v.latency_us)} ({low} to {high})"

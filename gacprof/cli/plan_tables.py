"""What ``plan`` and ``pareto`` print: tables, and what has to be said under them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gacprof.cli.printing import at_most, microseconds, percent, print_table, say

AROUND = 2
"""Sizes of a window shown on either side of the chosen one, besides its ends."""


def print_plan(made: Any) -> None:
    _print_choices(made)
    _print_costs(made)
    _print_time(made)
    _print_quality(made)
    _print_windows(made)
    _print_proof(made.certificate)
    for note in (*made.warnings, *made.certificate.notes):
        say(f"note: {note}")


def _print_choices(made: Any) -> None:
    rows = [
        (
            c.dim.removeprefix("model.layers."),
            c.before,
            "dense" if c.after is None else c.after,
            c.action,
            microseconds(c.latency_before_us),
            microseconds(c.latency_after_us),
            c.verdict,
            None if c.verdict is None else at_most(c.penalty_high),
            f"{c.energy_kept:.4f}" if c.energy_kept is not None else None,
            window(c.candidates, c.after, c.fusable),
        )
        for c in made.choices
    ]
    columns = (
        "dim", "size", "plan", "action", "time now", "planned", "verdict", "at most", "kept",
        "window [chosen]",
    )  # fmt: skip
    print_table(f"objective {made.objective}", columns, rows)
    if made.tolerance is not None:
        say(f"verdicts are on the planned sizes, by a tolerance of {percent(made.tolerance)}")


def window(candidates: Sequence[int], chosen: int | None, fusable: bool) -> str:
    """``64 72 [80] 88``: the sizes on offer and the chosen one among them, the middle left out
    where they are many; ``dense`` where multiplying out was on offer too."""
    names: list[int | str] = [*candidates, *(["dense"] if fusable else [])]
    if not names:
        return "nothing on offer"
    at = len(names) - 1 if chosen is None else names.index(chosen) if chosen in names else -1
    shown = {0, len(names) - 1, *range(at - AROUND, at + AROUND + 1)}
    parts: list[str] = []
    for i, name in enumerate(names):
        if i in shown:
            parts.append(f"[{name}]" if i == at else str(name))
        elif parts[-1] != "…":
            parts.append("…")
    return " ".join(parts)


def _print_costs(made: Any) -> None:
    budget, memory = made.budget, made.memory
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


def _print_time(made: Any) -> None:
    before, after = made.predicted_before_us, made.predicted_after_us
    when = ", ".join(f"{m} tokens × {w:g}" for m, w in made.workload.tokens.items())
    told = microseconds(before) or "unknown"
    if before and after:
        told += f" → {microseconds(after)} ({percent(after / before - 1, signed=True)})"
    else:
        told += f" → {microseconds(after) or 'unknown'}"
    say(f"predicted time in the planned weights' products, {when}: {told}")


def _print_quality(made: Any) -> None:
    if made.energy_kept is not None:
        say(f"energy kept, mean over {len(made.choices)} dims: {made.energy_kept:.6f}")
    else:
        say("energy kept: not known (no spectra were read, or a width is cut)")


def _print_windows(made: Any) -> None:
    """How the choices lie in their windows, over all dims that had a choice."""
    lowest = highest = within = 0
    for c in made.choices:
        offered = [*c.candidates, *([None] if c.fusable else [])]
        if len(offered) < 2 or c.after not in offered:
            continue
        at = offered.index(c.after)
        lowest += at == 0
        highest += at == len(offered) - 1
        within += 0 < at < len(offered) - 1
    if lowest + highest + within:
        say(
            f"in their windows: {lowest} at the low end, {within} within, {highest} at the high end"
        )


def _print_proof(proof: Any) -> None:
    bound = "no bound" if proof.bound is None else f"bound {proof.bound:.10g}"
    gap = "" if proof.gap is None else f", gap {proof.gap:.3g}"
    proved = "proved optimal" if proof.proved else "not proved optimal"
    what = f" ({proof.measures})" if proof.measures else ""
    say(f"certificate: {proof.solver}, value {proof.value:.10g}{what}, {bound}{gap}, {proved}")


def print_pareto(found: Any) -> None:
    rows = [
        (
            v.method,
            f"{v.parameters:,}",
            f"{v.nbytes / 1e6:,.2f} MB",
            microseconds(v.latency_us),
            f"{1 - v.energy_kept:.4f}" if v.energy_kept is not None else None,
            percent(v.aligned),
            v.note if v.proved is not False else f"not proved optimal; {v.note}",
        )
        for v in found.variants
    ]
    columns = ("method", "parameters", "weights", "predicted", "energy lost", "aligned", "note")
    print_table(f"{found.checkpoint} on {found.device}", columns, rows)
    if found.grid is not None:
        _print_grid(found.grid)
    for note in found.notes:
        say(f"note: {note}")


def _print_grid(grid: Any) -> None:
    columns = ("within", *(f"≤ {microseconds(limit)}" for limit in grid.latency_us))
    rows = [
        (
            f"≤ {budget:,}",
            *(
                None
                if cell is None
                else f"{1 - cell.energy_kept:.4f}"
                if cell.energy_kept is not None
                else f"{cell.parameters:,}"
                for cell in line
            ),
        )
        for budget, line in zip(grid.parameters, grid.cells, strict=True)
    ]
    print_table("energy lost within so many parameters and so much time", columns, rows)

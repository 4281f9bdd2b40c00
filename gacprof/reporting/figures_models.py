"""Models as pictures: measured before and after, and what can be had for size, time and loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gacprof.core.formatting import percent
from gacprof.reporting.figures_style import (
    FAINT,
    INK,
    MARKERS,
    OKABE_ITO,
    QUIET,
    latency_unit,
    legend,
    new_figure,
    title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HALF_ROW = 0.4
"""Of the distance between two rows: half the height of the A/A band."""

Variant = Mapping[str, Any]

WAYS = {"up": "^", "down": "v", "nearest": "s"}
"""Markers of rounding."""


def bench_figure(bench: Mapping[str, Any], width: float = 8.0) -> Figure:
    """One row a workload, one mark a model: the ratio to the first model, below 1 is faster.

    A grey band is as wide as the A/A spread: what the first model shows against itself.
    ``bench`` is a bench's ``as_dict()``.
    """
    rows = workloads(bench)
    figure, (axes,) = new_figure(width, 1.9 + 0.62 * len(rows))
    axes.axvline(1.0, color=QUIET, linewidth=1.0)
    spreads = {replicate["workload"]: replicate["spread"] for replicate in bench["replicates"]}
    for i, (workload, timings) in enumerate(rows):
        _band(axes, i, spreads[workload])
        for k, model in enumerate(bench["models"][1:]):
            _mark(axes, i, k, len(bench["models"]) - 1, timings[model])
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.margins(x=0.12)
    axes.set_xlabel(f"time ÷ time of {bench['models'][0]}  (left of 1 is faster)", color=INK)
    device = bench["environment"]["name"]
    title(
        axes,
        "Measured interleaved, one run",
        f"{device} · {bench['dtype']} · batch {bench['batch']} · {bench['rounds']} rounds · "
        "95 % intervals for all together",
    )
    legend(axes)
    return figure


def _band(axes: Axes, row: int, spread: float) -> None:
    rows, left, right = [row - HALF_ROW, row + HALF_ROW], 1 / (1 + spread), 1 + spread
    name = "A/A spread" if row == 0 else None
    axes.fill_betweenx(rows, left, right, color=FAINT, linewidth=0, zorder=0, label=name)


def _mark(axes: Axes, row: int, k: int, models: int, timing: Mapping[str, Any]) -> None:
    """The k-th model's ratio, in its share of the row."""
    low, middle, high = timing["ratio"]
    y = row + 0.22 * (k - (models - 1) / 2)
    colour, marker = OKABE_ITO[k % len(OKABE_ITO)], MARKERS[k % len(MARKERS)]
    axes.plot([low, high], [y, y], color=colour, linewidth=2.0, solid_capstyle="butt")
    name = timing["model"] if row == 0 else None
    axes.plot(middle, y, marker, color=colour, markersize=7, label=name)
    axes.annotate(
        percent(middle - 1, signed=True) or "", (high, y), xytext=(6, 0), va="center",
        textcoords="offset points", fontsize=8.5, color=INK,
    )  # fmt: skip


def workloads(bench: Mapping[str, Any]) -> list[tuple[str, dict[str, Mapping[str, Any]]]]:
    """(workload, model → timing), in the order measured."""
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for timing in bench["timings"]:
        rows.setdefault(timing["workload"], {})[timing["model"]] = timing
    return list(rows.items())


def pareto_figure(found: Mapping[str, Any]) -> Figure:
    """Time and quality over the parameter count, and quality over time. ``found`` is a pareto's
    ``as_dict()``."""
    figure, panels = new_figure(15.5, 5.4, 1, 3)
    times = [v["latency_us"] for v in found["variants"] if v["latency_us"] is not None]
    factor, unit = latency_unit(times) if times else (1.0, "µs")
    size, time, loss = "parameters [million]", f"predicted latency [{unit}]", "energy lost [%]"
    drawn = [(size, time), (size, loss), (time, loss)]

    def value(axis: str, v: Variant) -> float | None:
        if axis == size:
            return float(v["parameters"]) / 1e6
        us = v["latency_us"]
        return _lost(v) if axis == loss else None if us is None else factor * us

    handles: dict[str, Any] = {}
    for panel, (x, y) in zip(panels, drawn, strict=True):
        for method, variants in _families(found["variants"]).items():
            points = [(value(x, v), value(y, v), v) for v in variants]
            known = [(a, b, v) for a, b, v in points if a is not None and b is not None]
            handles |= {method: handles.get(method)} | _draw_method(panel, method, known)
        panel.set_xlabel(x, color=INK)
        panel.set_ylabel(y, color=INK)
        panel.margins(0.09)
    tokens = ", ".join(f"{m} × {w:g}" for m, w in found["tokens"].items())
    conditions = f"{found['device']} · {found['dtype']} · tokens {tokens}"
    title(panels[0], "Time", conditions)
    title(panels[1], "Quality", "tail of squared singular values, mean over dims; padding loses 0")
    title(panels[2], "Quality for time", "down and left is better")
    shown = {method: handle for method, handle in handles.items() if handle is not None}
    below = figure.legend(
        shown.values(), shown.keys(), loc="outside lower center", ncols=5,
        frameon=False, fontsize=9, title=_missing(found["variants"]), title_fontsize=8.5,
    )  # fmt: skip
    below.get_title().set_color(QUIET)
    return figure


def _lost(variant: Variant) -> float | None:
    kept = variant["energy_kept"]
    return None if kept is None else 100 * (1 - kept)


def _families(variants: Sequence[Variant]) -> dict[str, list[Variant]]:
    """All of ours are one line; every other method is its own."""
    found: dict[str, list[Variant]] = {}
    for variant in variants:
        method = variant["method"]
        ours = method.startswith("gacprof")
        found.setdefault(method.partition(",")[0] if ours else method, []).append(variant)
    return found


def _draw_method(
    panel: Axes, method: str, points: list[tuple[float, float, Variant]]
) -> dict[str, Any]:
    """One method's points, and their handles for the legend. Ours is a line, ringed where it has
    the parameters of the checkpoint as it is."""
    if not points:
        return {}
    ours = method.startswith("gacprof")
    points = sorted(points, key=lambda p: (p[0], p[1]))
    colour, marker = _style(method)
    # Hollow, for rounding to the nearest often is rounding up, and would hide it; so is a method of
    # its own that chose the same dims as another.
    hollow = method.startswith("nearest") or marker == "D"
    (line,) = panel.plot(
        [x for x, _, _ in points], [y for _, y, _ in points], color=colour, marker=marker,
        linestyle="-" if ours else "none", linewidth=1.2, markersize=5 if ours else 7,
        fillstyle="none" if hollow else "full", markeredgewidth=1.6 if hollow else 1.0,
        zorder=2 if ours else 3,
    )  # fmt: skip
    if method == "as it is":
        panel.axvline(points[0][0], color=FAINT, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    handles = {method: line}
    for x, y, variant in points if ours else ():
        if variant["method"].endswith("today's budget"):
            (ring,) = panel.plot(
                [x], [y], marker="o", markersize=13, color="none", zorder=2, linestyle="none",
                markeredgecolor=colour,
            )  # fmt: skip
            handles[f"{method}, today's budget"] = ring
    return handles


def _style(method: str) -> tuple[str, str]:
    """Colour by kind of method, and for rounding by multiple; the marker says which way."""
    if method.startswith("gacprof"):
        return OKABE_ITO[0], "o"
    way, _, multiple = method.partition(" to ")
    if multiple:
        return OKABE_ITO[1 if multiple == "8" else 2], WAYS[way]
    return (OKABE_ITO[6], "X") if method == "as it is" else (OKABE_ITO[3], "D")


def _missing(variants: Sequence[Variant]) -> str:
    """Which methods a panel cannot show, and why."""
    reasons = []
    for key, why in (
        ("latency_us", "no predicted time (sizes the map does not hold)"),
        ("energy_kept", "loss not known (a width is cut)"),
    ):
        names = [
            method if len(lacking) == len(all_of_it) else f"{len(lacking)} of {method}"
            for method, all_of_it in _families(variants).items()
            if (lacking := [v for v in all_of_it if v[key] is None])
        ]
        if names:
            reasons.append(f"{why}: {', '.join(names)}")
    return " · ".join(reasons)

"""Parameters against predicted latency and against energy lost, every variant drawn in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gacprof.report.figures_style import INK, MARKERS, OKABE_ITO, latency_unit, new_figure, title

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def pareto_figure(found: Mapping[str, Any]) -> Figure:
    """Two panels over the parameter count. ``found`` is a pareto's ``as_dict()``."""
    figure, panels = new_figure(11.0, 4.6, columns=2)
    times = [v["latency_us"] for v in found["variants"] if v["latency_us"] is not None]
    factor, unit = latency_unit(times) if times else (1.0, "µs")
    methods: dict[str, list[Mapping[str, Any]]] = {}
    for variant in found["variants"]:
        methods.setdefault(_family(variant["method"]), []).append(variant)
    for i, (method, variants) in enumerate(methods.items()):
        style: dict[str, Any] = {
            "color": OKABE_ITO[i % len(OKABE_ITO)],
            "marker": MARKERS[i % len(MARKERS)],
            "linestyle": "-" if len(variants) > 6 else "none",
            "markersize": 6,
        }
        ordered = sorted(variants, key=lambda v: v["parameters"])
        timed = [v for v in ordered if v["latency_us"] is not None]
        millions = [v["parameters"] / 1e6 for v in timed]
        panels[0].plot(millions, [v["latency_us"] * factor for v in timed], label=method, **style)
        known = [v for v in ordered if v["energy_kept"] is not None]
        millions = [v["parameters"] / 1e6 for v in known]
        panels[1].plot(millions, [1 - v["energy_kept"] for v in known], **style)
    for panel in panels:
        panel.set_xlabel("parameters [million]", color=INK)
    panels[0].set_ylabel(f"predicted latency [{unit}]", color=INK)
    panels[1].set_ylabel("energy lost, mean share", color=INK)
    tokens = ", ".join(str(m) for m in found["tokens"])
    title(panels[0], "Time", f"{found['device']} · {found['dtype']} · {tokens} tokens")
    title(panels[1], "Quality", "tail of squared singular values; padding loses none")
    panels[1].legend(*panels[0].get_legend_handles_labels(), frameon=False, fontsize=9)
    return figure


def _family(method: str) -> str:
    """Rounding to 8 and to 64 share a mark each; every other method is its own."""
    _, _, multiple = method.partition(" to ")
    return f"rounding to {multiple}" if multiple else method

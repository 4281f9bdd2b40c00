"""Experts that are alike are judged and weighed once, and each gets what one alone would get."""

import sys
from pathlib import Path

from planted import TOKENS, planted_device

sys.path.insert(0, str(Path(__file__).parent.parent / "checkpoint"))

from checkpoint_making import checkpoint

from gacprof.checkpoint import scan
from gacprof.planning import classes, plan
from gacprof.sweeping import build_map_of, run_sweep
from gacprof.sweeping.for_checkpoint import suite_for

WIDTH, HIDDEN = 683, 256


def experts(folder, widths):
    shapes = {}
    for number, width in enumerate(widths):
        at = f"model.layers.0.mlp.experts.{number}"
        shapes |= {f"{at}.{part}_proj.weight": (width, HIDDEN) for part in ("gate", "up")}
        shapes[f"{at}.down_proj.weight"] = (HIDDEN, width)
    return checkpoint(folder, shapes, {"moe_intermediate_size": max(widths)})


def test_equal_experts_are_weighed_once_and_others_by_themselves(tmp_path, monkeypatch):
    weighed = []
    real = classes.options_of

    def counted(problem, component, *rest):
        weighed.append(component.axes[0].name)
        return real(problem, component, *rest)

    monkeypatch.setattr(classes, "options_of", counted)
    inventory = scan(experts(tmp_path / "source", [WIDTH] * 4 + [WIDTH + 2]))
    run_sweep(
        suite_for(inventory, sorted(TOKENS), dtype="float32"), planted_device(), tmp_path / "run"
    )
    cliff_map = build_map_of(tmp_path / "run", "planted")
    made = plan(inventory, cliff_map, tokens=TOKENS, dtype="float32")
    assert len(weighed) == 2
    chosen = {choice.dim: (choice.before, choice.after) for choice in made.choices}
    assert list(chosen.values()) == [(683, 688)] * 4 + [(685, 688)]
    alone = scan(experts(tmp_path / "alone", [WIDTH]))
    one = plan(alone, cliff_map, tokens=TOKENS, dtype="float32").choices[0]
    assert one == made.choices[0]

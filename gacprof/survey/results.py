"""``end_to_end.json``: what whole models were timed at, kept from call to call."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gacprof.core.files import write_json
from gacprof.survey.setting import Setting
from gacprof.survey.shapes import Shape
from gacprof.survey.variants import Variant

FILE = "end_to_end.json"


def layers_before(setting: Setting) -> int:
    """How many layers an earlier call ran; 0 where there was none."""
    try:
        data = json.loads((setting.folder / FILE).read_text(encoding="utf-8"))
        return int(data["shape"]["layers"]) if data["results"] else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def kept(setting: Setting, variants: Sequence[Variant], shape: Shape) -> dict[str, dict[str, Any]]:
    """Results of an earlier call, where it ran these very variants."""
    try:
        data = json.loads((setting.folder / FILE).read_text(encoding="utf-8"))
        same = data["variants"] == _sizes(variants) and data["shape"] == _json(shape.as_dict())
        return dict(data["results"]) if same else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def save(
    setting: Setting,
    shape: Shape,
    variants: Sequence[Variant],
    results: dict[str, dict[str, Any]],
    problems: dict[str, str],
) -> None:
    write_json(
        setting.folder / FILE,
        {
            "schema": "gacprof.survey.end_to_end/1",
            "shape": shape.as_dict(),
            "variants": _sizes(variants),
            "results": results,
            "not_measured": {name: why for name, why in problems.items() if name not in results},
        },
    )


def _sizes(variants: Sequence[Variant]) -> list[dict[str, Any]]:
    return [{"group": v.group, "name": v.name, "sizes": dict(v.sizes)} for v in variants]


def _json(value: Any) -> Any:
    return json.loads(json.dumps(value))

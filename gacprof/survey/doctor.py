"""Stage ``doctor``: what this machine can measure, and the state that its device is in."""

from __future__ import annotations

import json
from typing import Any

from gacprof.core.files import write_json
from gacprof.devices.doctor import examine as checks
from gacprof.survey.condition import Condition, look
from gacprof.survey.setting import Setting
from gacprof.survey.state import Outcome

FILE = "doctor.json"


def examine(setting: Setting) -> Outcome:
    """Write ``doctor.json``. What the device suffers from becomes the stage's notes."""
    found = [check.as_dict() for check in checks()]
    now = look(setting.machine.index)
    looks = [*_earlier(setting), now.as_dict()]
    write_json(setting.folder / FILE, {"checks": found, "conditions": looks})
    lacking = [f"{c['name']}: {c['note']}" for c in found if c["available"] is False]
    return Outcome(artefacts=(FILE,), notes=(*now.marks, *lacking))


def look_again(setting: Setting) -> Condition:
    """The condition now, added to ``doctor.json``: a device may change under a long survey."""
    now = look(setting.machine.index)
    data = read(setting)
    data["conditions"] = [*data.get("conditions", []), now.as_dict()]
    write_json(setting.folder / FILE, data)
    return now


def read(setting: Setting) -> dict[str, Any]:
    """``doctor.json``, empty where it is not there."""
    try:
        data = json.loads((setting.folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def _earlier(setting: Setting) -> list[dict[str, Any]]:
    return list(read(setting).get("conditions", []))

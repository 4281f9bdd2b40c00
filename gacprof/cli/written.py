"""What a verb wrote, and the step that follows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from gacprof.core.formatting import counted


def written_text(verb: str, arguments: Mapping[str, Any], result: Any) -> list[str]:
    """The sentences on the files of a verb; none of one that writes no file.

    The results of ``sweep``, ``compress`` and ``export`` name their folders themselves.
    """
    out = arguments.get("out")
    if verb == "realign":
        return [realigned_text(arguments["checkpoint"], result)]
    if verb == "report":
        return [f"Wrote {result}: open it in a browser."]
    if verb == "fleet":
        return [
            f"Wrote {run} of {kind}. Next: gacprof map show {run}" for kind, run in result.items()
        ]
    if verb == "map build":
        path = quote(str(out or Path(arguments["run"]) / "cliffmap.json"))
        return [f"Wrote {path}. Next: gacprof diagnose MODEL --map {path}"]
    if verb == "diagnose" and result.counts["misaligned"]:
        words = quote(result.checkpoint), quote(str(arguments["source"]))
        return [f"Next: gacprof plan {' '.join(words)} --out plan.json"]
    if verb == "plan" and result.sizes:
        if out is None:
            return ["Nothing was written: --out plan.json keeps the plan, for gacprof realign."]
        model, plan = quote(result.checkpoint), quote(str(out))
        return [f"Wrote {plan}. Next: gacprof realign {model} {plan} ALIGNED"]
    paths = (out, arguments.get("sarif"))
    return [f"Wrote {path}." for path in paths if path and verb in ("plan", "dispatch", "lint")]


def realigned_text(checkpoint: Any, folder: Path) -> str:
    """What a realigned checkpoint has changed, by its record and both headers."""
    from gacprof.checkpoint.scan import inventory_of
    from gacprof.checkpoint.writer import RECORD
    from gacprof.core.files import read_object

    before, after = inventory_of(checkpoint), inventory_of(folder)
    record = read_object(folder / RECORD)
    changes = []
    if record["resized"]:
        changes.append(f"{counted(len(record['resized']), 'size')} changed")
    if record["merged"]:
        changes.append(f"{counted(len(record['merged']), 'factor pair')} multiplied out")
    change = after.parameters / before.parameters - 1
    changes.append(f"{100 * change:+.1f} % parameters")
    model, aligned = quote(before.path), quote(str(folder))
    return f"Wrote {aligned}: {', '.join(changes)}. Check it: gacprof verify {model} {aligned}"

"""What a verb wrote, and the step that follows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from gacprof.core.formatting import counted
from gacprof.reporting.sections import next_step

WRITERS = ("plan", "dispatch", "lint", "table")  # besides those below
CARRIED = {
    "diagnose": ("tp", "ep", "dtype", "tokens", "factors"),
    "plan": ("factors",),
    "realign": ("factors",),
}
"""Options of a verb that its next step needs as well."""


def written_text(verb: str, arguments: Mapping[str, Any], result: Any) -> list[str]:
    """The sentences on the files of a verb; none of one that writes no file.

    The results of ``sweep``, ``compress`` and ``export`` name their folders themselves.
    """
    out = arguments.get("out")
    if verb == "report":
        return [f"Wrote {result}: open it in a browser."]
    if verb == "fleet":
        return [
            f"Wrote {run} of {kind}. Next: gacprof map show {run}" for kind, run in result.items()
        ]
    if verb == "plan" and result.sizes and out is None:
        return ["Nothing was written: --out plan.json keeps the plan, for gacprof realign."]
    if verb == "realign":
        text = realigned_text(arguments["checkpoint"], result)
        return [text + carried_text(verb, arguments)]
    if verb == "map build":
        path = out or Path(arguments["run"]) / "cliffmap.json"
        return [f"Wrote {quote(str(path))}. {next_step(result.schema, source=path)}"]
    if verb == "diagnose" and result.counts["misaligned"]:
        step = next_step(result.schema, model=result.checkpoint, source=arguments["source"])
        return [step + carried_text(verb, arguments)]
    if verb == "plan" and result.sizes:
        step = next_step(result.schema, model=result.checkpoint, plan=out)
        return [f"Wrote {quote(str(out))}. {step}{carried_text(verb, arguments)}"]
    paths = (out, arguments.get("sarif"))
    return [f"Wrote {path}." for path in paths if path and verb in WRITERS]


def carried_text(verb: str, arguments: Mapping[str, Any]) -> str:
    """The options that the next step needs as well, as they were given."""
    text = ""
    for name in CARRIED[verb]:
        value = arguments.get(name)
        words = [] if value is None else [value] if isinstance(value, str | int) else [*value]
        text += "".join(f" {quote(str(word))}" for word in (f"--{name}", *words)) if words else ""
    return text


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
    step = next_step("realign", model=before.path, aligned=folder)
    return f"Wrote {quote(str(folder))}: {', '.join(changes)}. {step}"

"""What a verb wrote, and the step that follows."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from gacprof.cli.verbs import command
from gacprof.core.formatting import counted
from gacprof.reporting.sections import next_step

WRITERS = ("plan", "dispatch", "lint", "table")  # besides those below


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
        text, is_cut = realigned_text(arguments["checkpoint"], result)
        # the copy of a smaller size is another function, which verify would say
        kind = "Verification" if is_cut else verb
        return [text + step_text(verb, arguments, kind, aligned=result)]
    if verb == "map build":
        path = out or Path(arguments["run"]) / "cliffmap.json"
        return [
            f"Wrote {quote(str(path))}. " + step_text(verb, arguments, result.schema, source=path)
        ]
    if verb == "diagnose" and any(f.action in ("pad", "merge") for f in result.dims):
        return [step_text(verb, arguments, result.schema)]
    if verb == "plan" and result.sizes:
        return [f"Wrote {quote(str(out))}. " + step_text(verb, arguments, result.schema, plan=out)]
    if verb == "verify" and result.ok:
        return [step_text(verb, arguments, result.schema, aligned=result.other)]
    if verb == "bench" and len(result.models) > 1:
        return [step_text(verb, arguments, result.schema, aligned=arguments["checkpoints"][-1])]
    paths = (out, arguments.get("sarif"))
    return [f"Wrote {path}." for path in paths if path and verb in WRITERS]


def step_text(verb: str, arguments: Mapping[str, Any], schema: str, **names: Any) -> str:
    """The step behind a verb's result, with the options of the verb that it takes as well."""
    for name, argument in (("model", "checkpoint"), ("source", "source")):
        value = arguments.get(argument)
        if value is not None:
            names.setdefault(name, getattr(value, "path", value))
    text = next_step(schema, **names)
    takes = inspect.signature(command(text.split()[2])).parameters
    for name, parameter in inspect.signature(command(verb)).parameters.items():
        value = arguments.get(name)
        is_option = parameter.kind is inspect.Parameter.KEYWORD_ONLY and name != "out"
        if is_option and name in takes and value is not None:
            words = value if isinstance(value, tuple) else (value,)
            text += " ".join(["", f"--{name}", *(quote(str(word)) for word in words)])
    return text


def realigned_text(checkpoint: Any, folder: Path) -> tuple[str, bool]:
    """What a realigned checkpoint has changed, by its record and both headers; and whether a size
    was cut."""
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
    is_cut = any(after < before for before, after, _ in record["resized"].values())
    return f"Wrote {quote(str(folder))}: {', '.join(changes)}. ", is_cut

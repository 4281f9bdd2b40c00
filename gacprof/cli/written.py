"""What a verb wrote, and the step that follows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from gacprof.cli.verbs import command
from gacprof.core.formatting import counted
from gacprof.reporting.sections import next_step

WRITERS = ("plan", "dispatch", "lint", "table", "map build")  # besides those below
FOLLOWED: Mapping[str, Callable[[Any], bool]] = {
    "map build": lambda _: True,
    "diagnose": lambda result: any(dim.action in ("pad", "merge") for dim in result.dims),
    "plan": lambda result: bool(result.sizes),
    "realign": lambda _: True,
    "verify": lambda result: result.ok,
    "bench": lambda result: len(result.models) > 1,
}
"""The verbs whose result a further step follows, and with which results."""
OUT_NAMES = {"map build": "source", "plan": "plan", "realign": "other"}
"""What steps call the file or folder that a verb wrote."""


def written_text(verb: str, arguments: Mapping[str, Any], result: Any) -> str:
    """The sentences on the files of a verb and on the next step; empty where there are none.

    The results of ``sweep``, ``compress`` and ``export`` name their folders themselves.
    """
    kind = getattr(result, "schema", verb)
    if verb == "report":
        return f"Wrote {result}: open it in a browser."
    if verb == "fleet":
        steps = [f"Wrote {run} of {k}. Next: gacprof map show {run}" for k, run in result.items()]
        return "\n".join(steps)
    if verb == "plan" and result.sizes and "out" not in arguments:
        return "Nothing was written: --out plan.json keeps the plan, for gacprof realign."
    if verb == "map build":
        from gacprof.cliffmap.cliffmap import MAP_FILE

        arguments = {"out": Path(arguments["run"]) / MAP_FILE, **arguments}
    if verb == "bench":
        arguments = {**arguments, "other": arguments["checkpoints"][-1]}
    paths = (arguments.get("out"), arguments.get("sarif"))
    sentences = [f"Wrote {quote(str(path))}." for path in paths if path and verb in WRITERS]
    if verb == "realign":
        text, is_cut = realigned_text(arguments["checkpoint"], result)
        sentences.append(text)
        # the copy of a smaller size is another function, which verify would say
        kind = "Verification" if is_cut else verb
    if verb in FOLLOWED and FOLLOWED[verb](result):
        sentences.append(step_text(verb, arguments, kind))
    return " ".join(sentences)


def step_text(verb: str, arguments: Mapping[str, Any], kind: str) -> str:
    """The step behind a kind of result, with the options of the verb that it takes as well."""
    text = next_step(kind, **{**arguments, OUT_NAMES.get(verb, "out"): arguments.get("out")})
    for name, parameter in inspect.signature(command(text.split()[2])).parameters.items():
        is_option = parameter.kind is inspect.Parameter.KEYWORD_ONLY and name != "out"
        if is_option and name in arguments:
            value = arguments[name]
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
    return f"Wrote {quote(str(folder))}: {', '.join(changes)}.", is_cut

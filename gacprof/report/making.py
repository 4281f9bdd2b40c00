"""``gacprof report``: a page of a model, of a folder that the verbs wrote, or of single files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import PlanError, ReportError, first_line, why_unreadable
from gacprof.core.files import read_json

if TYPE_CHECKING:
    from gacprof.cliffmap.source import SizeSource
    from gacprof.diagnosing.predict import Tokens

ARTEFACTS = {
    "diagnosis": "totals",
    "plan": "choices",
    "realigned": "resized",
    "verification": "argmax_agreement",
    "bench": "timings",
    "source": "curves",
}
"""What a page is made of → a key that only its JSON has."""


def write_report(
    out: str | Path,
    *,
    model: str | Path | None = None,
    cliff_map: str | Path | SizeSource | None = None,
    gpu: str | None = None,
    torch: str | None = None,
    tokens: Tokens | None = None,
    tp: int = 1,
    diagnosis: str | Path | Mapping[str, Any] | None = None,
    plan: str | Path | Mapping[str, Any] | None = None,
    realigned: str | Path | Mapping[str, Any] | None = None,
    verification: str | Path | Mapping[str, Any] | None = None,
    bench: str | Path | Mapping[str, Any] | None = None,
    title: str | None = None,
    notes: Sequence[str] = (),
) -> Path:
    """One HTML page, with its figures, in the folder ``out``.

    A ``model`` is diagnosed and planned by a map or by the rules of a ``gpu``, at these
    ``tokens``, with sizes as one of ``tp`` ranks holds them (planned as vLLM shares them out); a
    folder without a model gives the files that are in it. Else, or beside it, what
    the other verbs left: a map, a plan, and the JSON that they printed, as a file or as
    ``as_dict()`` gives it. ``notes`` are lines of your own.

    Raises :class:`ReportError`, and what the steps raise."""
    from jinja2 import UndefinedError

    from gacprof.cliffmap import CliffMap
    from gacprof.diagnosing.sources import open_source
    from gacprof.report.page import Contents, write_page
    from gacprof.rules.table import RuleTable

    given: dict[str, Any] = {
        "diagnosis": diagnosis, "plan": plan, "realigned": realigned,
        "verification": verification, "bench": bench,
    }  # fmt: skip
    found = _in_folder(Path(model)) if model is not None else {}
    named = cliff_map if cliff_map is not None or gpu else found.pop("source", None)
    source = open_source(named, gpu=gpu, torch=torch) if named is not None or gpu else None
    parts: dict[str, Any] = {name: _read(found.get(name) if part is None else part, ARTEFACTS[name])
             for name, part in given.items()}  # fmt: skip
    if model is not None and not found and source is None:
        raise ReportError(
            f"say what judges {model}: --map, a map's name or file, or --gpu, for its rules"
        )
    if model is not None and not found:
        parts |= _steps(model, open_source(source), tokens, tp, parts)
    if source is None and not any(parts.values()):
        raise ReportError("nothing to report: give a model, --map, --plan or another file")
    subject = source.environment.name if source else "a checkpoint"
    name = f"{Path(model).name} on {subject}" if model is not None and source else subject
    contents = Contents(
        title=title or f"gacprof report: {name}",
        cliff_map=source if isinstance(source, CliffMap) else None,
        rules=source if isinstance(source, RuleTable) else None,
        notes=[*notes, *parts.pop("notes", ())],
        **parts,
    )
    try:
        return write_page(contents, out)
    except (
        LookupError, TypeError, ValueError, AttributeError, ArithmeticError, UndefinedError,
    ) as error:  # fmt: skip
        raise ReportError(
            f"a field of what is to be reported is missing or garbled ({first_line(error)}): give "
            "the files as the verbs wrote them"
        ) from None


def _steps(
    model: str | Path,
    source: SizeSource,
    tokens: Tokens | None,
    tp: int,
    known: Mapping[str, Any],
) -> dict[str, Any]:
    """Diagnosis and plan of a model, but for those that are known. Where no dim can change there
    is no plan, and the notes say why."""
    from gacprof.diagnosing import diagnose
    from gacprof.planning import Constraints, plan

    made: dict[str, Any] = {}
    if known["diagnosis"] is None:
        made["diagnosis"] = diagnose(model, source, tokens=tokens, tp=tp).as_dict()
    if known["plan"] is None:
        try:
            constraints = Constraints(preset=f"vllm,tp={tp}") if tp > 1 else Constraints()
            made["plan"] = plan(model, source, tokens=tokens, constraints=constraints).as_dict()
        except PlanError as error:
            made["notes"] = [f"no plan: {error}"]
    return made


def _in_folder(folder: Path) -> dict[str, Any]:
    """The artefacts in a folder without a model, by kind; empty for a model. Raises
    :class:`ReportError` where two are of a kind."""
    if not folder.is_dir() or (folder / "config.json").exists():
        return {}
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            data = read_json(path)
        except (OSError, ValueError):
            continue
        kind = next((k for k, key in ARTEFACTS.items() if _has(data, key)), None)
        if kind in found:
            raise ReportError(f"{folder} holds two files of a {kind}: name the one that is meant")
        if kind is not None:
            found[kind] = path
    return found


def _has(data: object, key: str) -> bool:
    return isinstance(data, Mapping) and key in data


def _read(found: str | Path | Mapping[str, Any] | None, key: str) -> dict[str, Any] | None:
    """A verb's JSON from a file, or as it is; another verb's has no ``key``."""
    if found is None:
        return None
    name = "what was given" if isinstance(found, Mapping) else str(found)
    try:
        data = found if isinstance(found, Mapping) else read_json(Path(found))
    except (OSError, ValueError, TypeError) as error:
        raise ReportError(f"cannot read {name}: {why_unreadable(error)}") from None
    if not isinstance(data, Mapping) or key not in data:
        raise ReportError(f"{name} has no '{key}': it is not what this takes")
    return dict(data)

"""``gacprof report``: a page of a model, of a folder that the verbs wrote, or of single files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import CheckpointError, PlanError, ReportError, first_line, why_unreadable
from gacprof.core.files import read_json
from gacprof.core.formatting import slug
from gacprof.core.request import Request, argument, option, verb
from gacprof.diagnosing.request import DiagnoseRequest, OnSource

if TYPE_CHECKING:
    from gacprof.cliffmap.source import SizeSource

    Part = str | Path | Mapping[str, Any] | None
    from gacprof.diagnosing.predict import Tokens

FILES = "What the other verbs left"
ARTEFACTS = {
    "diagnosis": "totals",
    "plan": "choices",
    "realigned": "resized",
    "verification": "argmax_agreement",
    "bench": "timings",
    "source": "curves",
}
"""What a page is made of → a key that only its JSON has."""


class OfModel(Request):
    """A request on a model, or on what the verbs left of one."""

    model: str | Path | None = argument(
        default=None, kw_only=False, help="A checkpoint, or a folder of the verbs' files."
    )


class ReportRequest(OnSource, OfModel):
    """What :func:`gacprof.report` is asked. A ``model`` is diagnosed and planned by a map or
    by the rules of a ``gpu``, at these ``tokens``, with sizes as one of ``tp`` ranks holds them
    (planned as vLLM shares them out); a folder without a model gives the files that are in it.
    Else, or beside it, what the other verbs left: a map, a plan, and the JSON that they printed,
    as a file or as ``as_dict()`` gives it. ``notes`` are lines of your own."""

    error = ReportError

    out: str | Path | None = option(
        default=None, read=Path, help="The page's folder. Default: report-NAME, here."
    )
    tp: int = option(default=1, like=DiagnoseRequest)
    diagnosis: Part = option(
        default=None, read=Path, group=FILES, help="What diagnose --json printed."
    )
    plan: Part = option(default=None, read=Path, group=FILES, help="A plan's file.")
    realigned: Part = option(
        default=None, read=Path, group=FILES, help="What realign --json printed."
    )
    verification: Part = option(
        default=None, name="--verified", read=Path, group=FILES,
        help="What verify --json printed.",
    )  # fmt: skip
    bench: Part = option(
        default=None, name="--benched", read=Path, group=FILES, help="What bench --json printed."
    )
    title: str | None = option(default=None, help="The page's heading.")
    notes: Sequence[str] = field(default=())


def _report(request: ReportRequest) -> Path:
    """One HTML page, with its figures, in the folder ``out``; its path.

    Raises :class:`ReportError`, and what the steps raise."""
    from jinja2 import UndefinedError

    from gacprof.reporting.page import write_page
    from gacprof.reporting.verdict import Contents

    if request.out is not None and (Path(request.out) / "config.json").exists():
        raise ReportError(f"{request.out} is a model's folder: name another for the page (out)")
    model = request.model
    source, parts = _gathered(request)
    subject = source.environment.name if source else "a checkpoint"
    name = f"{Path(model).name} on {subject}" if model is not None and source else subject
    tiers = bool(source and source.tiers)
    contents = Contents(
        title=request.title or f"gacprof report: {name}",
        cliff_map=None if tiers else source,
        rules=source if tiers else None,
        notes=[*request.notes, *parts.pop("notes", ())],
        **parts,
    )
    try:
        return write_page(contents, request.out or _default(request))
    except (
        LookupError, TypeError, ValueError, AttributeError, ArithmeticError, UndefinedError,
    ) as error:  # fmt: skip
        raise ReportError(
            f"a field of what is to be reported is missing or garbled ({first_line(error)}): give "
            "the files as the verbs wrote them"
        ) from None


def _gathered(request: ReportRequest) -> tuple[Any, dict[str, Any]]:
    """The source of sizes, and the artefacts: given, found in the model's folder, or made of it."""
    from gacprof.diagnosing.sources import open_source

    given: dict[str, Any] = {name: getattr(request, name) for name in ARTEFACTS if name != "source"}
    model = request.model
    found = _in_folder(Path(model)) if model is not None else {}
    own = None if request.has_source else found.pop("source", None)
    source = request.open_source() if request.has_source else own and open_source(own)
    parts: dict[str, Any] = {
        name: _read(found.get(name) if part is None else part, name) for name, part in given.items()
    }
    if model is not None and not found:
        if source is None:
            raise ReportError(
                f"say what judges {model}: --map, a map's name or file, or --gpu, for its rules"
            )
        parts |= _steps(model, source, request.tokens, request.tp, parts)
    if source is None and not any(parts.values()):
        raise ReportError("nothing to report: give a model, --map, --plan or another file")
    return source, parts


def _default(request: ReportRequest) -> Path:
    return Path(f"report-{slug(Path(str(request.model or request.cliff_map or 'page')).stem)}")


report = verb("report", ReportRequest, _report)


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
        except (CheckpointError, PlanError) as error:  # a config alone is diagnosed, not planned
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


def _read(found: str | Path | Mapping[str, Any] | None, kind: str) -> dict[str, Any] | None:
    """A verb's JSON from a file, or as it is; another verb's has not the ``kind``'s key."""
    if found is None:
        return None
    name = "what was given" if isinstance(found, Mapping) else str(found)
    try:
        data = found if isinstance(found, Mapping) else read_json(Path(found))
    except (OSError, ValueError, TypeError) as error:
        raise ReportError(f"cannot read {name}: {why_unreadable(error)}") from None
    if not isinstance(data, Mapping) or ARTEFACTS[kind] not in data:
        schema = data.get("schema") if isinstance(data, Mapping) else None
        what = f"is {str(schema)[:40]}" if schema else f"has no '{ARTEFACTS[kind]}'"
        taken = {"realigned": "realign-result", "bench": "bench-result"}.get(kind, kind)
        raise ReportError(f"{name} {what}: here gacprof.{taken}/1 is taken")
    return dict(data)

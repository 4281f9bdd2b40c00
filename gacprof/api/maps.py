"""What is asked of maps, of rules, and of GPUs that are not at hand."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.cliffmap.request import (
    BuildRequest,
    CandidatesRequest,
    CheckRequest,
    DiffRequest,
    FigureRequest,
    IntersectRequest,
    ListRequest,
    MapExportRequest,
    TableRequest,
    map_names,
)
from gacprof.core.errors import MapError
from gacprof.core.files import Record, path_of, refuse_to_replace
from gacprof.core.formatting import Listed
from gacprof.core.request import verb

if TYPE_CHECKING:
    from gacprof.cliffmap import Candidate, CliffMap
    from gacprof.cliffmap.compare import Compatibility, MapDiff
    from gacprof.cliffmap.intersect import Intersection, SharedDim
    from gacprof.cliffmap.source import SizeSource
    from gacprof.cliffmap.storage import MapFacts
    from gacprof.reporting.tables import Table


def _build_map(request: BuildRequest) -> CliffMap:
    """The cliff map of a sweep's folder, its cliffs' causes named where evidence tells them; also
    written to ``out``, by default ``cliffmap.json`` in that folder.

    Evidence is the kernels recorded with the samples, and what ``gacprof evidence`` left
    beside them. Raises :class:`MeasurementError` or :class:`MapError`.
    """
    from gacprof.cliffmap.storage import is_map
    from gacprof.explaining.annotate import build_explained

    samples, target = path_of(request.samples, MapError, "a sweep's folder"), map_target(request)
    refuse_to_replace(target, "cliff map", is_map)
    built = build_explained(samples, request.name)
    built.save(target)
    return built


build_map = verb("build_map", BuildRequest, _build_map)


def map_target(request: BuildRequest) -> Path:
    """Where :func:`build_map` writes."""
    samples = path_of(request.samples, MapError, "a sweep's folder")
    folder = samples if samples.is_dir() else samples.parent
    return Path(request.out) if request.out else folder / "cliffmap.json"


def _list_maps(request: ListRequest) -> Listed[MapFacts]:
    """The maps that ship with gacprof, and those in ``files``: where each is from, what it holds.

    Raises :class:`MapError` for a file that is no map.
    """
    from gacprof.cliffmap import CliffMap
    from gacprof.cliffmap.storage import map_facts

    maps = [CliffMap.load(one) for one in dict.fromkeys([*map_names(), *request.files])]
    return Listed([map_facts(one.file) for one in maps], "cliff maps")


list_maps = verb("list_maps", ListRequest, _list_maps)


def _diff_maps(request: DiffRequest) -> MapDiff:
    """Which cliffs are gone, new, moved or of another size from map ``a`` to ``b``.

    Raises :class:`MapError` where the maps have no curve in common.
    """
    from gacprof.cliffmap import CliffMap
    from gacprof.cliffmap.compare import diff

    found = diff(CliffMap.load(request.a), CliffMap.load(request.b))
    if not found.curves:
        raise MapError(
            f"{found.a} and {found.b} have no curve in common (operator, axis, dtype, flags and "
            "the other dims must agree): nothing can be compared; gacprof map show lists theirs"
        )
    return found


diff_maps = verb("diff_maps", DiffRequest, _diff_maps)


def _check_map(request: CheckRequest) -> Compatibility:
    """Whether a map holds for a device of this machine and its libraries."""
    from gacprof.cliffmap import CliffMap
    from gacprof.cliffmap.compare import check
    from gacprof.devices.opening import open_device

    loaded = CliffMap.load(request.cliff_map)
    own = "cpu" if loaded.environment.kind == "cpu" else None
    return check(loaded, open_device(request.device or own).environment)


check_map = verb("check_map", CheckRequest, _check_map)


class Offers(Listed[Any]):
    """Sizes near one, ascending: a :class:`Candidate` each of one source, a :class:`SharedDim` of
    several. ``of`` says of what (``K of linear near 107``), ``sources`` names the maps and rule
    tables, ``notes`` the curves that answered. ``undecided``
    says why rules leave all of them open, where they do."""

    def __init__(
        self, found: Sequence[Candidate | SharedDim], of: str, sources: Sequence[str],
        notes: Sequence[str] = (), undecided: str = "",
    ) -> None:  # fmt: skip
        super().__init__(found, f"{of} on {', '.join(sources)}")
        self.of, self.sources, self.notes = of, list(sources), list(notes)
        self.undecided = undecided


def _candidates(request: CandidatesRequest) -> Offers:
    """The safe sizes near the one that a compressor chose, below and above, with their latency.

    Of several maps: sizes that are safe on all; where a side has none, its least worst one. Raises
    :class:`MapError` for no map, an axis that a map does not hold, and a size outside of it.
    """
    loaded = _opened((*_several(request.maps), *request.more), least=1)
    names = [source.name for source in loaded]
    if request.uses:
        found = _of_uses(request, loaded)
        return Offers(found, f"{' and '.join(request.uses)} near {request.near}", names)
    of = f"{request.axis} of {request.operator} near {request.near}"
    found, notes, undecided = _of_axis(request, loaded)
    return Offers(found, of, names, notes, undecided)


candidates = verb("candidates", CandidatesRequest, _candidates)


def _of_uses(request: CandidatesRequest, loaded: Sequence[Any]) -> Sequence[Any]:
    from gacprof.cliffmap.intersect import intersect_uses

    uses, near = request.uses_on(loaded), request.near
    if len(loaded) > 1:
        return intersect_uses(loaded, uses).choose(near, **request.limits)
    return list(loaded[0].joint_candidates(uses, near, **request.limits))


def _of_axis(
    request: CandidatesRequest, loaded: Sequence[Any]
) -> tuple[Sequence[Any], list[str], str]:
    """Sizes of one operator's axis, notes, and why rules leave all sizes open."""
    from gacprof.cliffmap.intersect import intersect as common

    operator, axis, about = request.of(loaded)
    near, tp, limits = request.near, request.tp, request.limits
    notes: list[str] = []
    for source in (one for one in loaded if not one.any_size):
        curve = source.curve(operator, axis, near=max(1, near // tp), **about)
        ranks = f", on one of {tp} ranks" if tp > 1 else ""
        notes.append(f"{source.name}: {curve.identity}{ranks}")
        first, last = curve.points.d[0] * tp, curve.coverage.last_comparable * tp
        if not first <= near <= last:
            notes.append(f"  {near} is outside of what it can judge: {first} to {last}")
    if len(loaded) > 1:
        both = common(loaded, operator, axis, near=near, shards=tp, **about)
        return both.choose(near, **limits), notes, ""
    (one,) = loaded
    offered = partial(one.candidates, operator, axis=axis, near=near, shards=tp, **about)
    found = offered(**limits)
    if not found and one.any_size:
        known = offered(**limits | {"safe_only": False})
        if known and all(c.verdict == "undecided" for c in known):
            why = (
                f"no {axis} of {operator} is safe {one.basis}: rules know no steps along it, all "
                "are undecided"
            )
            return found, notes, why
    return found, notes, ""


def _intersect(request: IntersectRequest) -> Intersection:
    """The sizes of one axis as all the maps and rule tables judge them together.

    Raises :class:`MapError` for fewer than two sources and for no dim in common.
    """
    from gacprof.cliffmap.intersect import intersect as common

    loaded = _opened(_several(request.maps), least=2)
    operator, axis, about = request.of(loaded)
    return common(loaded, operator, axis, near=request.near, **about)


intersect = verb("intersect", IntersectRequest, _intersect)


def _several(maps: Any) -> Sequence[SizeSource | str | Path]:
    """One map stands for a list of one."""
    return maps if isinstance(maps, list | tuple) else (maps,)


def _opened(maps: Sequence[SizeSource | str | Path], least: int) -> list[Any]:
    from gacprof.diagnosing.sources import open_source

    different = list(dict.fromkeys(maps))
    if len(different) < least:
        raise MapError(
            "name a map: gacprof map list tells those that ship"
            if least == 1
            else "an intersection needs two different maps, not "
            f"{', '.join(map(str, different)) or 'none'}"
        )
    return [open_source(one) for one in different]


@dataclass(frozen=True)
class Figures(Record):
    """The files of a drawing."""

    files: list[Path]


def _draw_map(request: FigureRequest) -> Figures:
    """Draw the staircase of one axis, or several maps side by side, as SVG and PNG.

    Raises :class:`MapError` for what the map does not hold, :class:`ReportError` for what cannot
    be drawn or written.
    """
    from gacprof.cliffmap import CliffMap
    from gacprof.reporting.figures import side_by_side, staircase
    from gacprof.reporting.figures_style import save

    maps = [CliffMap.load(one) for one in (request.cliff_map, *request.others)]
    operator, axis, about = request.of(maps)
    if len(maps) > 1:
        drawn = side_by_side(maps, operator, axis, **about)
    else:
        drawn = staircase(maps[0], maps[0].curve(operator, axis, **about))
    out = Path(request.out)
    return Figures(save(drawn, out.with_suffix("") if out.suffix in (".svg", ".png") else out))


draw_map = verb("draw_map", FigureRequest, _draw_map)


def _map_table(request: TableRequest) -> Table:
    """What a map's curves ask of their dims and what it costs not to comply, or a rule table's
    tiers. Raises :class:`MapError` where no curve fits, :class:`ReportError` for another table."""
    from gacprof.diagnosing.sources import open_source
    from gacprof.reporting.tables import map_table, rule_table

    loaded: Any = open_source(request.cliff_map)
    if loaded.tiers:
        return rule_table(loaded)
    return map_table(loaded, request.name, request.chosen(loaded))


map_table = verb("map_table", TableRequest, _map_table)


def _export_map(request: MapExportRequest) -> str:
    """What a compressor can be fed, as text: safe dims by axis as JSON or CSV, or values for the
    options of compressors."""
    from gacprof.cliffmap.export import export, rows, settings_rows
    from gacprof.core.files import json_text
    from gacprof.diagnosing.sources import open_source

    loaded: Any = open_source(request.cliff_map)
    tiers = bool(loaded.tiers)
    if request.form == "csv":
        return _csv([dict(row) for row in (loaded.frame_rows() if tiers else rows(loaded))])
    if request.form == "json":
        return json_text(loaded.as_dict() if tiers else export(loaded)) + "\n"
    if tiers:
        raise MapError(f"'{loaded.name}' is {loaded.basis}: a compressor's value needs latency")
    return _csv(settings_rows(loaded))


export_map = verb("export_map", MapExportRequest, _export_map)


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()

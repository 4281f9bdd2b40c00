"""The cliff map as others use it: load, look up, ask for candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

from gacprof.cliffmap import detect
from gacprof.cliffmap.candidates import Limits, OnCurve, choose, judge_sums, of_curve
from gacprof.cliffmap.estimate import NOTHING, Estimate
from gacprof.cliffmap.lookup import Index, Lookup
from gacprof.cliffmap.schema import Curve, MapFile
from gacprof.cliffmap.selection import (
    MapLookupError,
    best,
    check_names,
    check_sizes,
    complete_dims,
    dims_distance,
    matching,
    plain_dtype,
    refuse_ambiguity,
    whole,
    why_none,
)
from gacprof.cliffmap.source import Asked, Candidate, Side, Use
from gacprof.cliffmap.storage import read_map, write_map
from gacprof.cliffmap.view import MeasuredView
from gacprof.core.errors import MapError
from gacprof.core.formatting import Framed
from gacprof.core.points import MAX_DIM, Environment, Flag
from gacprof.devices.datasheet import sheets


class CliffMap(Framed):
    """Which dims one device serves well, as measured or published.

    >>> m = CliffMap.load("a100-published")
    >>> [c.d for c in m.candidates("attention", axis="head_dim", near=107, below=1, above=1)]
    [96, 128]
    """

    basis = ""
    timed, estimated, any_size = True, False, False
    gpu, times, tiers = "", None, ()

    def __init__(self, file: MapFile) -> None:
        self.file = file

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.frame_title()}>"

    @classmethod
    def load(cls, name_or_path: CliffMap | str | Path) -> CliffMap:
        """A shipped map by name (``gacprof map list``) or a file by path; a map as it is.

        Raises :class:`MapError` with the place and the reason for anything malformed.
        """
        if isinstance(name_or_path, CliffMap):
            return name_or_path
        return cls(read_map(name_or_path))

    def save(self, path: str | Path) -> None:
        """Write the map, atomically. Raises :class:`MapError` where that cannot be done."""
        try:
            write_map(self.file, Path(path))
        except OSError as error:
            raise MapError(f"cannot write the map {path}: {error.strerror}") from None

    def as_dict(self) -> dict[str, Any]:
        return self.file.model_dump(mode="json", by_alias=True)

    def frame_rows(self) -> Iterator[dict[str, Any]]:
        """Every dim of every curve, the axis as ``axis`` and ``d``."""
        for curve in self.curves:
            for row in curve.frame_rows():
                yield {"curve": curve.identity, "axis": curve.axis, "d": row.pop(curve.axis), **row}

    def frame_title(self) -> str:
        floor = "unknown" if self.floor is None else f"{self.floor:.1%}"
        return f"{self.name}: {self.environment.name}, {len(self.curves)} curves, floor {floor}"

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def environment(self) -> Environment:
        """The device and stack that the map holds for."""
        d = self.file.device
        return Environment(d.kind, d.name, d.arch, d.facts, self.file.provenance.stack)

    @property
    def floor(self) -> float | None:
        """The measured A/A floor over all points; None where the map has none."""
        return self.file.noise.floor

    @cached_property
    def too_noisy(self) -> str:
        """Why the map is too noisy to judge by; empty where it is not."""
        return self.file.too_noisy

    @property
    def busy(self) -> str:
        """What the sweep's own check says of other programs."""
        failed = (check for check in self.file.checks if not check.passed)
        return next((check.message for check in failed if check.name == "contention"), "")

    @property
    def instead(self) -> str:
        """The rules, where the map is of a known kind of GPU."""
        here = self.environment
        known = [sheet for sheet in sheets().values() if sheet.arch == here.arch]
        named = [sheet for sheet in known if here.name in (sheet.name, *sheet.drivers)]
        if here.kind != "cuda" or not known:
            return ""
        return f"the rules of this GPU answer any size, in tiers: --gpu {(named or known)[0].key}"

    def view(self, asked: Asked) -> MeasuredView:
        """What the map says of one model's products."""
        return MeasuredView(self.file, self._index, asked, self.too_noisy, self.instead)

    @property
    def dtypes(self) -> list[str]:
        """Of the products that it holds."""
        return sorted({curve.dtype for curve in self.select("linear")})

    @property
    def usual_dtype(self) -> str:
        return self.dtypes[0] if len(self.dtypes) == 1 else ""

    @property
    def curves(self) -> list[Curve]:
        return self.file.curves

    def select(
        self,
        operator: str,
        axis: str | None = None,
        dtype: str | None = None,
        flags: Mapping[str, Flag] | None = None,
        **fixed: int,
    ) -> list[Curve]:
        """All curves that agree with what is given, those of the default flags first."""
        return matching(self.curves, operator, axis, dtype, flags, fixed)

    def curve(
        self,
        operator: str,
        axis: str,
        dtype: str | None = None,
        flags: Mapping[str, Flag] | None = None,
        *,
        near: int | None = None,
        **fixed: int,
    ) -> Curve:
        """The one curve that answers best among those that agree with what is given.

        It covers ``near`` if any does, and has the default flags where flags are left out.
        Raises :class:`MapLookupError` where the map has none over that axis, :class:`MapError` for
        an operator or a dim that there is not, or a size that is none.
        """
        check_sizes(fixed if near is None else {**fixed, axis: near})
        found = best(matching(self.curves, operator, axis, dtype, flags, fixed), near)
        if found is None:
            raise self._no_curve(operator, axis, dtype, flags, fixed)
        return found

    def latency(
        self,
        operator: str,
        dims: Mapping[str, int],
        dtype: str,
        flags: Mapping[str, Flag] | None = None,
    ) -> Lookup:
        """The latency at these dims, exact or within its tier (:mod:`gacprof.cliffmap.lookup`).

        Raises :class:`MapLookupError`, naming the sweep that would fill it, and :class:`MapError`
        for an unknown operator or a size that is none.
        """
        check_sizes(dims)
        dtype = dtype if isinstance(dtype, str) else plain_dtype(dtype)
        try:
            return self._index.find(operator, dims, dtype, flags)
        except MapLookupError:
            check_names(self.curves, operator, None)
            raise

    def penalty(
        self,
        operator: str,
        axis: str,
        d: int,
        dtype: str | None = None,
        flags: Mapping[str, Flag] | None = None,
        **fixed: int,
    ) -> float:
        """latency / envelope − 1 of a measured dim; :class:`MapLookupError` for any other."""
        curve = self.curve(operator, axis, dtype, flags, near=d, **fixed)
        place = curve.points.place(d)
        if place is None:
            why = f"{axis}={d} was not measured on {curve.identity}"
            dims = {**curve.fixed, axis: d}
            raise MapLookupError(why, operator, dims, curve.dtype, curve.flags)
        return detect.penalty(curve.points.latency_us)[place]

    def candidates(
        self,
        operator: str,
        *,
        axis: str,
        near: int,
        dtype: str | None = None,
        flags: Mapping[str, Flag] | None = None,
        below: int | None = None,
        above: int | None = None,
        window: int | tuple[int, int] | None = None,
        count: int | None = None,
        safe_only: bool = True,
        shards: int = 1,
        **fixed: int,
    ) -> list[Candidate]:
        """Safe dims near one, on both sides, with latency and penalty; ascending.

        ``below``/``above`` cap each side, ``window`` is a half-width or (first, last),
        ``count`` keeps the nearest. ``shards`` ranks share the dim: what one of them holds is
        judged. ``fixed`` are the operator's other dims, where they matter.
        Raises :class:`MapLookupError` where the map has no such axis, :class:`MapError` where
        curves of several dtypes or other dims answer.
        """
        check_sizes({"shards": shards})
        near = whole("near", near, 1)
        length = max(1, near // shards)
        refuse_ambiguity(matching(self.curves, operator, axis, dtype, flags, fixed), length)
        curve = self.curve(operator, axis, dtype, flags, near=length, **fixed)
        first, last = curve.points.d[0] * shards, curve.points.d[-1] * shards
        if not first <= near <= last:
            ranks = f", on one of {shards} ranks" if shards > 1 else ""
            raise MapLookupError(
                f"the map '{self.name}' holds {axis} from {first} to {last} on "
                f"{curve.identity}{ranks}, not near {near}",
                operator, {**curve.fixed, axis: length}, curve.dtype, curve.flags,
            )  # fmt: skip
        return choose(
            of_curve(curve, shards), near,
            below=below, above=above, window=window, count=count, safe_only=safe_only,
        )  # fmt: skip

    def joint_candidates(
        self, uses: Sequence[Use], near: int, **limits: Unpack[Limits]
    ) -> list[Candidate]:
        """Safe sizes of one dim that several operators share, as a rank is N of one GEMM and K
        of the next: judged on their summed latency at the layer's real shapes. ``limits`` are those
        of :meth:`candidates`.

        Only sizes at which every use's latency can be looked up are judged. Raises
        :class:`MapLookupError` where there is none, naming the sweep of the first use.
        """
        near, judged = whole("near", near, 1), self.judge_jointly(uses)
        first, last, use = judged[0].d, judged[-1].d, uses[0]
        if not first <= near <= last:
            raise MapLookupError(
                f"the map '{self.name}' knows all {len(uses)} uses from {first} to {last} only, "
                f"not near {near}",
                use.operator, {**use.fixed, use.axis: near}, use.dtype, use.flags,
            )  # fmt: skip
        return choose(judged, near, **limits)

    def judge_jointly(
        self, uses: Sequence[Use], first: int = 1, last: int = MAX_DIM
    ) -> list[Candidate]:
        """Every size from ``first`` to ``last`` that all uses can be looked up at, judged on the
        weighted sum beside all others."""
        if not uses:
            raise MapError("joint candidates of no uses: name at least one operator and axis")
        places = [OnCurve(self._nearest(use), Side(times=1, shards=use.shards)) for use in uses]
        held = [place.measured for place in places]
        lowest, highest = max(map(min, held)), min(map(max, held))
        sizes = sorted(d for d in set[int]().union(*held) if lowest <= d <= highest)
        tolerance = min(place.curve.tolerance for place in places)
        found = judge_sums({d: self._total(uses, d) for d in sizes}, places, tolerance)
        if not found.sizes:
            use = uses[0]
            raise MapLookupError(
                f"the map '{self.name}' holds no size at which all {len(uses)} uses are known",
                use.operator, use.fixed, use.dtype, use.flags, use.axis,
            )  # fmt: skip
        names = " + ".join(dict.fromkeys(place.curve.identity for place in places))
        frontier = set(found.frontier)
        judged = (Candidate(*row, row[0] in frontier, tolerance, names) for row in found.rows)
        return [one for one in judged if first <= one.d <= last]

    def _nearest(self, use: Use) -> Curve:
        fixed = complete_dims(use.operator, use.fixed)
        curves = matching(self.curves, use.operator, use.axis, use.dtype, use.flags)
        if not curves:
            raise self._no_curve(use.operator, use.axis, use.dtype, use.flags, fixed)
        return min(curves, key=lambda curve: dims_distance(curve.fixed, fixed))

    def _total(self, uses: Sequence[Use], d: int) -> Estimate:
        total = NOTHING
        for use in uses:
            if d % use.shards:
                return Estimate(None)
            dims = {**use.dims, use.axis: d // use.shards}
            check_sizes(dims)
            dtype = plain_dtype(use.dtype)
            found = self._index.estimate(use.operator, dims, dtype, use.flags, use.axis)
            total += found.times(use.weight)
        return total

    def _no_curve(
        self,
        operator: str,
        axis: str,
        dtype: str | None,
        flags: Mapping[str, Flag] | None,
        fixed: Mapping[str, int],
    ) -> MapLookupError:
        check_names(self.curves, operator, axis)
        why = why_none(self.curves, operator, axis, dtype, flags, fixed)
        held = any((c.operator, c.axis) == (operator, axis) for c in self.curves)
        there = f" with these settings: {why}" if why and held else ""
        missing = f"the map '{self.name}' has no curve of {operator} over {axis}{there}"
        return MapLookupError(missing, operator, fixed, dtype, flags, axis)

    @cached_property
    def _index(self) -> Index:
        return Index(self.file)

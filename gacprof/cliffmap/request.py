"""What the verbs that read a map are asked: which curve, and what about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.cliffmap.source import SizeSource, Use
from gacprof.core import texts
from gacprof.core.dtypes import full_name
from gacprof.core.errors import MapError
from gacprof.core.request import Request, argument, option

if TYPE_CHECKING:
    from gacprof.cliffmap.map import CliffMap
    from gacprof.cliffmap.schema import Curve
    from gacprof.core.points import Flag

EACH_SIDE = 3
"""Candidates on either side where nothing is asked for."""


def map_names() -> list[str]:
    """The shipped maps, for completion."""
    from gacprof.cliffmap.storage import shipped_maps

    return shipped_maps()


class OnMap(Request):
    """A request on one measured map."""

    error = MapError

    cliff_map: CliffMap | str | Path = argument(
        kw_only=False, metavar="MAP", suggested=map_names, help="A shipped map's name, or a file."
    )


class OnSizes(Request):
    """A request on one map or rule table."""

    error = MapError

    cliff_map: SizeSource | str | Path = argument(
        kw_only=False, metavar="MAP", suggested=map_names,
        help="A shipped map's name, or the file of a map or rule table.",
    )  # fmt: skip


class OnMaps(Request):
    """A request on several maps."""

    error = MapError

    maps: Sequence[SizeSource | str | Path] = argument(
        kw_only=False, many=True, metavar="MAP MAP…", suggested=map_names,
        help="Two maps or more.",
    )  # fmt: skip


class OnSamples(Request):
    """A request on a sweep that was made."""

    samples: str | Path = argument(kw_only=False, read=Path, help="A sweep's folder.")


class CurveRequest(Request):
    """Which curve of a map. ``fixed`` are sizes of the operator's other dims."""

    error = MapError

    operator: str | None = option(default=None, name="--op", help="linear, attention …")
    axis: str | None = option(
        default=None, help="The operator's axis, such as K, N, M or head_dim."
    )
    dtype: str | None = option(default=None, read=full_name, help="Default: what the map holds.")
    fixed: Mapping[str, int] | None = option(
        default=None, read=texts.sizes, many=True, metavar="DIM=SIZE",
        help="Another dim of the operator, as M=1024; repeatable.",
    )  # fmt: skip
    flags: Mapping[str, Flag] | None = option(
        default=None, name="--flag", read=texts.flags, many=True, metavar="NAME=VALUE",
        help="A flag, as bias=true or backend=flash; repeatable.",
    )  # fmt: skip

    @property
    def narrowed(self) -> bool:
        return any((self.operator, self.axis, self.dtype, self.fixed, self.flags))

    def chosen(self, loaded: CliffMap) -> list[Curve]:
        """The map's curves that fit all that was said. Raises :class:`MapError` for none."""
        fixed, flags = (self.fixed or {}).items(), (self.flags or {}).items()
        curves = [
            curve for curve in loaded.curves
            if self.operator in (None, curve.operator) and self.axis in (None, curve.axis)
            and self.dtype in (None, curve.dtype)
            and fixed <= curve.fixed.items() and flags <= curve.flags.items()
        ]  # fmt: skip
        if not curves and self.narrowed:
            held = sorted({f"{c.operator} over {c.axis}" for c in loaded.curves})
            raise MapError(f"the map '{loaded.name}' has no such curve; it has {', '.join(held)}")
        return curves

    def of(self, maps: Sequence[Any]) -> tuple[str, str, dict[str, Any]]:
        """Operator, axis, and the other keywords of :meth:`CliffMap.curve`. Raises
        :class:`MapError` where operator or axis is missing, and for a dim that the operator has in
        none of the maps."""
        if self.operator is None or self.axis is None:
            raise MapError("say which curve: --op linear --axis K, for example")
        operator, axis = self.operator, self.axis
        held = [curve for m in maps if not m.any_size for curve in m.curves]
        curves = [curve for curve in held if curve.operator == operator]
        dims = {name for curve in curves for name in (*curve.fixed, curve.axis)}
        for name in self.fixed or ():
            if name == axis:
                raise MapError(f"--fixed {name} is the axis itself; give the other dims")
            if dims and name not in dims:
                raise MapError(f"{operator} has no dim '{name}' (it has {', '.join(sorted(dims))})")
        about = {"dtype": self.dtype, "flags": self.flags, **(self.fixed or {})}
        return operator, axis, about


class CandidatesRequest(CurveRequest):
    """Sizes near the one that a compressor chose, of one map or safe on several."""

    near: int = option(read=int, least=1, help="The dim that a compressor chose.")
    maps: Sequence[SizeSource | str | Path] = argument(
        default=(),
        many=True,
        metavar="[MAP]…",
        suggested=map_names,
        help="Shipped maps' names, or files.",
    )
    more: Sequence[str] = option(default=(), name="--map", many=True, help="The same; repeatable.")
    uses: Sequence[str] = option(
        default=(), name="--use", many=True, metavar="OP:AXIS:DIM=SIZE,…",
        help="Instead of --op and --axis, once for each operator that the dim takes part in: "
        "a rank is linear:N:M=512,K=4096 and linear:K:M=512,N=4096.",
    )  # fmt: skip
    window: int | tuple[int, int] | None = option(
        default=None, read=texts.window, metavar="D|FIRST:LAST",
        help="Only within ±16, or from 96:160.",
    )  # fmt: skip
    below: int | None = option(default=None, read=int, least=0, help="At most so many below.")
    above: int | None = option(default=None, read=int, least=0, help="At most so many above.")
    count: int | None = option(default=None, read=int, least=1, help="The so many nearest.")
    tp: int = option(
        default=1, read=int, least=1, most=1024,
        help="Sizes as one of so many tensor-parallel ranks holds them.",
    )  # fmt: skip
    every: bool = option(default=False, name="--all", help="All safe dims.")
    unsafe: bool = option(default=False, help="Dims that are not safe too.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.uses and (self.operator or self.axis or self.fixed or self.flags):
            raise MapError("--use says operator, axis and dims itself: leave out --op and the like")

    @property
    def limits(self) -> dict[str, Any]:
        """The keywords of :meth:`CliffMap.candidates` that say how many."""
        limits: dict[str, Any] = {
            name: getattr(self, name) for name in ("window", "below", "above", "count")
        }
        if not self.every and all(limit is None for limit in limits.values()):
            limits |= {"below": EACH_SIDE, "above": EACH_SIDE}
        return limits | {"safe_only": not self.unsafe}

    def uses_on(self, maps: Sequence[Any]) -> list[Use]:
        """``linear:K:M=512,N=4096`` as a use; without a dtype the first map's own is taken."""
        dtype = self.dtype or next(iter(maps[0].dtypes), "float16")
        found = []
        for text in self.uses:
            operator, axis, dims = (*text.split(":", 2), "", "")[:3]
            if not operator or not axis or not dims:
                raise MapError(
                    f"--use takes OPERATOR:AXIS:DIM=SIZE,… as linear:K:M=512,N=4096, not '{text}'"
                )
            sizes = texts.sizes([dims], "--use")
            found.append(Use(operator, sizes, axis, dtype, shards=self.tp))
        return found


class IntersectRequest(CurveRequest, OnMaps):
    """Sizes that are safe on all of several maps and rule tables, ``fixed`` at these sizes of the
    operator's other dims; where they are left open, at sizes that every map has a curve of."""

    operator: str | None = option(default=None, kw_only=False, like=CurveRequest)
    axis: str | None = option(default=None, kw_only=False, like=CurveRequest)
    near: int | None = option(default=None, read=int, least=1, help="Only around this dim.")


class FigureRequest(CurveRequest, OnMap):
    """A drawing of one curve, or of the same on several maps."""

    out: str | Path = option(read=Path, help="Stem: OUT.svg and OUT.png are written.")
    others: Sequence[CliffMap | str | Path] = option(
        default=(), name="--with", many=True, metavar="MAP",
        help="Another map beside it; repeatable.",
    )  # fmt: skip


class ShowRequest(CurveRequest, OnSizes):
    """A map's curves, or a rule table's tiers."""


class TableRequest(CurveRequest, OnSizes):
    """A table of a map's curves, or of a rule table's tiers."""

    name: str = option(
        default="constraints", name="--table",
        help="constraints, or classes: residue classes and their kernels.",
    )  # fmt: skip
    form: str = option(
        default="markdown", name="--format", help="markdown, latex, csv or html.",
    )  # fmt: skip
    out: Path | None = option(default=None, read=Path, help="Write there instead of printing.")


class MapExportRequest(OnSizes):
    """What a compressor can be fed of a map."""

    form: str = option(
        default="json", name="--format", choices=("json", "csv", "settings"),
        help="json: everything; csv: one row a dim; settings: the compressors' options.",
    )  # fmt: skip
    out: Path | None = option(default=None, like=TableRequest)


class BuildRequest(OnSamples):
    """What :func:`gacprof.build_map` is asked."""

    error = MapError

    name: str | None = option(default=None, kw_only=False, help="Default: the device's name.")
    out: str | Path | None = option(
        default=None, kw_only=False, read=Path, help="Default: cliffmap.json in the folder."
    )


class ListRequest(Request):
    """The maps that ship, and these."""

    error = MapError

    files: Sequence[CliffMap | str | Path] = argument(
        default=(), kw_only=False, many=True, metavar="[FILE]…",
        help="Maps of your own, listed too.",
    )  # fmt: skip


class DiffRequest(Request):
    """Two maps: of one device at two times, or of two devices."""

    error = MapError

    a: CliffMap | str | Path = argument(
        kw_only=False, suggested=map_names, help="The older map, or one device's."
    )
    b: CliffMap | str | Path = argument(
        kw_only=False, suggested=map_names, help="The newer map, or another device's."
    )


class CheckRequest(OnMap):
    """Whether a map holds for a device of this machine."""

    device: str | None = option(
        default=None, help="cpu, cuda or cuda:N. Default: the map's kind, if it is here."
    )


class ExplainRequest(CurveRequest, OnMap):
    """Why the dim ``d`` is slow, by counters of the sweep's folder ``samples``."""

    operator: str = option(kw_only=False, like=CurveRequest)
    d: int = option(kw_only=False, read=int, least=1, help="The dim.")
    samples: str | Path | None = option(
        default=None, read=Path, help="A sweep's folder with counters. Default: the map's own."
    )

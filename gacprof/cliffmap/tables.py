"""Maps for compressors and papers: candidate sizes, and the table of constraints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import pandas as pd

from gacprof.cliffmap.cliffmap import CliffMap, Curve, load_map
from gacprof.core.errors import MapError
from gacprof.core.formatting import sizes_text
from gacprof.core.sizes import SizeVerdict, seems_safe


def candidates(
    size: int,
    maps: CliffMap | str | Path | Sequence[CliffMap | str | Path],
    *,
    operator: str = "linear",
    dim: str = "N",
    dtype: str | None = None,
    fixed: Mapping[str, int] | Sequence[str] = (),
    below: int = 2,
    above: int = 2,
) -> list[SizeVerdict]:
    """List the safe sizes nearest to one; with several maps those that are safe on all.

    Parameters
    ----------
    size
        The size that you would like.
    maps
        One map or several: a file, a run folder, or the name of a shipped map, such as cpu-example.
    operator
        The operator that the size is for.
    dim
        The operator's dimension that has this size, such as N or K.
    dtype
        The type to compute in; needed where a map has curves of several.
    fixed
        The operator's other dimensions, as far as the map has curves for several: M=1 K=1024.
    below
        How many sizes to list up to this one, itself included.
    above
        How many larger sizes to list.

    Returns
    -------
    list of SizeVerdict
        Ascending; latency and penalty are those of the map on which the penalty is largest.

    Raises
    ------
    MapError
        Where a map has no such curve around the size, or several; where none of it is safe.
    """
    if isinstance(maps, CliffMap | str | Path):
        maps = [maps]
    others = dict(fixed) if isinstance(fixed, Mapping) else dims_of_words(fixed)
    columns = []
    for source in maps:
        cliff_map = source if isinstance(source, CliffMap) else load_map(source)
        curve = only_curve(cliff_map, size, cliff_map.curves_of(operator, dim, dtype, others))
        columns.append({v.size: v for v in curve.sizes if seems_safe(v, cliff_map.tolerance)})
    common = sorted(set(columns[0]).intersection(*columns[1:]))
    if not common:
        names = " and ".join(str(getattr(source, "name", source)) for source in maps)
        raise MapError(f"no size of {operator} {dim} is safe by {names}: gacprof map show has why")
    smaller = [other for other in common if other <= size]
    larger = [other for other in common if other > size]
    chosen = smaller[max(0, len(smaller) - below) :] + larger[:above]
    return [max((column[s] for column in columns), key=penalty_of) for s in chosen]


def dims_of_words(words: Sequence[str]) -> dict[str, int]:
    """Return ``["M=1", "K=1024"]`` as dims. Raises :class:`MapError` for another form."""
    dims = {}
    for word in words:
        name, _, size = word.partition("=")
        if not size.isdecimal():
            raise MapError(f"'{word}' fixes no dim: write its name and size, such as M=1")
        dims[name] = int(size)
    return dims


def only_curve(cliff_map: CliffMap, size: int, curves: Sequence[Curve]) -> Curve:
    """The curve that covers the size. Raises :class:`MapError` where none does, or several."""
    covering = [c for c in curves if c.sizes[0].size <= size <= c.sizes[-1].size]
    shapes = {shape_of(curve) for curve in covering or curves or cliff_map.curves}
    listed = "; ".join(sorted(shapes))
    if not covering:
        raise MapError(f"'{cliff_map.name}' has no such curve around {size}: it has {listed}")
    if len({shape.rpartition(",")[0] for shape in shapes}) > 1:
        raise MapError(f"'{cliff_map.name}' has several, name dtype and other dims of {listed}")
    return covering[0]  # several differ in flags alone: the one that calls as a model does


def shape_of(curve: Curve) -> str:
    axis = curve.axis
    fixed = pairs_text(axis.fixed)
    return f"{axis.operator} {axis.dim} ({fixed}) {axis.dtype}, {axis.sizes[0]} … {axis.sizes[-1]}"


def pairs_text(values: Mapping[str, object]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(values.items()))


def penalty_of(verdict: SizeVerdict) -> float:
    return 0.0 if verdict.penalty is None else verdict.penalty.value


def map_table(cliff_map: CliffMap | str | Path) -> pd.DataFrame:
    """Show which multiples a map asks of sizes, as a table.

    Parameters
    ----------
    cliff_map
        A map's file, a run folder, or the name of a shipped map, such as cpu-example.

    Returns
    -------
    pandas.DataFrame
        A row a curve. ``penalty`` is the median of the misaligned sizes' (a fraction); ``multiple``
        is empty where too few sizes are decided.
    """
    if not isinstance(cliff_map, CliffMap):
        cliff_map = load_map(cliff_map)
    rows = []
    for curve in cliff_map.curves:
        axis = curve.axis
        penalties = [penalty_of(v) for v in curve.sizes if v.verdict == "misaligned"]
        rows.append(
            {
                "operator": axis.operator,
                "dim": axis.dim,
                "dtype": axis.dtype,
                "fixed": pairs_text(axis.fixed),
                "flags": pairs_text(axis.flags),
                "first": axis.sizes[0],
                "last": axis.sizes[-1],
                "multiple": curve.multiple,
                "penalty": round(median(penalties), 4) if penalties else None,
                "safe": len(curve.with_verdict("safe")),
                "misaligned": len(penalties),
                "undecided": len(curve.with_verdict("undecided")),
                "cliffs": len(curve.cliffs),
                "safe_sizes": sizes_text(curve.with_verdict("safe")),
            }
        )
    return pd.DataFrame(rows).astype({"multiple": "Int64"})

"""Sizes near one that are served well: a question for a compressor's loop."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gacprof.cliffmap.cliffmap import CliffMap, Curve, is_map, load_map
from gacprof.core.dtypes import compute_dtype, dtype_name
from gacprof.core.errors import MapError, require_within
from gacprof.core.points import MAX_DIM, Point
from gacprof.core.sizes import SizeSource, SizeVerdict
from gacprof.core.verdicts import Verdicts, as_verdicts
from gacprof.kernels.attention import MAX_SWEPT
from gacprof.kernels.rules import Rules
from gacprof.workload.products import side_uses

RULE_DIMS: Mapping[tuple[str, str], dict[str, int]] = {
    ("linear", "N"): {"M": 1024, "K": 4096},
    ("linear", "K"): {"M": 1024, "N": 4096},
    ("attention", "head_dim"): {"heads": 32, "kv_heads": 32},
}
"""The other dims of what rules judge, where a user names none."""
REACH = 1024  # how far above a size candidates by rules are looked for


def candidates(
    size: int,
    sources: SizeSource | str | Path | Sequence[SizeSource | str | Path],
    *,
    operator: str | None = None,
    dim: str = "N",
    dtype: str | None = None,
    fixed: Mapping[str, int] | Sequence[str] = (),
    count: int = 2,
) -> list[SizeVerdict]:
    """List the sizes nearest to one that are served well; of several maps or GPUs good on all.

    Parameters
    ----------
    size
        The size that you would like.
    sources
        A map (its file, run folder or shipped name) or a GPU's name; or several.
    operator
        The operator that the size is for. By default attention for a head_dim, else linear.
    dim
        The operator's dimension that has this size, such as N or K.
    dtype
        The type to compute in. By default float16, or what a map has.
    fixed
        The operator's other dimensions: M=1 K=1024. By default M=1024 K=4096 or 32 heads by rules,
        in a map those of the curve that is most like a model's prefill.
    count
        How many sizes to list on either side, the size itself counted with the smaller ones.

    Returns
    -------
    list of SizeVerdict
        Ascending; each is the verdict of the source by which the penalty is largest, and its reason
        names the call and that source.

    Raises
    ------
    MapError
        Where a map has no such curve around the size; where no size is good.
    ConfigError
        Where a name is neither a map's nor a GPU's.

    Examples
    --------
    >>> [verdict.size for verdict in gacprof.candidates(107, "h100", dim="K")]
    [80, 96, 112, 128]
    >>> [verdict.size for verdict in gacprof.candidates(107, "h200-measured", dim="head_dim")]
    [80, 96, 112, 128]
    """
    if isinstance(sources, str | Path) or not isinstance(sources, Sequence):
        sources = [sources]
    require_within("size", size, MAX_DIM)
    require_within("count", count, MAX_DIM)
    if dim == "rank":
        raise MapError(f"a rank is N and K of two products: gacprof explain {size} --dim rank")
    if operator is None:
        operator = "attention" if dim == "head_dim" else "linear"
    others = dict(fixed) if isinstance(fixed, Mapping) else dims_of_words(fixed)
    calls = []
    answers = []
    for source in sources:
        if isinstance(source, str | Path):
            source = load_map(source) if is_map(source) else Rules(str(source))
        if isinstance(source, CliffMap):
            curve = curve_around(source, size, source.curves_of(operator, dim, dtype, others))
            call, answer = curve.label, as_verdicts(curve.sizes, source.tolerance)
        else:
            point = rule_point(source, operator, dim, dtype or "float16", others)
            call, answer = point.key, judged_sizes(source, size, dim, point)
        calls.append(f"{call} by {source.name}")
        answers.append(answer)
    common = sorted(set.intersection(*(set(answer.offered.tolist()) for answer in answers)))
    if not common:
        names = " and ".join(str(getattr(source, "name", source)) for source in sources)
        raise MapError(
            f"no size of {operator} {dim} is safe enough by {names}: gacprof explain {size} has why"
        )
    place = bisect_right(common, size)
    verdicts = []
    for candidate in common[max(0, place - count) : place + count]:
        by_source = []
        for call, answer in zip(calls, answers, strict=True):
            verdict = answer.of(candidate)
            if verdict is not None:
                reasons = filter(None, (verdict.reason or verdict.kernel, call))
                by_source.append(replace(verdict, reason="; ".join(reasons)))
        verdicts.append(max(by_source, key=lambda v: v.penalty.value if v.penalty else -1.0))
    return verdicts


def rule_point(
    source: SizeSource, operator: str, dim: str, dtype: str, fixed: Mapping[str, int]
) -> Point:
    """The call that rules are asked about, but for its ``dim``. Raises :class:`MapError` for what
    they do not cover."""
    used_dtype = compute_dtype(dtype_name(dtype))
    dims = RULE_DIMS.get((operator, dim))
    if dims is None or not fixed.keys() <= dims.keys():
        raise MapError(
            f"'{source.name}' judges linear by N or K (fixed: M and the other), attention by "
            f"head_dim (fixed: heads, kv_heads), not {' '.join((operator, dim, *fixed))}: ask a map"
        )
    if "heads" in fixed:
        fixed = {"kv_heads": fixed["heads"], **fixed}
    dims = {**dims, **fixed}
    return Point(operator, dims, used_dtype)


def judged_sizes(source: SizeSource, size: int, dim: str, point: Point) -> Verdicts:
    """The verdicts on sizes up to some above one by rules."""
    if dim == "head_dim":
        heads = point.dims["heads"], point.dims["kv_heads"]
        verdicts = [source.head_dim(x, *heads, point.dtype) for x in range(1, MAX_SWEPT + 1)]
        return as_verdicts(verdicts, source.tolerance)
    other = point.dims["K" if dim == "N" else "N"]
    uses = side_uses("N" if dim == "N" else "K", other, {point.dims["M"]: 1.0}, point.dtype)
    sizes = sorted({size, *source.sizes(uses, 1, size + REACH)})
    return as_verdicts(source.judge(uses, sizes), source.tolerance)


def dims_of_words(words: Sequence[str]) -> dict[str, int]:
    """Return ``["M=1", "K=1024"]`` as dims. Raises :class:`MapError` for another form."""
    dims = {}
    for word in words:
        name, _, size = word.partition("=")
        if not size.isdecimal():
            raise MapError(f"'{word}' fixes no dim: write its name and size, such as M=1")
        dims[name] = int(size)
    return dims


def curve_around(cliff_map: CliffMap, size: int, curves: Sequence[Curve]) -> Curve:
    """The curve around a size that is most like a model's prefill. Raises :class:`MapError` where
    none covers the size."""
    covering = [c for c in curves if c.sizes[0].size <= size <= c.sizes[-1].size]
    if not covering:
        listed = {f"{c.label}, {c.axis.sizes[0]} … {c.axis.sizes[-1]}" for c in curves}
        dims = {f"{curve.axis.operator} {curve.axis.dim}" for curve in cliff_map.curves}
        has = "; ".join(sorted(listed or dims))
        raise MapError(f"'{cliff_map.name}' has no such curve around {size}: it has {has}")
    return min(covering, key=lambda c: (c.axis.dtype != "float16", c.unlike_prefill))

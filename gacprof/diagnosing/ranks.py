"""Ranks that are safe in both products of a factor pair: one question of a compressor's loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

from gacprof.cliffmap.selection import MapLookupError, whole
from gacprof.cliffmap.source import (
    Asked,
    Candidate,
    ModelView,
    Product,
    Side,
    SizeSource,
    Use,
    is_number,
)
from gacprof.core.dtypes import full_name
from gacprof.core.errors import MapError
from gacprof.core.points import MAX_DIM
from gacprof.diagnosing.sources import open_source

Shape = tuple[int, int]  # (out, in), as a weight is stored


def safe_ranks(
    layers: Any,
    source: SizeSource | str | Path | None = None,
    *,
    gpu: str | None = None,
    torch: str | None = None,
    engine: str | None = None,
    tokens: Mapping[int, float] | Sequence[int] | int | None = None,
    within: tuple[int, int] | None = None,
    dtype: Any = None,
    safe_only: bool = True,
) -> list[Candidate]:
    """The ranks at which a linear layer's two factors are both served well; ascending.

    ``layers`` is an ``nn.Linear``, a weight or its shape (out, in), or several of them that are to
    have one rank in common. ``source``, or ``gpu`` with ``torch`` and ``engine``, is what
    :func:`gacprof.open_source` takes. Ranks are judged on all their products together, summed over
    ``tokens`` (counts, or counts with weights; by default those that the map was measured at for
    these shapes). ``within`` are the first and the last rank wanted; by default up to the largest
    at which the pairs are smaller than the dense weights.

    Raises :class:`MapLookupError` with the command that measures what the map lacks,
    :class:`MapError` for shapes that are none, and where rules cannot call any rank safe.
    """
    shapes = _shapes(layers)
    within = _range(within)
    source = open_source(source, gpu=gpu, torch=torch, engine=engine)
    named = _dtype(dtype, layers, source)
    products = _pairs(shapes, named)
    view = _view(source, shapes, products, named, tokens)
    first, last = within or (1, max(1, _below_break_even(shapes)))
    last = min(last, *(min(shape) for shape in shapes))
    if why := view.no_better(products):
        raise MapError(why)
    _check_held(source, view, products, within, _command(shapes, view, within))
    found = source.judge_jointly(list(_uses(products, view)), first, last)
    chosen = [c for c in found if c.safe or not safe_only]
    fixed = [size for shape in shapes for size in shape]
    if found and not chosen and (why := view.no_safe(products, fixed)):
        raise MapError(why)
    return chosen


def _view(
    source: SizeSource,
    shapes: Sequence[Shape],
    products: Sequence[Product],
    dtype: str,
    counts: Any,
) -> ModelView:
    """The source at the token counts asked for, by default those at which it holds the products."""
    sides = frozenset(side for out, into in shapes for side in ((0, into), (out, 0)))
    asked = Asked("CHECKPOINT", sides, dtype, None, dtype)
    if isinstance(counts, Real) or getattr(counts, "ndim", None) == 0:
        counts = (whole("tokens", counts, 1),)
    if counts is None or not len(counts):
        each = {m: source.view(replace(asked, tokens=(m,))) for m in source.view(asked).tokens}
        counts = [m for m, view in each.items() if view.sizes(products, 1, MAX_DIM)] or None
    return source.view(replace(asked, tokens=counts))


def _uses(products: Sequence[Product], view: ModelView) -> Iterator[Use]:
    """The products as a source judges them jointly, at every token count."""
    for product in products:
        operator = "quantised" if product.dtype in ("int8", "float8_e4m3") else "linear"
        axis, other = ("N", "K") if product.N.times else ("K", "N")
        for m, weight in view.tokens.items():
            dims = {"M": m, other: getattr(product, other).others}
            yield Use(operator, dims, axis, view.dtype, view.flags, weight)


def _pairs(shapes: Iterable[Shape], dtype: str) -> list[Product]:
    """``x · Vᵀ`` and ``· Uᵀ`` of every shape, the rank being N of the first and K of the second."""
    rank = Side(0, 1)
    return [
        product
        for out, into in shapes
        for product in (
            Product(rank, Side(into), False, dtype),
            Product(Side(out), rank, False, dtype),
        )
    ]


def _shapes(layers: Any) -> list[Shape]:
    """The shapes of one layer or of several. Raises :class:`MapError` for what is none."""
    if hasattr(layers, "in_features"):
        return [(layers.out_features, layers.in_features)]
    if hasattr(layers, "shape"):
        sides = tuple(layers.shape)
        return [_shape(tuple(layers.tolist()) if sides == (2,) else sides)]
    if isinstance(layers, str) or not isinstance(layers, Iterable):
        raise MapError(f"{layers!r} is no linear layer and no shape: give (out, in)")
    listed: list[Any] = list(layers)
    if not listed:
        raise MapError("safe ranks of no layer: give a linear layer or a shape (out, in)")
    if all(isinstance(size, Real) for size in listed):
        return [_shape(tuple(listed))]
    return [shape for entry in listed for shape in _shapes(entry)]


def _shape(sides: tuple[Any, ...]) -> Shape:
    if len(sides) != 2 or not all(is_number(side, int) and side >= 1 for side in sides):
        raise MapError(f"{sides} is no weight's shape: give (out, in), whole numbers from 1")
    return int(sides[0]), int(sides[1])


def _dtype(asked: Any, layers: Any, source: SizeSource) -> str:
    """The dtype asked for by any name (torch's too), else the layer's, else the source's only one.
    Raises :class:`MapError` where it has several."""
    if asked is not None:
        return full_name(asked)
    weight = getattr(layers, "weight", layers)
    own = full_name(str(getattr(weight, "dtype", "")))
    if own in source.dtypes:
        return own
    if source.dtypes and not source.usual_dtype:
        raise MapError(
            f"the map '{source.name}' holds {', '.join(source.dtypes)}: name one as dtype"
        )
    return source.usual_dtype or "float16"


def _check_held(
    source: SizeSource,
    view: ModelView,
    products: Sequence[Product],
    within: tuple[int, int] | None,
    command: str,
) -> None:
    """Raises :class:`MapLookupError` where the source has nothing of one of the products, or its
    ranks do not reach those that are wanted."""
    for product in products:
        axis, other = ("N", "K") if product.N.times else ("K", "N")
        dims = {"M": next(iter(view.tokens)), other: getattr(product, other).others}
        held = view.sizes([product], 1, MAX_DIM)
        at = ", ".join(f"{name}={size}" for name, size in dims.items())
        of = f"linear over {axis} at {at}"
        if not held:
            why = f"has no curve of {of}"
        elif within is not None and not (held[0] <= within[0] and held[-1] >= within[1]):
            if source.any_size:
                continue
            why = (
                f"holds ranks from {held[0]} to {held[-1]} of {of}, not {within[0]} to {within[1]}"
            )
        else:
            continue
        raise MapLookupError(
            f"the map '{source.name}' {why}", "linear", dims, view.dtype, view.flags, axis, command
        )


def break_even_rank(out_features: int, in_features: int) -> int:
    """The largest rank at which two factors are no larger than the dense weight."""
    return out_features * in_features // (out_features + in_features)


def _below_break_even(shapes: Sequence[Shape]) -> int:
    """The largest rank at which the pairs are smaller than the dense weights."""
    return (sum(o * i for o, i in shapes) - 1) // sum(o + i for o, i in shapes)


def _range(within: Any) -> tuple[int, int] | None:
    """The first and the last rank; whole numbers of any type, such as NumPy's or 1300.0."""
    if within is None:
        return None
    try:
        first, last = (int(end) for end in within)
        if not 1 <= first <= last or (first, last) != tuple(within):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise MapError(
            f"within={within!r} is no range of ranks: give the first and the last one as whole "
            "numbers, from 1"
        ) from None
    return first, last


def _command(shapes: Iterable[Shape], view: ModelView, within: tuple[int, int] | None) -> str:
    """``gacprof sweep --ranks 4096x4096 --range 512:2048 --tokens 1,1024 --dtype float16``."""
    shapes = list(dict.fromkeys(shapes))
    even = max(break_even_rank(*shape) for shape in shapes)
    first, last = within or (max(1, even // 4), max(1, even))
    listed = ",".join(f"{o}x{i}" for o, i in shapes)
    counts = ",".join(map(str, view.tokens))
    asked = f"--ranks {listed} --range {first}:{last} --tokens {counts} --dtype {view.dtype}"
    return f"gacprof sweep {asked} --out runs/ranks"

"""Ranks that are safe in both products of a factor pair: one question of a compressor's loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from gacprof.cliffmap.candidates import Candidate, Use
from gacprof.cliffmap.map import CliffMap
from gacprof.cliffmap.selection import MapLookupError
from gacprof.core.errors import MapError
from gacprof.core.points import Flag

DEFAULT_TOKENS = (1, 1024)

Shape = tuple[int, int]  # (out, in), as a weight is stored


@runtime_checkable
class Linear(Protocol):
    """What a ``torch.nn.Linear`` says of itself."""

    in_features: int
    out_features: int


def safe_ranks(
    layers: Linear | Shape | Iterable[Linear | Shape],
    cliff_map: CliffMap | str | Path,
    *,
    tokens: Mapping[int, float] | Sequence[int] | int | None = None,
    within: tuple[int, int] | None = None,
    dtype: str | None = None,
    safe_only: bool = True,
) -> list[Candidate]:
    """The ranks at which a linear layer's two factors are both served well; ascending.

    ``layers`` is an ``nn.Linear``, a weight's shape (out, in), or several of them that are to have
    one rank in common. Ranks are judged on the latency of all their products together, summed over
    ``tokens`` (counts, or counts with weights; by default those that the map was measured at for
    these shapes). ``within`` are the first and the last rank wanted.

    Raises :class:`MapLookupError` with the command that measures what the map lacks,
    :class:`MapError` for shapes that are none.
    """
    shapes = _shapes(layers)
    cliff_map = CliffMap.load(cliff_map)
    dtype = dtype or _only_dtype(cliff_map)
    regime = _regime(cliff_map, dtype)
    if isinstance(tokens, int):
        tokens = (tokens,)
    if tokens is None or not len(tokens):
        tokens = _measured(cliff_map, shapes, dtype, regime) or DEFAULT_TOKENS
    weights = tokens if isinstance(tokens, Mapping) else dict.fromkeys(tokens, 1.0)
    uses = [
        Use("linear", {"M": m, other: size}, axis, dtype, regime, weight)
        for shape in shapes
        for m, weight in weights.items()
        for axis, other, size in _products(shape)
    ]
    command = _command(cliff_map, shapes, list(weights), dtype, within)
    for use in uses:
        _check_measured(cliff_map, use, within, command)
    last = min(min(shape) for shape in shapes)
    first, last = (1, last) if within is None else (within[0], min(within[1], last))
    judged = [c for c in cliff_map.judge_jointly(uses) if first <= c.d <= last]
    return [c for c in judged if c.safe or not safe_only]


def _products(shape: Shape) -> tuple[tuple[str, str, int], tuple[str, str, int]]:
    """(the rank's axis, the other axis, its size) of ``x · Vᵀ`` and of ``· Uᵀ``."""
    out_features, in_features = shape
    return ("N", "K", in_features), ("K", "N", out_features)


def _shapes(layers: Linear | Shape | Iterable[Linear | Shape]) -> list[Shape]:
    """The shapes of one layer or of several. Raises :class:`MapError` for what is none."""
    if isinstance(layers, Linear):
        return [(layers.out_features, layers.in_features)]
    if isinstance(layers, str) or not isinstance(layers, Iterable):
        raise MapError(f"{layers!r} is no linear layer and no shape: give (out, in)")
    listed: list[Any] = list(layers)
    if not listed:
        raise MapError("safe ranks of no layer: give a linear layer or a shape (out, in)")
    if all(isinstance(size, int) for size in listed):
        if len(listed) != 2 or min(listed) < 1:
            raise MapError(f"{tuple(listed)} is no weight's shape: give (out, in)")
        return [(listed[0], listed[1])]
    return [shape for entry in listed for shape in _shapes(entry)]


def _only_dtype(cliff_map: CliffMap) -> str:
    held = sorted({curve.dtype for curve in cliff_map.select("linear")})
    if len(held) > 1:
        raise MapError(f"the map '{cliff_map.name}' holds {', '.join(held)}: name one as dtype")
    return held[0] if held else "float16"


def _regime(cliff_map: CliffMap, dtype: str) -> dict[str, Flag]:
    """Cold weights where the map has them, as a diagnosis and a plan take them."""
    cold: dict[str, Flag] = {"cache": "cold"}
    return cold if cliff_map.select("linear", dtype=dtype, flags=cold) else {}


def _measured(
    cliff_map: CliffMap, shapes: Iterable[Shape], dtype: str, regime: Mapping[str, Flag]
) -> list[int]:
    """The token counts at which every product of these shapes has a curve."""
    found = [
        {c.fixed["M"] for c in cliff_map.select("linear", axis, dtype, regime, **{other: size})}
        for shape in shapes
        for axis, other, size in _products(shape)
    ]
    return sorted(set.intersection(*found))


def _check_measured(
    cliff_map: CliffMap, use: Use, within: tuple[int, int] | None, command: str
) -> None:
    """Raises :class:`MapLookupError` where no curve is of this very product, or none reaches the
    ranks that are wanted."""
    curves = cliff_map.select("linear", use.axis, use.dtype, use.flags, **use.dims)
    spans = [(curve.points.d[0], curve.points.d[-1]) for curve in curves]
    at = ", ".join(f"{name}={size}" for name, size in use.dims.items())
    of = f"linear over {use.axis} at {at}"
    if not spans:
        why = f"has no curve of {of}"
    elif within is not None and not any(a <= within[0] and b >= within[1] for a, b in spans):
        first, last = spans[0]
        why = f"holds ranks from {first} to {last} of {of}, not {within[0]} to {within[1]}"
    else:
        return
    raise MapLookupError(
        f"the map '{cliff_map.name}' {why}",
        "linear", use.dims, use.dtype, use.flags, use.axis, command,
    )  # fmt: skip


def break_even_rank(out_features: int, in_features: int) -> int:
    """The largest rank at which two factors are no larger than the dense weight."""
    return out_features * in_features // (out_features + in_features)


def _command(
    cliff_map: CliffMap,
    shapes: Iterable[Shape],
    tokens: Sequence[int],
    dtype: str,
    within: tuple[int, int] | None,
) -> str:
    """``gacprof sweep --ranks 4096x4096 --range 512:2048 --tokens 1,1024 --dtype float16``.

    By default up to the rank at which a pair is as large as the dense weight.
    """
    shapes = list(dict.fromkeys(shapes))
    even = max(break_even_rank(*shape) for shape in shapes)
    first, last = within or (max(1, even // 4), max(1, even))
    listed = ",".join(f"{o}x{i}" for o, i in shapes)
    counts = ",".join(map(str, tokens))
    asked = f"--ranks {listed} --range {first}:{last} --tokens {counts} --dtype {dtype}"
    if cliff_map.by_rules:
        return f"gacprof map rules --gpu GPU --torch RELEASE {asked} --out MAP"
    return f"gacprof sweep {asked} --out runs/ranks"

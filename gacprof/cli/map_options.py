"""Options that the verbs about maps share, and how their texts are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gacprof.core.errors import MapError

if TYPE_CHECKING:
    from gacprof.cliffmap import CliffMap, Use
    from gacprof.core.points import Flag

MapName = Annotated[str, typer.Argument(metavar="MAP", help="A shipped map's name, or a file.")]
Operator = Annotated[str | None, typer.Option("--op", help="linear, attention …")]
Axis = Annotated[str | None, typer.Option(help="The operator's axis, such as K, N, M or head_dim.")]
Dtype = Annotated[str | None, typer.Option(help="Default: what the map holds.")]
Fixed = Annotated[
    list[str] | None,
    typer.Option(
        "--fixed", metavar="DIM=SIZE", help="Another dim of the operator, as M=1024; repeatable."
    ),
]
Flags = Annotated[
    list[str] | None,
    typer.Option(
        "--flag", metavar="NAME=VALUE", help="A flag, as bias=true or backend=flash; repeatable."
    ),
]


def load(*names: str) -> list[CliffMap]:
    from gacprof.cliffmap import CliffMap

    return [CliffMap.load(name) for name in names]


def one_axis(operator: str | None, axis: str | None) -> tuple[str, str]:
    """Both, or :class:`MapError` for a missing one."""
    if operator is None or axis is None:
        raise MapError("say which curve: --op linear --axis K, for example")
    return operator, axis


def sizes(texts: Sequence[str] | None, option: str = "--fixed") -> dict[str, int]:
    """``["M=1024", "K=64,N=8"]`` as a dict. Raises :class:`MapError` for anything else."""
    found: dict[str, int] = {}
    for text in (part for texts_ in texts or () for part in texts_.split(",")):
        name, _, size = text.strip().partition("=")
        if not name.isidentifier() or not size.isdecimal() or int(size) < 1:
            raise MapError(f"{option} takes a dim and its size, as M=1024, not '{text}'")
        if name in found:
            raise MapError(f"{option} gives {name} twice")
        found[name] = int(size)
    return found


def known_sizes(
    maps: Sequence[CliffMap], operator: str, axis: str, texts: Sequence[str] | None
) -> dict[str, int]:
    """:func:`sizes`, each of a dim that the operator has in one of the maps."""
    found = sizes(texts)
    curves = [curve for m in maps for curve in m.curves if curve.operator == operator]
    dims = {name for curve in curves for name in (*curve.fixed, curve.axis)}
    for name in found:
        if name == axis:
            raise MapError(f"--fixed {name} is the axis itself; give the other dims")
        if dims and name not in dims:
            raise MapError(f"{operator} has no dim '{name}' (it has {', '.join(sorted(dims))})")
    return found


def flags(texts: Sequence[str] | None) -> Mapping[str, Flag] | None:
    """``["bias=true"]`` as a dict: true and false, whole numbers, else the text itself."""
    found: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise MapError(f"--flag takes a name and a value, as bias=true, not '{text}'")
        word = {"true": True, "false": False}.get(value.lower())
        found[name] = word if word is not None else int(value) if value.isdecimal() else value
    return found or None


def window(text: str | None) -> int | tuple[int, int] | None:
    """``16`` (a half-width) or ``96:160`` (first and last)."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    if first.isdecimal() and not colon:
        return int(first)
    if first.isdecimal() and last.isdecimal() and int(first) <= int(last):
        return int(first), int(last)
    raise MapError(f"--window is a half-width, as 16, or a range, as 96:160, not '{text}'")


def use(text: str, dtype: str | None, maps: Sequence[CliffMap]) -> Use:
    """``linear:K:M=512,N=4096`` as a use; without a dtype the first map's own is taken."""
    from gacprof.cliffmap import Use

    operator, _, rest = text.partition(":")
    axis, _, dims = rest.partition(":")
    if not operator or not axis or not dims:
        raise MapError(
            f"--use takes OPERATOR:AXIS:DIM=SIZE,… as linear:K:M=512,N=4096, not '{text}'"
        )
    curves = maps[0].select(operator, axis)
    taken = dtype or (curves[0].dtype if curves else "float16")
    return Use(operator, sizes([dims], "--use"), axis, taken)


def write(text: str, out: Path) -> None:
    """Atomically. Raises :class:`MapError` where that cannot be done."""
    from gacprof.core.files import write_text

    try:
        write_text(out, text)
    except OSError as error:
        raise MapError(f"cannot write {out}: {error.strerror or error}") from None


def dims(listed: Sequence[int]) -> str:
    """Dims in ascending order, even runs shortened: 96, 104 … 160 (by 8)."""
    parts: list[str] = []
    i = 0
    while i < len(listed):
        j = i + 1
        while j + 1 < len(listed) and listed[j + 1] - listed[j] == listed[i + 1] - listed[i]:
            j += 1
        if j - i >= 3:
            step = listed[i + 1] - listed[i]
            by = "" if step == 1 else f" (by {step})"
            parts.append(f"{listed[i]} … {listed[j]}{by}")
            i = j + 1
        else:
            parts.append(str(listed[i]))
            i += 1
    return ", ".join(parts) or "none"

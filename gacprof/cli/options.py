"""Options that several verbs share, and how their texts are read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from gacprof.core.errors import MapError, PlanError, SuiteError

if TYPE_CHECKING:
    from gacprof.cliffmap import CliffMap, Use
    from gacprof.core.points import Flag

Checkpoint = Annotated[str, Argument(help="A checkpoint's folder or weights file.")]
MapOption = Annotated[str, Option("--map", help="A shipped map's name, or a file.")]
Tokens = Annotated[
    str | None,
    Option(
        help="Token counts served, with weights: 1:0.9,1024:0.1. Default: those that the map's "
        "products of this model were measured at.",
        metavar="M[:W],…",
    ),
]
OneDevice = Annotated[
    str | None, Option(help="cpu, cuda or cuda:N. Default: the first GPU, else the CPU.")
]
EngineOption = Annotated[
    str | None,
    Option(
        "--for",
        "--preset",
        metavar="ENGINE[,…]",
        help="Only sizes that this engine takes: vllm,tp=4,marlin, gguf,q4_k, gptq,group=128, "
        "trt-llm, sglang.",
    ),
]
Fleet = Annotated[
    str | None,
    Option(
        help="Spread the work over a Ray cluster: auto, local or ray://HOST:10001. "
        "The result is the same.",
        metavar="ADDRESS",
    ),
]
DIGITS = 24
"""Of a size on the command line."""

MapName = Annotated[str, Argument(metavar="MAP", help="A shipped map's name, or a file.")]
Operator = Annotated[str | None, Option("--op", help="linear, attention …")]
Axis = Annotated[str | None, Option(help="The operator's axis, such as K, N, M or head_dim.")]
Dtype = Annotated[str | None, Option(help="Default: what the map holds.")]
Fixed = Annotated[
    list[str] | None,
    Option(
        "--fixed", metavar="DIM=SIZE", help="Another dim of the operator, as M=1024; repeatable."
    ),
]
Flags = Annotated[
    list[str] | None,
    Option(
        "--flag", metavar="NAME=VALUE", help="A flag, as bias=true or backend=flash; repeatable."
    ),
]


def load_maps(*names: str) -> list[CliffMap]:
    from gacprof.cliffmap import CliffMap

    return [CliffMap.load(name) for name in names]


def token_counts(text: str) -> list[int]:
    """``1,1024`` → [1, 1024]. Raises :class:`SuiteError`."""
    return list(workload(text))


def workload(text: str) -> dict[int, float]:
    """``1:0.9,1024:0.1`` → {1: 0.9, 1024: 0.1}; a count without a weight weighs 1.

    Raises :class:`SuiteError` for anything that is no list of positive counts.
    """
    tokens: dict[int, float] = {}
    for part in text.split(","):
        count, _, weight = part.strip().partition(":")
        try:
            if int(count) in tokens:
                raise SuiteError(f"the token count {int(count)} is there twice in '{text}'")
            tokens[int(count)] = float(weight) if weight else 1.0
        except ValueError:
            raise SuiteError(
                f"'{part.strip()}' is no token count: write them as 1,1024 or 1:0.9,1024:0.1"
            ) from None
    if any(m <= 0 or not 0 < w < float("inf") for m, w in tokens.items()):
        raise SuiteError(f"token counts and weights must be positive, not '{text}'")
    return tokens


def budget_seconds(text: str | None) -> float | None:
    """``90``, ``90s``, ``8m``, ``1.5h`` as seconds. Raises :class:`SuiteError`."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None or not 0 < float(match[1]) < 1e9:
        raise SuiteError(f"'{text}' is no time budget: give a time such as 90s, 8m or 1h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{kind}": base ** (power + 1)
    for kind, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt")
}


def byte_count(text: str) -> int:
    """``6GB`` → 6,000,000,000, ``512MiB`` → 536,870,912; without a unit, bytes.

    Raises :class:`PlanError`.
    """
    compact = text.strip().lower().replace(",", "").replace("_", "")
    number = compact.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = compact[len(number) :].strip()
    try:
        amount = float(number)
        if unit not in _UNITS or not 0 < amount < 1e30:
            raise ValueError
    except ValueError:
        raise PlanError(
            f"--memory {text}: write a positive number of bytes, with kB, MB, GB, TB or KiB, MiB, "
            "GiB, TiB after it, such as 6GB or 512MiB"
        ) from None
    return int(amount * _UNITS[unit])


def by_pattern(texts: Sequence[str] | None, option: str) -> dict[str, int]:
    """``["*q_proj:rank=128"]`` → {"*q_proj:rank": 128}. Raises :class:`PlanError`, also for a
    pattern that is given twice."""
    sizes: dict[str, int] = {}
    for text in texts or ():
        pattern, _, size = text.rpartition("=")
        if not pattern or not _is_size(size):
            raise PlanError(f"--{option} {text}: write it as PATTERN=SIZE, such as '*:rank=128'")
        if pattern in sizes:
            raise PlanError(f"--{option} is given twice for '{pattern}'")
        sizes[pattern] = int(size)
    return sizes


def pins(texts: Sequence[str] | None) -> dict[str, Any]:
    """``*:width=keep`` and ``*:rank=128``: {"*:width": "keep", "*:rank": 128}."""
    patterns = [text.rpartition("=")[0] for text in texts or ()]
    for pattern in patterns:
        if pattern and patterns.count(pattern) > 1:
            raise PlanError(f"--pin is given twice for '{pattern}'")
    kept = [text for text in texts or () if text.endswith("=keep") and text != "=keep"]
    sized = [text for text in texts or () if text not in kept]
    return {text.removesuffix("=keep"): "keep" for text in kept} | by_pattern(sized, "pin")


def sizes(texts: Sequence[str] | None, option: str = "--fixed") -> dict[str, int]:
    """``["M=1024", "K=64,N=8"]`` as a dict. Raises :class:`MapError` for anything else."""
    found: dict[str, int] = {}
    for text in (part for texts_ in texts or () for part in texts_.split(",")):
        name, _, size = text.strip().partition("=")
        if not name.isidentifier() or not _is_size(size):
            raise MapError(f"{option} takes a dim and its size, as M=1024, not '{text}'")
        if name in found:
            raise MapError(f"{option} gives {name} twice")
        found[name] = int(size)
    return found


def _is_size(text: str) -> bool:
    """A whole number from 1, of no more digits than any size has."""
    return len(text) <= DIGITS and text.isascii() and text.isdigit() and int(text) > 0


def flags(texts: Sequence[str] | None) -> Mapping[str, Flag] | None:
    """``["bias=true"]`` as a dict: true and false, whole numbers, else the text itself."""
    found: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise MapError(f"--flag takes a name and a value, as bias=true, not '{text}'")
        word = {"true": True, "false": False}.get(value.lower())
        number = value == "0" or _is_size(value)
        found[name] = word if word is not None else int(value) if number else value
    return found or None


def one_axis(operator: str | None, axis: str | None) -> tuple[str, str]:
    """Both, or :class:`MapError` for a missing one."""
    if operator is None or axis is None:
        raise MapError("say which curve: --op linear --axis K, for example")
    return operator, axis


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


def window(text: str | None) -> int | tuple[int, int] | None:
    """``16`` (a half-width) or ``96:160`` (first and last)."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    ends = [int(end) for end in (first, last) if end == "0" or _is_size(end)]
    if len(ends) == 1 and not colon:
        return ends[0]
    if len(ends) == 2 and ends[0] <= ends[1]:
        return ends[0], ends[1]
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

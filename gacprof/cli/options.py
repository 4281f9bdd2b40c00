"""Options that several verbs share, and how their texts are read."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from typer import Argument, Option

from gacprof.core.errors import MapError, PlanError, SuiteError

if TYPE_CHECKING:
    from gacprof.cliffmap import CliffMap, Use
    from gacprof.cliffmap.schema import Curve
    from gacprof.cliffmap.source import SizeSource

DIGITS = 24
"""Of a size on the command line."""


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb as typer takes it, where some parameters are dataclasses of options: each of their
    fields is an option of its own."""

    def declared(owner: Callable[..., object]) -> list[inspect.Parameter]:
        hints = get_type_hints(owner, include_extras=True)
        found = inspect.signature(owner).parameters.values()
        return [p.replace(annotation=hints[p.name], kind=p.KEYWORD_ONLY) for p in found]

    groups: dict[str, Any] = {
        p.name: p.annotation for p in declared(verb) if is_dataclass(p.annotation)
    }
    options = [
        o for p in declared(verb) for o in (declared(groups[p.name]) if p.name in groups else [p])
    ]

    @wraps(verb)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        verb(**given)

    run.__annotations__ = {option.name: option.annotation for option in options}
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return run


def load_maps(*names: str) -> list[CliffMap]:
    """Measured maps; what asks for latencies takes no others."""
    from gacprof.cliffmap import CliffMap

    return [CliffMap.load(name) for name in names]


def load_sources(*names: str) -> list[Any]:
    """Maps and rule tables."""
    from gacprof.diagnosing.sources import open_source

    return [open_source(name) for name in names]


def chosen_curves(
    loaded: CliffMap, operator: str | None, axis: str | None, fixed: Mapping[str, int] | None = None
) -> list[Curve]:
    """A map's curves, or those of this operator, axis and other dims. Raises :class:`MapError`
    where there is none."""
    curves = [
        curve for curve in loaded.curves
        if operator in (None, curve.operator) and axis in (None, curve.axis)
        and (fixed or {}).items() <= curve.fixed.items()
    ]  # fmt: skip
    if not curves and (operator or axis or fixed):
        held = sorted({f"{c.operator} over {c.axis}" for c in loaded.curves})
        raise MapError(f"the map '{loaded.name}' has no such curve; it has {', '.join(held)}")
    return curves


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


def budget_seconds(text: str) -> float:
    """``90``, ``90s``, ``8m``, ``1.5h`` as seconds. Raises :class:`SuiteError`."""
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


def by_pattern(
    texts: Sequence[str] | None, option: str, words: Sequence[str] = ()
) -> dict[str, Any]:
    """``["*q_proj:rank=128"]`` → {"*q_proj:rank": 128}; one of the ``words`` may stand for a size.
    Raises :class:`PlanError`, also for a pattern that is given twice."""
    sizes: dict[str, Any] = {}
    for text in texts or ():
        pattern, _, size = text.rpartition("=")
        if not pattern or not (size in words or _is_size(size)):
            raise PlanError(f"--{option} {text}: write it as PATTERN=SIZE, such as '*:rank=128'")
        if pattern in sizes:
            raise PlanError(f"--{option} is given twice for '{pattern}'")
        sizes[pattern] = size if size in words else int(size)
    return sizes


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


def flags(texts: Sequence[str] | None) -> Mapping[str, Any] | None:
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


Checkpoint = Annotated[str, Argument(help="A checkpoint's folder or weights file.")]
Ranks = Annotated[
    int,
    Option("--tp", min=1, max=1024, help="Sizes as one of so many tensor-parallel ranks holds."),
]
Tokens = Annotated[
    dict[int, float] | None,
    Option(
        parser=workload,
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
Tokenizer = Annotated[
    Path | None, Option(help="A folder with a tokenizer. Default: the models' own.")
]


@dataclass(frozen=True)
class Running:
    """How a sweep runs, named as :func:`gacprof.sweep` names it."""

    resume: Annotated[bool, Option("--resume", help="Go on with the sweep in --out.")] = False
    budget_s: Annotated[
        float | None,
        Option(
            "--budget", parser=budget_seconds, metavar="8m",
            help="End after this time; --resume takes the rest.",
        ),
    ] = None  # fmt: skip
    timeout_s: Annotated[
        float,
        Option("--timeout", min=0.1, help="Seconds for one block before a worker is replaced."),
    ] = 60.0
    timer: Annotated[str, Option(help="A GPU's timer: auto, cuda-graph or cuda-events.")] = "auto"


@dataclass(frozen=True)
class Shapes:
    """Whose shapes are measured in place of a suite's."""

    checkpoint: Annotated[
        str | None,
        Option("--for", help="This checkpoint's own shapes, and what its dims may become."),
    ] = None
    ranks: Annotated[
        str | None,
        Option(
            metavar="DENSE|OUTxIN,…",
            help="The factor pairs that this dense checkpoint's linear layers, or weights of these "
            "shapes, would be cut into.",
        ),
    ] = None
    tokens: Annotated[
        dict[int, float] | None,
        Option(
            parser=workload, metavar="M,M,…",
            help="Token counts to serve, with --for and --ranks. Default: 1,1024.",
        ),
    ] = None  # fmt: skip
    window: Annotated[
        float, Option(min=0.0, max=4.0, help="Candidates within ± this share (and 32), with --for.")
    ] = 0.25
    preset: Annotated[
        str | None,
        Option(
            metavar="ENGINE[,…]",
            help="With --for: sizes that this engine takes too, as vllm,tp=4,marlin.",
        ),
    ] = None

    def asked(self) -> dict[str, Any]:
        """As :func:`gacprof.sweep` takes it."""
        return {
            "model": self.checkpoint, "ranks_of": _pairs(self.ranks), "window": self.window,
            "tokens": None if self.tokens is None else list(self.tokens), "preset": self.preset,
        }  # fmt: skip


def _pairs(dense: str | None) -> str | list[tuple[int, int]] | None:
    """``4096x4096,11008x4096`` as pairs; anything else is a checkpoint's name."""
    found = re.findall(r"([1-9]\d{0,8})x([1-9]\d{0,8})(?:,|$)", dense or "")
    if ",".join(f"{o}x{i}" for o, i in found) != dense:
        return dense
    return [(int(o), int(i)) for o, i in found]


def first_and_last(ranks: str | None) -> tuple[int, int] | None:
    if ranks is None:
        return None
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", ranks.strip())
    if not match:
        raise SuiteError(f"--range is '{ranks}': give the first and the last rank, as 64:256")
    return int(match[1]), int(match[2])


@dataclass(frozen=True)
class Source:
    """Where good sizes are known from: a map, or the rules of a GPU."""

    cliff_map: Annotated[
        str | None, Option("--map", help="A shipped map's name, or a map's or rule table's file.")
    ] = None
    gpu: Annotated[
        str | None,
        Option(help="Instead: the rules of this GPU (h100, l40s …), which need no measurement."),
    ] = None
    torch: Annotated[
        str | None, Option(help="With --gpu: the PyTorch release, as 2.11. Default: the newest.")
    ] = None

    def open(self) -> SizeSource:
        """Raises :class:`MapError` for none or two, and for a GPU or release without rules."""
        from gacprof.diagnosing.sources import open_source

        return open_source(self.cliff_map, gpu=self.gpu, torch=self.torch)

    def open_if_named(self) -> SizeSource | None:
        return self.open() if self.cliff_map or self.gpu or self.torch else None


@dataclass(frozen=True)
class CurveOptions:
    """Which curve of a map."""

    operator: Operator = None
    axis: Axis = None
    dtype: Dtype = None
    fixed: Fixed = None
    flag: Flags = None

    def of(self, maps: Sequence[Any]) -> tuple[str, str, dict[str, Any]]:
        """Operator, axis, and the other keywords of :meth:`CliffMap.curve`. Raises
        :class:`MapError` where operator or axis is missing, and for a dim that the operator has in
        none of the maps."""
        if self.operator is None or self.axis is None:
            raise MapError("say which curve: --op linear --axis K, for example")
        return self.operator, self.axis, self.about(maps, self.operator, self.axis)

    def about(self, maps: Sequence[Any], operator: str, axis: str) -> dict[str, Any]:
        found = sizes(self.fixed)
        held = [curve for m in maps for curve in getattr(m, "curves", ())]
        curves = [curve for curve in held if curve.operator == operator]
        dims = {name for curve in curves for name in (*curve.fixed, curve.axis)}
        for name in found:
            if name == axis:
                raise MapError(f"--fixed {name} is the axis itself; give the other dims")
            if dims and name not in dims:
                raise MapError(f"{operator} has no dim '{name}' (it has {', '.join(sorted(dims))})")
        return {"dtype": self.dtype, "flags": flags(self.flag), **found}


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


def use(text: str, dtype: str | None, maps: Sequence[SizeSource], shards: int = 1) -> Use:
    """``linear:K:M=512,N=4096`` as a use; without a dtype the first source's own is taken."""
    from gacprof.cliffmap import Use

    operator, _, rest = text.partition(":")
    axis, _, dims = rest.partition(":")
    if not operator or not axis or not dims:
        raise MapError(
            f"--use takes OPERATOR:AXIS:DIM=SIZE,… as linear:K:M=512,N=4096, not '{text}'"
        )
    taken = dtype or next(iter(maps[0].dtypes), "float16")
    return Use(operator, sizes([dims], "--use"), axis, taken, shards=shards)

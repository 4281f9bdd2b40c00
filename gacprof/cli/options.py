"""Options that several verbs share, and how their texts are read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from rich.markup import escape
from typer import Argument, Option

from gacprof.core.errors import MapError
from gacprof.core.request import OPTION, Request, given_texts, spelling
from gacprof.core.request import Option as Known
from gacprof.core.texts import flags, sizes

if TYPE_CHECKING:
    from gacprof.cliffmap import CliffMap, Use
    from gacprof.cliffmap.schema import Curve
    from gacprof.cliffmap.source import SizeSource


def grouped(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb as typer takes it, where some parameters are requests, or dataclasses of options:
    each of their fields is an option of its own."""
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for p in _declared(verb):
        if not is_dataclass(p.annotation):
            options.append(p)
            continue
        kind: Any = p.annotation
        groups[p.name] = kind
        options += request_options(kind) if issubclass(kind, Request) else _declared(kind)

    @wraps(verb)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            if issubclass(group, Request):
                names = [option.name for option in request_options(group)]
                texts = {option: given.pop(option) for option in names}
                given[name] = group(**given_texts(group, texts))
            else:
                given[name] = group(**{f.name: given.pop(f.name) for f in fields(group)})
        verb(**given)

    run.__annotations__ = {option.name: option.annotation for option in options}
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return run


def _declared(owner: Callable[..., object]) -> list[inspect.Parameter]:
    hints = get_type_hints(owner, include_extras=True)
    found = inspect.signature(owner).parameters.values()
    return [p.replace(annotation=hints[p.name], kind=p.KEYWORD_ONLY) for p in found]


def request_options(request: type[Request]) -> list[inspect.Parameter]:
    """The options of a request, as parameters that typer reads. It checks only that numbers are
    numbers: what a value may be, the request says."""
    found = []
    for field in fields(request):
        known: Known | None = field.metadata.get(OPTION)
        if known is None:
            continue
        if known.nested is not None:
            found += request_options(known.nested)
        else:
            found.append(_parameter(field.name, field.default, known))
    return found


def _parameter(name: str, default: Any, known: Known) -> inspect.Parameter:
    required = default is MISSING
    plain = isinstance(default, bool | int | float | str) and not known.many
    shown: Any = plain
    if not plain and not required and default not in (None, ()):
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
    about: dict[str, Any] = {
        "help": escape(known.help), "metavar": known.metavar or _kind(default, known),
        "show_default": shown,
        "rich_help_panel": known.group or None, "autocompletion": _completion(known),
    }  # fmt: skip
    if known.argument:
        declared: Any = Argument(**about)
    else:
        declared = Option(*(known.names or _spelled(name, default)), **about)
    kind: Any = bool if isinstance(default, bool) else str if known.reads_text else known.read
    kind = list[kind] if known.many else kind
    given = ... if required else default if plain else None
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if given is ... else given,
        annotation=Annotated[kind if required or plain else kind | None, declared],
    )


def _kind(default: Any, known: Known) -> str | None:
    """What help shows of the value: nothing of a flag, ``TEXT`` of one among several."""
    return (
        "" if isinstance(default, bool) else "TEXT" if known.many and not known.argument else None
    )


def _spelled(name: str, default: Any) -> list[str]:
    """What is on by default can be turned off."""
    option = spelling(name, Known())
    return [f"{option}/--no-{option[2:]}" if default is True else option]


def _completion(known: Known) -> Callable[[str], list[str]] | None:
    """What a shell offers for a word that was begun."""

    def offered(incomplete: str) -> list[str]:
        words = known.suggested() if known.suggested else list(known.choices)
        return [word for word in words if word.startswith(incomplete)]

    return offered if known.choices or known.suggested else None


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


Ranks = Annotated[
    int,
    Option("--tp", min=1, max=1024, help="Sizes as one of so many tensor-parallel ranks holds."),
]
OneDevice = Annotated[
    str | None, Option(help="cpu, cuda or cuda:N. Default: the first GPU, else the CPU.")
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

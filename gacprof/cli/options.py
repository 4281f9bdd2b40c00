"""How a request becomes the options of a verb, and the requests that say how a verb prints."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from rich.markup import escape
from typer import Argument, Option

from gacprof.core.request import OPTION, Request, given_texts, option, spelling
from gacprof.core.request import Option as Known

PRINTED = "What is printed"


class Output(Request):
    """How a verb prints what it found."""

    as_json: bool = option(
        default=False, name="--json", group=PRINTED,
        help="Print JSON and nothing else on stdout.",
    )  # fmt: skip


class Drawing(Output):
    """Where a drawing goes, if one is wanted."""

    out: Path | None = option(default=None, read=Path, help="Stem: OUT.svg and OUT.png are drawn.")


class Rows(Output):
    """Of a verb that prints the first rows of a table."""

    every: bool = option(
        default=False, name="--all", group=PRINTED, help="Print everything, a line each."
    )


class Why(Output):
    """Of a verb that prints its verdict first."""

    why: bool = option(
        default=False, group=PRINTED, help="Print what that rests on too, and all notes."
    )


class Reasons(Why, Rows):
    """Of a verb that prints its verdict first, and then the first rows of a table."""


def from_requests(verb: Callable[..., None]) -> Callable[..., None]:
    """A verb as typer takes it: each of its parameters is a request, and each field of those an
    option or an argument."""
    hints = get_type_hints(verb)
    requests: dict[str, type[Request]] = {
        name: hints[name] for name in inspect.signature(verb).parameters
    }
    options = {name: request_options(request) for name, request in requests.items()}

    @wraps(verb)
    def run(**given: Any) -> None:
        made = {
            name: request(**given_texts(request, {o.name: given[o.name] for o in options[name]}))
            for name, request in requests.items()
        }
        verb(**made)

    every = [each for of_one in options.values() for each in of_one]
    # rich breaks a paragraph's lines where the source does, but for the first.
    paragraphs = inspect.cleandoc(verb.__doc__ or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    run.__annotations__ = {each.name: each.annotation for each in every}
    run.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    return run


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

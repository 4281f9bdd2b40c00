"""The verbs: the function that each one is, and the signature that a command line can write."""

import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from cyclopts import Parameter

import gacprof
from gacprof.cli.source import source_of
from gacprof.core.files import shipped_table

VERBS_FILE = Path(__file__).parent / "verbs.toml"
GROUPS = shipped_table(VERBS_FILE, dict[str, dict[str, str]])
"""Verbs by what they are for, each with an example."""
EXAMPLES = dict(chain.from_iterable(group.items() for group in GROUPS.values()))
VERBS = {verb: verb for verb in EXAMPLES} | {
    "fleet": "sweep_fleet",
    "map build": "build_map",
    "map show": "load_map",
    "map candidates": "candidates",
}
"""Verb: the public name of its function."""

# options whose name is not their parameter's: a source of sizes is a map or a GPU's name
OPTION_NAMES = {"source": ("--map", "--gpu"), "imports": ("--import",)}
FACTORS = inspect.Parameter(
    "factors",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[tuple[str, str] | None, Parameter()],
)
"""What every verb that reads a checkpoint takes besides, as ``gacprof.scan`` does."""
FACTORS_HELP = (
    "Two patterns of tensor names, for factor pairs whose names gacprof does not know: "
    "'{module}.up.weight' '{module}.down.weight', the one that makes the outputs first."
)
# types that a word on a command line can stand for
WRITABLE = (str, int, float, bool, Path, type(None))


def stub_of(verb: str) -> Callable[..., Any]:
    """Return a verb's function with its signature and docstring, and nothing in it."""
    stub: Callable[..., Any] = source_of("gacprof")[VERBS[verb]]
    return stub


def docstring_of(verb: str) -> str:
    """Return the docstring of a verb's function."""
    return str(inspect.getdoc(stub_of(verb)))


def command(verb: str) -> Callable[..., Any]:
    """The function of a verb, imported when it is called, as a command line can write it."""
    parameters: list[inspect.Parameter] = []
    checkpoints = []
    for name, parameter in inspect.signature(stub_of(verb)).parameters.items():
        annotation = writable(parameter.annotation)
        if "Inventory" in str(parameter.annotation):
            checkpoints.append(name)
        if any(takes_all_words(earlier) for earlier in parameters):
            parameter = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        if annotation is not None:
            annotation = Annotated[annotation, Parameter(name=OPTION_NAMES.get(name))]
            parameters.append(parameter.replace(annotation=annotation))
    if checkpoints:
        parameters.append(FACTORS)
    signature = inspect.Signature(parameters)

    def run(*values: Any, **options: Any) -> Any:
        bound = signature.bind(*values, **options)
        factors = bound.arguments.pop("factors", None)
        if factors is not None:
            named = [name for name in checkpoints if bound.arguments.get(name)]
            scan_with_factors(bound.arguments, named, factors)
        return getattr(gacprof, VERBS[verb])(*bound.args, **bound.kwargs)

    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def takes_all_words(parameter: inspect.Parameter) -> bool:
    """Whether all words that stand behind a parameter's first one are its own."""
    is_option = parameter.kind is inspect.Parameter.KEYWORD_ONLY
    return "..." in str(parameter.annotation) and not is_option


def scan_with_factors(
    arguments: dict[str, Any], names: Sequence[str], factors: tuple[str, str]
) -> None:
    """Scan the checkpoints among a verb's arguments by the user's patterns of factor pairs.

    A model beside them, as the original one, may have none: it is read as it is.
    """
    from gacprof.checkpoint.scan import scan
    from gacprof.core.errors import CheckpointError

    errors: list[CheckpointError] = []

    def scanned(path: Any) -> Any:
        try:
            return scan(path, factors=factors)
        except CheckpointError as error:
            errors.append(error)
            return path

    paths = 0
    for name in names:
        value = arguments[name]
        several = isinstance(value, tuple)
        paths += len(value) if several else 1
        arguments[name] = tuple(map(scanned, value)) if several else scanned(value)
    if len(errors) == paths:
        raise errors[0]


def int_of_word(_: Any, tokens: Sequence[Any]) -> int:
    """Read a word as a whole number; cyclopts alone would round 1.5."""
    return int(tokens[0].value)


def writable(annotation: Any) -> Any:
    """The part of a type that words can stand for, sequences as tuples; None for no part."""
    origin = typing.get_origin(annotation)
    if origin in (Union, types.UnionType):
        parts = [part for part in map(writable, typing.get_args(annotation)) if part is not None]
        several = [part for part in parts if typing.get_origin(part) is tuple]
        if several:
            parts = [*several, *(part for part in parts if part is types.NoneType)]
        return functools.reduce(operator.or_, parts) if parts != [types.NoneType] else None
    if annotation is int:
        return Annotated[int, Parameter(converter=int_of_word)]
    if origin is Literal or annotation in WRITABLE:
        return annotation
    if origin in (tuple, list, Sequence):
        item = writable(typing.get_args(annotation)[0])
        return tuple[item, ...] if item is not None else None  # type: ignore[valid-type]
    return None

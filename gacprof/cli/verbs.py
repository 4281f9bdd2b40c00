"""The verbs: the function that each one is, and the signature that a command line can write."""

import ast
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from cyclopts import Parameter

import gacprof

VERBS = {
    "lint": "lint",
    "gpus": "gpus",
    "table": "table",
    "dispatch": "dispatch",
    "virtual": "virtual",
    "sweep": "sweep",
    "fleet": "sweep_fleet",
    "map build": "build_map",
    "map show": "load_map",
    "map candidates": "candidates",
    "trace": "trace",
    "explain": "explain",
    "diagnose": "diagnose",
    "plan": "plan",
    "pareto": "pareto",
    "realign": "realign",
    "verify": "verify",
    "bench": "bench",
    "perplexity": "perplexity",
    "report": "report",
    "compress": "compress",
    "export": "export",
}
"""Verb: the public name of its function."""

# options whose name is not their parameter's: a source of sizes is a map or a GPU's name
OPTION_NAMES = {"source": ("--map", "--gpu")}
FACTORS = inspect.Parameter(
    "factors",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        tuple[str, str] | None,
        Parameter(
            help="Tensor name patterns of factor pairs of an unknown layout, the outer one first: "
            "'{module}.up.weight' '{module}.down.weight'"
        ),
    ],
)
"""What every verb that reads a checkpoint takes besides, as ``gacprof.scan`` does."""
# types that a word on a command line can stand for
WRITABLE = (str, int, float, bool, Path, type(None))


def read_definition(verb: str) -> ast.FunctionDef:
    """Read a verb's function from its source."""
    # not by an import: help needs no torch, and shows where torch is not installed
    module = gacprof.MODULE_OF[VERBS[verb]]
    folder = Path(gacprof.__file__).parents[1]
    source = folder.joinpath(*module.split(".")).with_suffix(".py")
    statements = ast.parse(source.read_text(encoding="utf-8")).body
    functions = {node.name: node for node in statements if isinstance(node, ast.FunctionDef)}
    return functions[VERBS[verb]]


def summary(verb: str) -> str:
    """Return the first line of a verb's docstring."""
    return str(ast.get_docstring(read_definition(verb))).splitlines()[0]


def help_text(verb: str) -> str:
    """Return the usage and the docstring of a verb, for an install that lacks what it imports."""
    definition = read_definition(verb)
    words = [argument.arg.upper() for argument in definition.args.args]
    for argument in definition.args.kwonlyargs:
        words.append(f"[--{argument.arg.replace('_', '-')}]")
    return f"Usage: gacprof {verb} {' '.join(words)}\n\n{ast.get_docstring(definition)}"


def command(verb: str) -> Callable[..., Any]:
    """The function of a verb with annotations that a command line can write."""
    function: Callable[..., Any] = getattr(gacprof, VERBS[verb])
    hints = typing.get_type_hints(function)
    parameters = []
    checkpoints = []
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = writable(hints[name])
        if "Inventory" in str(hints[name]):
            checkpoints.append(name)
        if annotation is not None:
            annotation = Annotated[annotation, Parameter(name=OPTION_NAMES.get(name))]
            parameters.append(parameter.replace(annotation=annotation))
    signature = inspect.Signature(parameters)
    if checkpoints:
        signature = signature.replace(parameters=[*parameters, FACTORS])

    # a function of its own, whose annotations cyclopts reads: the public one keeps its own
    @functools.wraps(function)
    def run(*values: Any, **options: Any) -> Any:
        bound = signature.bind(*values, **options)
        factors = bound.arguments.pop("factors", None)
        if factors is not None:
            named = [name for name in checkpoints if bound.arguments.get(name)]
            scan_with_factors(bound.arguments, named, factors)
        return function(*bound.args, **bound.kwargs)

    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {
        parameter.name: parameter.annotation for parameter in signature.parameters.values()
    }
    return run


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
    word = tokens[0].value
    try:
        return int(word)
    except ValueError:
        raise ValueError(f"'{word}' is no whole number") from None


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

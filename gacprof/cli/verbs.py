"""The verbs: the function that each one is, and the signature that a command line can write."""

from __future__ import annotations

import ast
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from cyclopts import Parameter

VERBS = {
    "lint": ("gacprof.lint.lint:lint", "Say what an engine does with a config's sizes."),
    "gpus": (
        "gacprof.devices.datasheet:gpus",
        "List the GPUs at hand, and those whose name can take a map's place.",
    ),
    "dispatch": ("gacprof.virtual.ask:dispatch", "Say which kernel PyTorch takes on a GPU."),
    "virtual": ("gacprof.virtual.run:virtual", "Run a command on a GPU that is not there."),
    "sweep": ("gacprof.sweeping.sweep:sweep", "Measure the latency of sizes on a device."),
    "fleet": ("gacprof.sweeping.fleet:sweep_fleet", "Sweep many devices at once, on Ray."),
    "map build": (
        "gacprof.cliffmap.build:build_map",
        "Build the cliff map of a sweep: fit each axis's blocks, judge its sizes, find its cliffs.",
    ),
    "map show": (
        "gacprof.cliffmap.cliffmap:load_map",
        "Read a cliff map: its curves, safe sizes and cliffs.",
    ),
    "map candidates": (
        "gacprof.cliffmap.tables:candidates",
        "List the safe sizes near one; of several maps those safe on all.",
    ),
    "map table": (
        "gacprof.cliffmap.tables:map_table",
        "Print what a map asks of sizes, as a table.",
    ),
    "explain": (
        "gacprof.diagnosing.explain:explain",
        "Say why a size is slow, beside the next better one.",
    ),
    "diagnose": (
        "gacprof.diagnosing.diagnosis:diagnose",
        "Say what each size of a model costs, and the size to pad it to.",
    ),
    "plan": ("gacprof.planning.planner:plan", "Choose a size for every dim, within limits."),
    "pareto": ("gacprof.planning.pareto:pareto", "Set plans over several budgets side by side."),
    "realign": ("gacprof.realigning.realign:realign", "Write a checkpoint anew with other sizes."),
    "verify": ("gacprof.check.verify:verify", "Say whether two models are the same function."),
    "bench": ("gacprof.check.bench:bench", "Time models side by side."),
    "perplexity": (
        "gacprof.check.perplexity:perplexity",
        "Compare models by perplexity on a text.",
    ),
    "report": (
        "gacprof.reporting.page:report",
        "Write one HTML page of what the other verbs left.",
    ),
    "compress": (
        "gacprof.compress.compress:compress",
        "Compress a model to sizes served well.",
    ),
    "export": (
        "gacprof.export.export:export",
        "Write a folder that transformers and vLLM load.",
    ),
}
"""Verb: the function, imported when it is called, and the first line of its docstring."""

PACKAGE = Path(__file__).parents[1]

OPTION_NAMES = {"source": ("--map", "--gpu")}
"""Options whose name is not their parameter's: a source of sizes is a map or a GPU's name."""

WRITABLE = (str, int, float, bool, Path, type(None))
"""Types that a word on a command line can stand for."""


def load_verb(verb: str) -> Callable[..., Any]:
    """Import the public function of a verb."""
    module, _, name = VERBS[verb][0].partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def help_text(verb: str) -> str:
    """Return the usage and the docstring of a verb, read from its source without an import.

    For an install that lacks the packages which the verb needs.
    """
    module, _, name = VERBS[verb][0].partition(":")
    source = PACKAGE.parent.joinpath(*module.split(".")).with_suffix(".py")
    statements = ast.parse(source.read_text(encoding="utf-8")).body
    functions = {node.name: node for node in statements if isinstance(node, ast.FunctionDef)}
    arguments = functions[name].args
    words = [argument.arg.upper() for argument in arguments.args]
    options = [f"[--{argument.arg.replace('_', '-')}]" for argument in arguments.kwonlyargs]
    usage = " ".join(["Usage: gacprof", verb, *words, *options])
    return f"{usage}\n\n{ast.get_docstring(functions[name])}"


def command(verb: str) -> Callable[..., Any]:
    """The function of a verb with annotations that a command line can write.

    A parameter that takes ``Inventory | Path | str`` in Python takes a word here: of each union
    only the types in :data:`WRITABLE`, literals and sequences of them are kept.
    """
    function = load_verb(verb)
    hints = typing.get_type_hints(function)
    parameters = []
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = writable(hints[name])
        if annotation is not None:
            annotation = Annotated[annotation, Parameter(name=OPTION_NAMES.get(name))]
            parameters.append(parameter.replace(annotation=annotation))

    @functools.wraps(function)
    def run(*values: Any, **options: Any) -> Any:
        return function(*values, **options)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def whole_number(_: Any, tokens: Sequence[Any]) -> int:
    """Read a word as a whole number; cyclopts alone would round 1.5."""
    return int(tokens[0].value)


def writable(annotation: Any) -> Any:
    """The part of a type that a word on a command line can stand for; None where there is none.

    A sequence becomes a tuple, which takes a single value's place; mappings are left out.
    """
    origin = typing.get_origin(annotation)
    if origin in (Union, types.UnionType):
        parts = [writable(part) for part in typing.get_args(annotation)]
        parts = [part for part in parts if part is not None]
        several = [part for part in parts if typing.get_origin(part) is tuple]
        parts = [*several, *(part for part in parts if not several or part is types.NoneType)]
        return functools.reduce(lambda a, b: a | b, parts) if parts != [types.NoneType] else None
    if annotation is int:
        return Annotated[int, Parameter(converter=whole_number)]
    if origin is Literal or annotation in WRITABLE:
        return annotation
    if origin in (tuple, list, Sequence) and not isinstance(annotation, Mapping):
        item = writable(typing.get_args(annotation)[0])
        return tuple[item, ...] if item is not None else None  # type: ignore[valid-type]
    return None


def __getattr__(name: str) -> Any:
    """Each verb's command as an attribute, made when it is asked for: ``verbs.map_build``."""
    verb = name.replace("_", " ")
    if verb not in VERBS:
        raise AttributeError(name)
    return command(verb)

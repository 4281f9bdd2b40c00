"""A function's signature and docstring as its source has them: help needs no torch, no pandas."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import typing
from collections import abc
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import gacprof

# of Sphinx: ``name`` and :func:`name`
MARKUP = re.compile(r"``|:\w+:(?=`)|`")
PARAMETER = re.compile(r"^(\w+)\n((?: {4}.*(?:\n|$))+)", re.MULTILINE)
COMMON = {**vars(builtins), **vars(typing), **vars(abc), "Path": Path}
"""Names that any source may use in an annotation."""


class Foreign(type):
    """A class that only its name is known of, as a package's that may not be installed."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return cls


class Source(Mapping[str, Any]):
    """The constants and types that a module of gacprof defines or imports, by name."""

    def __init__(self, module: str) -> None:
        path = Path(gacprof.__file__).parents[1].joinpath(*module.split("."))
        self.tree = ast.parse(path.with_suffix(".py").read_text(encoding="utf-8"))

    @cached_property
    def origins(self) -> dict[str, str]:
        """The module of each name that is imported from gacprof."""
        origins: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("gacprof."):
                origins |= {alias.name: str(node.module) for alias in node.names}
        return origins

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """The expression of each name at the module's head."""
        constants: dict[str, ast.expr] = {}
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                constants[node.targets[0].id] = node.value
        return constants

    def __getitem__(self, name: str) -> Any:
        if name in self.constants:
            return self.value(self.constants[name])
        if name in self.origins:
            return source_of(self.origins[name])[name]
        return COMMON.get(name) or Foreign(name, (), {})

    def __iter__(self) -> Iterator[str]:
        return iter(self.constants)

    def __len__(self) -> int:
        return len(self.constants)

    def value(self, expression: ast.expr) -> Any:
        """Evaluate a type or a constant."""
        code = compile(ast.Expression(expression), "<annotation>", "eval")
        return eval(code, {}, self)

    def function(self, name: str) -> ast.FunctionDef:
        for node in reversed(self.tree.body):  # the last one, behind its overloads
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node
        raise KeyError(name)

    def signature(self, function: ast.FunctionDef) -> inspect.Signature:
        """The parameters of a function, their types and defaults as objects."""
        arguments = function.args
        kinds = {argument.arg: inspect.Parameter.KEYWORD_ONLY for argument in arguments.kwonlyargs}
        written = [*arguments.args, *arguments.kwonlyargs]
        required = len(arguments.args) - len(arguments.defaults)
        defaults = [*[None] * required, *arguments.defaults, *arguments.kw_defaults]
        parameters = []
        for argument, default in zip(written, defaults, strict=True):
            kind = kinds.get(argument.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            value = inspect.Parameter.empty if default is None else self.value(default)
            hint = self.value(typing.cast("ast.expr", argument.annotation))
            parameters.append(inspect.Parameter(argument.arg, kind, default=value, annotation=hint))
        return inspect.Signature(parameters)


@cache
def source_of(module: str) -> Source:
    """The source of a module, read once."""
    return Source(module)


def paragraphs(docstring: str) -> list[str]:
    """The paragraphs before a docstring's sections, each on one line and without markup."""
    prose = docstring.partition("\n\nParameters\n---")[0].partition("\n\nReturns\n---")[0]
    return [" ".join(MARKUP.sub("", text).split()) for text in prose.split("\n\n")]


def parameter_texts(docstring: str) -> dict[str, str]:
    """What a docstring says of each parameter, on one line and without markup."""
    section = docstring.partition("\nParameters\n----------\n")[2].partition("\n\n")[0]
    texts = PARAMETER.findall(section)
    return {name: " ".join(MARKUP.sub("", text).split()) for name, text in texts}

"""A function's signature and docstring as its source has them: help needs no torch, no pandas."""

from __future__ import annotations

import ast
import builtins
import re
import typing
from collections import abc
from functools import cache
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


class Source(dict[str, Any]):
    """What a module of gacprof defines or imports, by name: constants, types, and functions without
    what is in them. Each is evaluated when it is first looked up."""

    def __init__(self, module: str) -> None:
        super().__init__()
        path = Path(gacprof.__file__).parents[1].joinpath(*module.split("."))
        file = path / "__init__.pyi" if path.is_dir() else path.with_suffix(".py")
        tree = ast.parse(file.read_text(encoding="utf-8"))
        self.definitions: dict[str, ast.stmt] = {}
        self.origins: dict[str, str] = {}  # the module of each name that is imported from gacprof
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                origin = f"gacprof.{node.module}" if node.level else str(node.module)
                if origin.startswith("gacprof."):
                    self.origins |= {alias.name: origin for alias in node.names}
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.definitions[node.targets[0].id] = node
            elif isinstance(node, ast.FunctionDef):
                node.body[1:] = [] if ast.get_docstring(node) else [ast.Pass()]
                self.definitions[node.name] = node

    def __missing__(self, name: str) -> Any:
        if name in self.definitions:
            module = ast.fix_missing_locations(ast.Module([self.definitions[name]], []))
            exec(compile(module, "<source>", "exec", dont_inherit=True), self)
            return self[name]
        if name in self.origins:
            return source_of(self.origins[name])[name]
        return COMMON.get(name) or Foreign(name, (), {})


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

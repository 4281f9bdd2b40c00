"""What Python files say, parsed and never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache

READERS = ("getattr", "hasattr", "getattr_iter")
PARTS = ("Layer", "Attention", "MLP", "Model", "ForCausalLM", "Mixer", "MoE", "Block")
"""Ends of the names that a class imports where it builds its layers of another file's."""


@cache
def parsed(source: str) -> ast.Module:
    """The tree of a file."""
    return ast.parse(source)


def strings_in(node: ast.AST) -> list[str]:
    """All texts below a node, in their order."""
    constants = [part for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return [part.value for part in constants if isinstance(part.value, str)]


def assigned(source: str, name: str) -> ast.expr:
    """What a file assigns to a name. Raises ``LookupError`` where it does not."""
    for statement in parsed(source).body:
        targets = [statement.target] if isinstance(statement, ast.AnnAssign) else []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return statement.value  # type: ignore[attr-defined, no-any-return]
    raise LookupError(f"the file assigns no {name}: look where it went")


def first_strings(source: str, name: str) -> dict[str, str]:
    """The keys of a dict that a file assigns, each with the first text of its value."""
    table = assigned(source, name)
    assert isinstance(table, ast.Dict), f"{name} is no dict any more"
    rows = zip(table.keys, table.values, strict=True)
    return {key.value: strings_in(value)[0] for key, value in rows if isinstance(key, ast.Constant)}


def pairs(source: str, name: str) -> Iterator[tuple[str, list[str]]]:
    """The first text and the others of each tuple in an ``OrderedDict([(…), …])``."""
    for node in ast.walk(assigned(source, name)):
        if isinstance(node, ast.List):
            for row in node.elts:
                if isinstance(row, ast.Tuple):
                    first, *others = strings_in(row)
                    yield first, others


def entry_classes(source: str) -> list[str]:
    """The names that SGLang's ``EntryClass`` of a file holds."""
    try:
        value = assigned(source, "EntryClass")
    except LookupError:
        return []
    return [node.id for node in ast.walk(value) if isinstance(node, ast.Name)]


def names_in(sources: Mapping[str, str], path: str) -> set[str]:
    """The names that a module reads of a config, and those of the modules it takes layers from."""
    named: set[str] = set()
    for file in files_of(sources, path):
        named |= config_names(sources[file])
    return named


def files_of(sources: Mapping[str, str], path: str) -> set[str]:
    """The files of a module, and of the modules that it takes layers from."""
    seen: set[str] = set()
    waiting = files_at(sources, path)
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            for module in taken_from(sources[file], file):
                waiting += files_at(sources, module)
    return seen


def files_at(sources: Mapping[str, str], path: str) -> list[str]:
    """The file of a module, or all files of a package."""
    if f"{path}.py" in sources:
        return [f"{path}.py"]
    return [file for file in sources if file.startswith(f"{path}/")]


@cache
def config_names(source: str) -> frozenset[str]:
    """The attributes of what is called a config, and the texts that it is asked for."""
    names: set[str] = set()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Attribute):
            owner = getattr(node.value, "id", getattr(node.value, "attr", ""))
            if "config" in owner:
                names.add(node.attr)
        elif isinstance(node, ast.Call):
            function = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if function in READERS or function == "get":
                names.update(text for argument in node.args for text in strings_in(argument))
    return frozenset(names)


@cache
def taken_from(source: str, file: str) -> frozenset[str]:
    """The modules, as paths, that a file imports layers of a model from."""
    modules: set[str] = set()
    for node in ast.walk(parsed(source)):
        if not isinstance(node, ast.ImportFrom):
            continue
        parts = (node.module or "").split(".")
        if node.level:
            parts = [*file.split("/")[: -node.level], *parts]
        path = "/".join(filter(None, parts))
        names = [alias.name for alias in node.names]
        modules.update(f"{path}/{name}" for name in names)  # where a name is a module's
        if any(name.endswith(PARTS) or "Decoder" in name for name in names):
            modules.add(path)
    return frozenset(modules)

"""The house: a room imports what stands below it, the core never imports the extras."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "gacprof"

FLOORS = [
    "core",
    "stats",
    "solver",
    "operators",
    "devices",
    "kernels",
    "demands",
    "checkpoint",
    "cliffmap",
    "rules",
    "elsewhere",
    "linting",
    "sweeping",
    "diagnosing",
    "explain",
    "planning",
    "resizing",
    "evaluation",
    "report",
    "extras.compress",
    "extras.evidence",
    "extras.serve",
    "extras.fleet",
    "api",
    "demo",
    "cli",
]
"""Rooms from the ground up: each may import those before it."""
VERSION = "gacprof"
"""The package itself: all that a room may take of it is its version."""


def room_of(module: str) -> str:
    parts = module.split(".")[1:]
    if parts[:1] == ["extras"]:
        return ".".join(parts[:2])
    return parts[0] if parts else VERSION


def imports(path: Path) -> Iterator[str]:
    """Modules of ours that a file imports, at its top or when a function runs; what only a type
    checker reads is left out."""

    def walk(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.ImportFrom) and (child.module or "") == VERSION:
                yield from (f"{VERSION}.{name.name}" for name in child.names)
            elif isinstance(child, ast.ImportFrom):
                yield child.module or ""
            elif isinstance(child, ast.Import):
                yield from (name.name for name in child.names)
            yield from walk(child)

    return (name for name in walk(ast.parse(path.read_text())) if name.split(".")[0] == VERSION)


def rooms() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if "suites" not in name:
            found.append((room_of(name), path))
    return found


def test_every_room_stands_on_a_floor():
    known = {*FLOORS, VERSION, "extras", "maps", "__main__"}
    assert {room for room, _ in rooms()} <= known


@pytest.mark.parametrize("room", [floor for floor in FLOORS if floor not in ("api", "cli", "demo")])
def test_a_room_imports_what_stands_below_it(room: str):
    below = {*FLOORS[: FLOORS.index(room) + 1], VERSION}
    above = {
        f"{path.relative_to(ROOT)} imports {name}"
        for own, path in rooms()
        if own == room
        for name in imports(path)
        if room_of(name) not in below and name != f"{VERSION}.__version__"
    }
    assert above == set()

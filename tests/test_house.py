"""The house: a room imports what stands below it, the core never imports the extras."""

from __future__ import annotations

import ast
import collections
import re
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
    "explaining",
    "planning",
    "resizing",
    "evaluation",
    "reporting",
    "extras.compress",
    "extras.evidence",
    "extras.serve",
    "extras.fleet",
    "api",
    "demonstrating",
    "cli",
]
"""Rooms from the ground up: each may import those before it."""
VERSION = "gacprof"
"""The package itself: all that a room may take of it is its version."""


SOURCES = {"CliffMap", "RuleTable", "ElsewhereTable", "MeasuredView", "RuleView"}
OWN_BASIS = {"explaining", "cli.evidence"}
"""Causes and backends have a basis of their own."""


NAMED_TWICE = {
    "Change": "in the schemas of two results: a dim's new size, a perplexity's",
    "Check": "in the schemas of maps and of exports",
    "Tier": "in the schemas of maps and of rule tables",
    "Device": "in the schema of maps, and the base of devices that others write",
    "Contents": "what a page shows, and a checkpoint's",
}


def room_of(module: str) -> str:
    parts = module.split(".")[1:]
    if parts[:1] == ["extras"]:
        return ".".join(parts[:2])
    return parts[0] if parts else VERSION


def imports(path: Path) -> Iterator[str]:
    """Modules and names of ours that a file imports: at its top, when a function runs, or for types
    alone."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def rooms() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = module_of(path)
        if "suites" not in name:
            found.append((room_of(name), path))
    return found


def test_every_room_stands_on_a_floor():
    known = {*FLOORS, VERSION, "extras", "maps", "__main__"}
    assert {room for room, _ in rooms()} <= known


@pytest.mark.parametrize(
    "room", [floor for floor in FLOORS if floor not in ("api", "cli", "demonstrating")]
)
def test_a_room_imports_what_stands_below_it(room: str):
    below = {*FLOORS[: FLOORS.index(room) + 1], VERSION}
    above = {
        f"{path.relative_to(ROOT)} imports {name}"
        for own, path in rooms()
        if own == room
        for name in imports(path)
        if name.startswith(f"{VERSION}.") and name != f"{VERSION}.__version__"
        if room_of(name) not in below
    }
    assert above == set()


def imported() -> dict[str, set[str]]:
    """The other files that each of our files imports, as modules."""
    paths = {module_of(path): path for _, path in rooms()}
    return {
        module: {
            found
            for name in imports(path)
            for found in [name if name in paths else name.rpartition(".")[0]]
            if found in paths and found not in (module, VERSION)
        }
        for module, path in paths.items()
    }


def test_files_import_each_other_in_no_circle():
    graph = {module: names for module, names in imported().items() if module != VERSION}
    reached = {module: reachable(graph, module) for module in graph}
    circles = {
        " ".join(sorted(m.removeprefix(f"{VERSION}.") for m in met if module in reached[m]))
        for module, met in reached.items()
        if module in met
    }
    assert circles == set()


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    met: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph[ahead.pop()] - met
        met |= new
        ahead += new
    return met


def test_the_architecture_page_lists_the_rooms_in_their_order():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^  (\w+)/ ", text.split("## Rooms")[1], flags=re.M)
    order = dict.fromkeys(floor.split(".")[0] for floor in reversed(FLOORS))
    assert listed == [*order, "maps"]


def asked_of_sources(text: str) -> Iterator[str]:
    """Where a file decides by a source's basis, or tests for its type."""
    for node in ast.walk(ast.parse(text)):
        tests: list[ast.expr] = []
        match node:
            case ast.If() | ast.IfExp() | ast.While() | ast.Assert():
                tests = [node.test]
            case ast.comprehension():
                tests = node.ifs
            case ast.BoolOp():
                tests = node.values
            case ast.UnaryOp(op=ast.Not()):
                tests = [node.operand]
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, types]):
                if SOURCES & {n.id for n in ast.walk(types) if isinstance(n, ast.Name)}:
                    yield ast.unparse(node)
        for part in (part for test in tests for part in ast.walk(test)):
            match part:
                case (
                    ast.Attribute(attr="basis")
                    | ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant("basis"), *_])
                    | ast.Subscript(slice=ast.Constant("basis"))
                ):
                    yield ast.unparse(part)


def test_only_the_rooms_of_sources_decide_by_what_a_source_is():
    """All others ask what it knows: times, any size, a verdict."""
    for asked in ("1 if plan.basis else 0", "not d.get('basis')", "isinstance(s, (A, CliffMap))"):
        assert list(asked_of_sources(asked))
    found = {
        f"{module_of(path)}: {asked}"
        for room, path in rooms()
        if room not in ("cliffmap", "rules", "elsewhere")
        and not OWN_BASIS & {room, module_of(path).removeprefix(f"{VERSION}.")}
        for asked in asked_of_sources(path.read_text(encoding="utf-8"))
    }
    pages = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.j2"))
    assert found == set() == set(re.findall(r"\{%-? *(?:el)?if[^%]*\bbasis\b", pages))


def test_a_class_name_names_one_class():
    names = collections.Counter(
        node.name
        for _, path in rooms()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, times in names.items() if times > 1} == NAMED_TWICE.keys()

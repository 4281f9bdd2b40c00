"""The order of the packages, what a plain install imports, and the command line's size."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import gacprof
from gacprof.cli.source import source_of
from gacprof.cli.verbs import VERBS, command, docstring_of

PACKAGE = Path(gacprof.__file__).parent
ASVD = Path(__file__).parent / "fixtures" / "checkpoints" / "asvd_mha_r1"
ORDER = (
    "core",
    "hardware",
    "operators",
    "devices",
    "kernels",
    "checkpoint",
    "workload",
    "tracing",
    "cliffmap",
    "sweeping",
    "diagnosing",
    "lint",
    "planning",
    "realigning",
    "check",
    "compress",
    "export",
    "virtual",
    "reporting",
    "cli",
)
"""Packages, each of which may import what stands before it."""
HEAVY = {"torch", "numpy", "scipy", "pandas", "matplotlib", "transformers", "pyarrow"}
AT_HAND = [verb for verb in VERBS if verb != "fleet" or find_spec("ray")]
"""Verbs whose extra is installed for the tests."""
LIGHT_VERBS = ("lint", "gpus", "dispatch", "map show", "trace", "diagnose", "explain")
"""Verbs of a plain install."""


def imports_of(path: Path) -> set[str]:
    """Modules of gacprof that a file imports, at its top or inside a function."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gacprof."):
            modules.add(str(node.module))
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names if alias.name.startswith("gacprof.")}
    return modules


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_what_stands_before_it(package: str) -> None:
    allowed = set(ORDER[: ORDER.index(package) + 1])
    for path in sorted((PACKAGE / package).rglob("*.py")):
        imported = {module.split(".")[1] for module in imports_of(path)}
        assert imported <= allowed, f"{path} imports {sorted(imported - allowed)}"


@pytest.mark.parametrize("package", ORDER)
def test_a_package_names_modules_that_are_there(package: str) -> None:
    docstring = str(import_module(f"gacprof.{package}").__doc__)
    for name in re.findall(r"``(\w+)``", docstring):
        folder = PACKAGE / package
        assert (folder / f"{name}.py").exists() or name in VERBS, name


def test_only_devices_and_operators_touch_cuda() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).parts[0] not in ("operators", "devices", "virtual"):
            assert "torch.cuda" not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize("verb", LIGHT_VERBS)
def test_a_plain_install_has_the_light_verbs(verb: str) -> None:
    module = source_of("gacprof").origins[VERBS[verb]]
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & {HEAVY!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_plan_by_rules_imports_nothing_that_it_does_not_need() -> None:
    plan = f"gacprof.plan({str(ASVD)!r}, 'h100', objective='pad')"
    heavy = HEAVY - {"numpy"}
    code = f"import sys, gacprof; {plan}; print(*sorted(set(sys.modules) & {heavy!r}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("verb", AT_HAND)
def test_help_begins_as_the_docstring_does(verb: str) -> None:
    assert inspect.getdoc(getattr(gacprof, VERBS[verb])) == docstring_of(verb)


def test_verbs_and_options_stay_few() -> None:
    options = sum(len(inspect.signature(command(verb)).parameters) for verb in AT_HAND)
    assert len(VERBS) <= 22
    assert options <= 136


def test_a_verb_stays_a_function_where_a_package_has_its_name() -> None:
    import_module("gacprof.lint.lint")
    assert callable(gacprof.lint)


def test_public_names_are_there() -> None:
    for name in set(gacprof.__all__) - {"sweep_fleet"}:
        assert getattr(gacprof, name) is not None

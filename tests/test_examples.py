"""Examples in docstrings and pages run, and print what they show."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

import gacprof

PACKAGE = Path(gacprof.__file__).parent
ROOT = PACKAGE.parent
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


WITH_EXAMPLES = [
    module_name(path)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8")
]
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if ">>> " in page.read_text("utf-8")]


@pytest.fixture(autouse=True)
def beside_the_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder to write in, from which examples read the repository's checkpoints."""
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples_in_docstrings(module: str) -> None:
    names = {"gacprof": gacprof}
    outcome = doctest.testmod(import_module(module), extraglobs=names, optionflags=FLAGS)
    assert outcome.attempted and not outcome.failed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_in_pages(page: Path) -> None:
    text = page.read_text(encoding="utf-8").replace("```", "")  # the end of a block is no output
    test = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    outcome = doctest.DocTestRunner(optionflags=FLAGS).run(test)
    assert outcome.attempted and not outcome.failed

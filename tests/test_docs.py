"""Links, anchors, commands and short examples of the documents are what exists."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import gacprof
from gacprof.cli.app import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(DOCS.glob("**/*.md")),
    *sorted(ROOT.glob("reports/**/*.md")),
]
LINK = re.compile(r"\]\(([^()\s]+)\)")


def prose(page: Path) -> str:
    """The page without fenced code, in which brackets are no links."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and the site make of a page's headings."""
    made = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), flags=re.M):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        made.add(re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-"))
    return made


def links(page: Path) -> list[str]:
    return [to for to in LINK.findall(prose(page)) if not re.match(r"[a-z]+:", to)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_to_a_heading_in_it(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{link}: no such file"
        assert target.is_relative_to(ROOT), f"{link} leads out of the repository"
        assert not anchor or anchor in anchors(target), f"{link}: no such heading"


def test_every_page_is_in_the_index() -> None:
    linked = {link.partition("#")[0] for link in links(DOCS / "index.md")}
    assert {page.name for page in DOCS.glob("*.md")} - {"index.md"} <= linked


def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    nav = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), flags=re.M)
    made = {"commands.md", "python.md"}  # by tools/docs_site.py
    assert sorted(nav) == sorted(
        made | {str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md")}
    )


def test_readme_stays_under_120_lines() -> None:
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) < 120


def test_files_that_code_names_exist() -> None:
    """Messages and docstrings send readers to pages by their path."""
    sources = [
        p for folder in ("gacprof", "tools", "benchmarks") for p in ROOT.glob(f"{folder}/**/*")
    ]
    for source in sources:
        if source.suffix in (".py", ".toml"):
            for named in re.findall(r"\b(?:docs|reports)/[\w-]+\.md", source.read_text("utf-8")):
                assert (ROOT / named).is_file(), f"{source.relative_to(ROOT)} names {named}"


def commands(page: Path) -> Iterator[tuple[Any, str]]:
    """The verb and the text of every ``gacprof`` command of a page."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    fenced = "\n".join(re.findall(r"^```.*?^```", text, flags=re.M | re.S))
    found = re.findall(r"(?:\$ |^|&& )gacprof ([a-z][^\n&|#]*)", fenced, flags=re.M)
    inline = re.findall(r"`gacprof ([a-z][^`]*)`", prose(page))
    for words in [*found, *inline]:
        verb: Any = typer.main.get_command(app)
        for word in words.split():
            if not hasattr(verb, "list_commands"):
                break
            verb = verb.get_command(None, word)
            assert verb is not None, f"gacprof {words}: no such verb"
        yield verb, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_has_a_verb_and_options_that_exist(page: Path) -> None:
    for verb, words in commands(page):
        known = {name for p in verb.params for name in [*p.opts, *p.secondary_opts]}
        asked = set(re.findall(r"(?<!\S)(--[a-z-]+)", words)) - {"--help"}
        assert asked <= known, f"gacprof {words}: no {asked - known}"


@pytest.mark.parametrize("name", ["kernels.md", "write-a-compressor.md"])
def test_sessions_print_what_they_show(name: str) -> None:
    blocks = re.findall(r"^```py\w+\n(>>>.*?)^```", (DOCS / name).read_text("utf-8"), re.M | re.S)
    assert blocks
    parsed = doctest.DocTestParser().get_doctest(
        "\n".join(blocks), {"gacprof": gacprof}, name, None, 0
    )
    assert not doctest.DocTestRunner().run(parsed).failed

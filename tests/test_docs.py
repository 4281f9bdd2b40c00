"""The documentation: commands parse, links lead somewhere, the code that it names is there."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from gacprof.cli.app import main, make_app
from gacprof.cli.verbs import VERBS

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
LINKED = [*PAGES, *sorted((ROOT / "reports").rglob("*.md"))]
WORDS = 9490


def code_blocks(text: str) -> Iterator[tuple[str, str]]:
    """The language and the code of each block."""
    for match in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield match[1], match[2]


def commands(text: str) -> Iterator[str]:
    """The command lines of ``gacprof`` in a page: in blocks, and those in the running text."""
    for language, code in code_blocks(text):
        if language in ("", "sh", "console"):
            for line in code.splitlines():
                yield from re.findall(r"(?:^\$ |^)(gacprof .+)", line)
    yield from re.findall(r"`(gacprof [^`\n]+)`", text)


def names_a_verb(words: list[str]) -> bool:
    return words[0] in VERBS or " ".join(words[:2]) in VERBS


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_parses(page: Path) -> None:
    for line in commands(page.read_text(encoding="utf-8")):
        words = shlex.split(line, comments=True)[1:]
        if ">" in words:
            words = words[: words.index(">")]
        words = [word for word in words if word not in ("--json", "--version", "…")]
        if not words:
            continue
        assert names_a_verb(words), line
        verb = words[0] if words[0] in VERBS else " ".join(words[:2])
        if len(words) > len(verb.split()):
            if verb == "fleet":
                pytest.importorskip("ray")
            words = words[len(verb.split()) :]
            make_app(verb).parse_args(words, print_error=False, exit_on_error=False)


def printed_examples(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a console block that needs no file of a user's, and what is printed of it."""
    for language, code in code_blocks(text):
        for example in code.split("$ ")[1:] if language == "console" else ():
            command, *lines = example.splitlines()
            if lines and not re.search(r"[A-Z]{3}|runs/|(config|trace)\.json", command):
                yield command, lines


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_print_what_the_page_says(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    for command, lines in printed_examples(page.read_text(encoding="utf-8")):
        with pytest.raises(SystemExit):
            main(shlex.split(command, comments=True)[1:])
        shown = " ".join(capsys.readouterr().out.split())
        for line in lines:
            start = " ".join(line.partition("…")[0].split())
            assert start in shown, (command, line)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.name}: {target}"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{page.name}: {target}"


def defined_names(path: Path) -> set[str]:
    """Functions, classes, methods and constants of a module."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:gacprof|tools|tests|reports|sweeps)/[\w./-]+)`", text):
        if not re.search(r"[A-Z]{4}", path):  # ENGINE, NAME stand for any
            assert (ROOT / path).exists(), path


def test_functions_that_the_architecture_names_are_there() -> None:
    """In its tables names stand behind their modules."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    for row in re.findall(r"^\|.*\.py.*$", text, re.MULTILINE):
        spans = re.findall(r"`([\w./]+)`", row.split("|")[2])
        modules = [ROOT / "gacprof" / span for span in spans if span.endswith(".py")]
        names = {span for span in spans if not span.endswith(".py")}
        assert names <= set().union(*map(defined_names, modules)), row


def test_the_docs_stay_short() -> None:
    assert len(DOCS) <= 14
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in DOCS) <= WORDS
    assert len((ROOT / "docs/architecture.md").read_text(encoding="utf-8").splitlines()) <= 100
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_python_in_a_page_is_python(page: Path) -> None:
    for language, code in code_blocks(page.read_text(encoding="utf-8")):
        if language == "python":
            ast.parse(code)


@pytest.mark.parametrize("page", ["cliff-map.md", "write-a-compressor.md"])
def test_python_in_a_page_that_needs_no_other_file_runs(
    page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    for language, code in code_blocks((ROOT / "docs" / page).read_text(encoding="utf-8")):
        if language == "python":
            exec(code, names)


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_what_a_notebook_imports_is_there(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    lines = "".join("".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code")
    imports = [line for line in lines.splitlines() if re.match(r"(from|import) gacprof", line)]
    assert imports
    exec("\n".join(imports), {})


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_a_notebook_runs(path: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT)}},
    ).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)

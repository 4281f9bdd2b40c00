"""Hooks of ``make docs``: pages made of ``--help`` and docstrings, and links out of ``docs/``.

mkdocs calls the functions by their names (https://www.mkdocs.org/user-guide/configuration/#hooks).
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import gacprof
from gacprof.cli.app import app

REPOSITORY = "https://github.com/gacprof/gacprof/blob/main/"
OUTSIDE = re.compile(r"\]\((?:\.\./)([^)#\s]+)([^)\s]*)\)")
"""A link from a page of ``docs/`` to a file beside that folder."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reference, which lies in no file of the repository."""
    for name, text in (("commands.md", commands()), ("python.md", functions())):
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to reports, code and fixtures lead to the repository."""
    if len(PurePosixPath(page.file.src_uri).parts) > 1:
        return markdown
    return OUTSIDE.sub(rf"]({REPOSITORY}\1\2)", markdown)


def functions() -> str:
    """The public names: signature and docstring as Python has them, since requests write theirs."""
    names = (name for name in gacprof.__all__ if not name.startswith("_"))
    return "\n".join(["# Python", "", *(line for name in names for line in _public(name))]) + "\n"


def _public(name: str) -> Iterator[str]:
    found: Any = getattr(gacprof, name)
    yield from (f"## gacprof.{name}", "", "```python", f"{name}{_signature(found)}", "```", "")
    yield from ("```text", inspect.getdoc(found) or "", "```", "")
    if inspect.isclass(found) and not issubclass(found, Exception):
        own = ((n, m) for n, m in vars(found).items() if not n.startswith("_"))
        for method, defined in own:
            if summary := (inspect.getdoc(defined) or "").partition("\n\n")[0]:
                yield f"- `{method}`: {_plain(summary)}"
        yield ""


def _signature(found: Any) -> str:
    """One parameter a line where there are many."""
    try:
        signature = inspect.signature(found)
    except ValueError:
        return ""
    text = str(signature).replace("'", "")
    parts = [str(parameter).replace("'", "") for parameter in signature.parameters.values()]
    return text if len(text) < 80 else "(\n    " + ",\n    ".join(parts) + ",\n)"


def commands() -> str:
    """Every verb with its arguments and options."""
    return "\n".join(["# Commands", "", *_command("gacprof", typer.main.get_command(app))]) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    if hasattr(
        command, "list_commands"
    ):  # a group; the verbs of gacprof are imported when asked for
        for verb in command.list_commands(None):
            yield from _command(f"{name} {verb}", command.get_command(None, verb))
        return
    yield from (f"## {name}", "", _plain(command.help), "", "| option | |", "|---|---|")
    for asked in command.params:
        names = ", ".join(f"`{option}`" for option in [*asked.opts, *asked.secondary_opts])
        yield f"| {names} {_plain(asked.metavar)} | {_plain(asked.help)} |"
    yield ""


def _plain(text: str | None) -> str:
    """Text for a cell: one line, nothing that Markdown would read as its own."""
    return re.sub(r"([\\|<>*_\[\]])", r"\\\1", " ".join((text or "").split()))

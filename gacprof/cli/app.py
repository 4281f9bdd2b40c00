"""The command line: parse, call, print.

Exit codes: 0 fine, 1 findings (a misaligned model, a failed verification), 2 bad input, 130
interrupted. Any other error is a fault of gacprof: it shows its traceback and ends with 70.
"""

from __future__ import annotations

import io
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import cyclopts

from gacprof import __version__
from gacprof.cli.verbs import VERBS, help_text
from gacprof.core.errors import INSTALL, GacprofError
from gacprof.core.files import plain
from gacprof.reporting.sections import Section, section_of

EXTRAS = {
    **dict.fromkeys(("torch", "scipy", "pandas", "matplotlib", "jinja2"), "models"),
    "pyarrow": "models",
    "transformers": "models",
    "huggingface_hub": "hub",
    "ray": "fleet",
    "ncu_report": "ncu",
}
"""A package that a plain install leaves out: the extra that brings it. ``models`` holds
``measure``, and is what a verb that builds a model needs besides."""

CRASHED = 70
"""Exit code of a fault of gacprof: EX_SOFTWARE of BSD's sysexits.h, which no verdict has."""

HELP = {"--help", "-h"}


def make_app() -> cyclopts.App:
    """The verbs, each imported when it is called."""
    app = cyclopts.App(
        name="gacprof",
        help="Which tensor sizes your GPU serves well, why, and how to move a model onto them.",
        help_epilogue="Every verb takes --json: print the result as JSON.",
        version=__version__,
        help_format="plaintext",
        help_formatter="plain",
        default_parameter=cyclopts.Parameter(consume_multiple=True, negative_iterable=()),
        result_action="return_value",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
    )
    maps = cyclopts.App(name="map", help="Build and read cliff maps.")
    app.command(maps)
    for verb, (_, summary) in VERBS.items():
        group, _, name = verb.rpartition(" ")
        lazily = f"gacprof.cli.verbs:{verb.replace(' ', '_')}"
        {"map": maps, "": app}[group].command(lazily, name=name, help=summary)
    return app


def main(arguments: list[str] | None = None) -> None:
    """Run a command line and exit; what a user can mend is one line on stderr."""
    words = sys.argv[1:] if arguments is None else arguments
    before, separator, command = _split(words)
    as_json = "--json" in before
    words = [word for word in before if word != "--json"] + separator + command
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path need not be text: JSON's own escapes
        sys.stdout.reconfigure(errors="backslashreplace")
    verb = " ".join(words[: 1 + (words[:1] == ["map"])])
    if verb not in {*VERBS, "", "map", "map --help", "map -h", "--version", *HELP}:
        sys.exit(fail(f"there is no verb '{verb}': use one of {', '.join(sorted(VERBS))}", 2))
    try:
        code = show(make_app()(words), as_json)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = fail("interrupted", 130)
    except BrokenPipeError:  # the reader went away: | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except (GacprofError, cyclopts.CycloptsError) as error:
        code = fail(str(error), 2)
    except OSError as error:
        code = fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 2)
    except Exception as error:
        package = str(getattr(error, "name", "")).partition(".")[0]
        if not isinstance(error, ImportError) or package not in EXTRAS:
            traceback.print_exc()
            code = CRASHED
        elif HELP & set(before):
            code = show(help_text(verb), as_json=False)
        else:
            code = fail(f"this needs {package}: {INSTALL.format(EXTRAS[package])}", 2)
    sys.exit(code)


def _split(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Words before ``--``, the ``--`` itself, and another program's command behind it."""
    end = [*words, "--"].index("--")
    return words[:end], words[end : end + 1], words[end + 1 :]


def show(result: Any, as_json: bool) -> int:
    """Print a verb's result; 1 where it says that something is wrong (``ok`` is false)."""
    if isinstance(result, int | None):
        return result or 0
    if as_json:
        print(json.dumps(json_of(result), indent=1, ensure_ascii=False))
    else:
        from gacprof.cli.app import print_result

        print_result(result)
    return 0 if getattr(result, "ok", True) else 1


def json_of(result: Any) -> Any:
    """A result as JSON: a table's rows, else its fields behind the name of its schema."""
    if hasattr(result, "to_dict"):
        return result.astype(object).where(result.notna(), None).to_dict("records")
    data = plain(result)
    if isinstance(data, dict):
        module = sys.modules[type(result).__module__]
        schema = getattr(module, "SCHEMA", f"gacprof.{type(result).__name__}/1")
        return {"schema": schema, **data}
    return data


def fail(message: str, code: int) -> int:
    print(f"gacprof: {message}", file=sys.stderr)
    return code


FILE_WIDTH = 160
"""Characters of a line where the output is no terminal."""


def print_result(result: Any) -> None:
    """Print a result: in its own words where its class has some, else as its section."""
    if "__str__" in vars(type(result)) or isinstance(result, str | Path):
        print(result)
    else:
        print_section(section_of(result))


def print_section(section: Section) -> None:
    """Print the headline, the table and the remarks; sentences are wrapped for a terminal only."""
    from rich.console import Console
    from rich.table import Table

    width = None if sys.stdout.isatty() else FILE_WIDTH
    console = Console(width=width, highlight=False, markup=False)
    if section.headline:
        console.print(section.headline, soft_wrap=width is not None)
    if section.rows:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in section.columns:
            table.add_column(column, overflow="fold")
        for row in section.rows:
            table.add_row(*row)
        console.print(table)
    for remark in section.remarks:
        console.print(remark, soft_wrap=width is not None)

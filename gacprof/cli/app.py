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
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cyclopts

from gacprof import __version__
from gacprof.cli.verbs import VERBS, help_text, summary
from gacprof.core.errors import INSTALL, GacprofError
from gacprof.core.formatting import one_line
from gacprof.reporting.sections import Section, json_of, section_of

EXTRAS = {
    **dict.fromkeys(("torch", "numpy", "scipy", "pandas", "matplotlib", "jinja2"), "models"),
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

FILE_WIDTH = 160
"""Characters of a line where the output is no terminal."""

HELP = {"--help", "-h"}


def make_app(verbs: Iterable[str] = VERBS) -> cyclopts.App:
    """Make the command line of some verbs, each imported when it is called."""
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
    for verb in verbs:
        group, _, name = verb.rpartition(" ")
        lazily = f"gacprof.cli.verbs:{verb.replace(' ', '_')}"
        (maps if group else app).command(lazily, name=name, help=summary(verb))
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
        app = make_app([verb] if verb in VERBS else VERBS)
        code = show(app(words), as_json)
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
        print_result(result)
    return 0 if getattr(result, "ok", True) else 1


def fail(message: str, code: int) -> int:
    print(f"gacprof: {message}", file=sys.stderr)
    return code


def print_result(result: Any) -> None:
    """Print a result as its section; a text or a path as it is."""
    if isinstance(result, str | Path):
        print(result)
    else:
        print_section(section_of(result))


def print_section(section: Section) -> None:
    """Print the headline, the table and the remarks; sentences are wrapped for a terminal only.

    Texts may be a stranger's: control characters are escaped.
    """
    from rich.console import Console
    from rich.table import Table

    width = None if sys.stdout.isatty() else FILE_WIDTH
    console = Console(width=width, highlight=False, markup=False)
    if section.headline:
        console.print(one_line(section.headline), soft_wrap=width is not None)
    if section.rows:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in section.columns:
            table.add_column(column, overflow="fold")
        for row in section.rows:
            table.add_row(*map(one_line, row))
        console.print(table)
    for remark in section.remarks:
        console.print(one_line(remark), soft_wrap=width is not None)

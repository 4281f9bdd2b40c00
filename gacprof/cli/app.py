"""The command line: parse, call, print.

Exit codes: 0 fine, 1 findings (a misaligned model, a failed verification), 2 bad input, 130
interrupted, 141 the reader of a pipe went away, 70 a fault of gacprof, which shows its traceback.
"""

import io
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import cyclopts

from gacprof import __version__
from gacprof.cli.verbs import VERBS, command, help_text, summary
from gacprof.core.errors import INSTALL, GacprofError
from gacprof.core.formatting import one_line
from gacprof.reporting.sections import json_of, section_of

IN_MODELS = ("torch", "scipy", "pandas", "matplotlib", "jinja2", "pyarrow", "transformers")
EXTRAS = dict.fromkeys(IN_MODELS, "models")
EXTRAS |= {"huggingface_hub": "hub", "ray": "fleet", "ncu_report": "ncu"}
"""A package that a plain install leaves out: the extra that brings it."""

CRASHED = 70  # EX_SOFTWARE of BSD's sysexits.h
FILE_WIDTH = 160  # characters of a line where the output is no terminal
HELP = {"--help", "-h"}
ABOUT = "Which tensor sizes your GPU serves well, why, and how to move a model onto them."


def make_app(verb: str) -> cyclopts.App:
    """Make the command line of a verb, whose function and all that it needs are imported."""
    app = cyclopts.App(
        name=f"gacprof {verb}",
        help_format="plaintext",
        help_formatter="plain",
        help_epilogue="With --json the result is printed as JSON.",
        version=__version__,
        default_parameter=cyclopts.Parameter(consume_multiple=True, negative_iterable=()),
        result_action="return_value",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
    )
    app.default(command(verb))
    for option in ("--help", "--version"):  # cyclopts lists them as commands amid the options
        app[option].show = False
    return app


def main(arguments: list[str] | None = None) -> None:
    """Run a command line and exit; what a user can mend is one line on stderr."""
    words = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path need not be text: JSON's own escapes
        sys.stdout.reconfigure(errors="backslashreplace")
    end = [*words, "--"].index("--")  # what stands behind it is another program's command
    options, command_words = words[:end], words[end:]
    as_json = "--json" in options
    options = [word for word in options if word != "--json"]
    count = 2 if options[:1] == ["map"] else 1
    verb = " ".join(options[:count])
    try:
        if verb in VERBS:
            code = show(make_app(verb)([*options[count:], *command_words]), as_json)
        else:
            code = answer_without_verb(verb)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = fail("interrupted", 130)
    except BrokenPipeError:  # | head: what Python flushes at its end would fail once more
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
        elif not HELP.isdisjoint(options):
            code = show(help_text(verb), as_json=False)
        else:
            code = fail(f"this needs {package}: {INSTALL.format(EXTRAS[package])}", 2)
    sys.exit(code)


def answer_without_verb(words: str) -> int:
    """Print the version, or the verbs; those of maps behind ``map``. Anything else is refused."""
    if words == "--version":
        print(__version__)
        return 0
    if words.removeprefix("map").strip() not in {"", *HELP}:
        raise GacprofError(f"there is no verb '{words}': use one of {', '.join(sorted(VERBS))}")
    print("Usage: gacprof VERB …\n\n" + ABOUT + "\n\nCommands:")
    for verb in sorted(VERBS):
        if verb.startswith("map ") or not words.startswith("map"):
            print(f"  {verb}: {summary(verb)}")
    print("\nEvery verb takes --help, and --json: print the result as JSON.")
    return 0


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
    """Print a text or a path as it is, else a result's section: wrapped for a terminal only."""
    from rich.console import Console
    from rich.table import Table

    if isinstance(result, str | Path):
        print(result)
        return
    section = section_of(result)
    width = None if sys.stdout.isatty() else FILE_WIDTH
    console = Console(width=width, highlight=False, markup=False)
    if section.headline:  # control characters of a stranger's texts are escaped
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

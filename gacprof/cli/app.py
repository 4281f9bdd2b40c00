"""The command line: parse, call, print. Torch is imported only when a verb needs it.

Exit codes: 0 fine, 1 findings (misaligned, verify failed), 2 bad input, 70 a fault (out of memory,
or a bug of ours), 130 interrupted, 141 where the reader of the output went away (`| head`).
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gacprof.cli.printing import complain, print_json
from gacprof.core.errors import GacprofError, first_line, is_out_of_memory
from gacprof.devices.threads import short_waits

GROUPED = {
    "Without a GPU at hand": {"lint": "linting", "gpus": "elsewhere"},
    "Measure": {
        "doctor": "measuring", "sweep": "measuring", "map": "maps", "explain": "evidence",
        "evidence": "evidence", "fleet": "measuring",
    },
    "Compressed models": {
        "diagnose": "models", "plan": "planning", "pareto": "planning", "realign": "models",
        "report": "evidence", "demo": "measuring",
    },
    "Proof": {"verify": "models", "bench": "models", "eval": "evaluating"},
    "Compress and serve": {
        "compress": "compressing", "export": "compressing", "import-gguf": "evaluating",
    },
}  # fmt: skip
"""Verb → the module of ``gacprof.cli`` that has it, imported when it is asked for."""
VERBS = {verb: module for verbs in GROUPED.values() for verb, module in verbs.items()}
GROUPS = ("map", "evidence", "fleet")
"""Verbs with verbs of their own: their module's ``app``."""
NAMED = {"eval": "evaluate"}
"""Functions that are not called as their verb."""


class Verbs(TyperGroup):
    """The verbs, each imported when it is called: ``gacprof lint`` answers in 0.3 s."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        names: Any = dict.fromkeys(VERBS)
        self.commands = names  # for suggestions; get_command makes them

    def list_commands(self, ctx: object) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: object, cmd_name: str) -> Any:
        return _verb(cmd_name) if cmd_name in VERBS else None

    def format_commands(self, ctx: object, formatter: Any) -> None:
        """The verbs by what they are for, each with the first sentence of its help."""
        for title, verbs in GROUPED.items():
            with formatter.section(title):
                meanings = [(name, _verb(name).get_short_help_str(limit=100)) for name in verbs]
                formatter.write_dl(meanings, col_max=12)


@cache
def _verb(name: str) -> Any:
    module = import_module(f"gacprof.cli.{VERBS[name]}")
    verbs = typer.Typer(add_completion=False, rich_markup_mode="rich")
    if name in GROUPS:
        verbs.add_typer(module.app, name=name)
        return typer.main.get_command(verbs).commands[name]  # type: ignore[attr-defined]
    verbs.command(name)(getattr(module, NAMED.get(name, name).replace("-", "_")))
    command = typer.main.get_command(verbs)
    command.name = name
    return command


app = typer.Typer(
    name="gacprof",
    cls=Verbs,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        import gacprof

        print(f"gacprof {gacprof.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Which tensor dimensions your GPU serves well, why, and how to move a model onto them."""


EXTRAS = dict.fromkeys(
    ("torch", "pandas", "pyarrow", "matplotlib", "jinja2", "pynvml", "scipy", "cloudpickle"),
    "measure",
) | {"transformers": "models", "ray": "fleet"}  # fmt: skip
"""What a plain install leaves out → the extra that brings it."""

FAULT = 70
"""EX_SOFTWARE of sysexits.h."""

CLOSED_PIPE = 141
"""128 + SIGPIPE, as shells say of a program that this signal ended."""

PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"

TRACEBACK = "GACPROF_TRACEBACK"
"""Set in the environment, it shows where a fault came from."""


def main(verbs: typer.Typer = app) -> None:
    """Run a command line, by default ours; every failure is one line on stderr."""
    short_waits()
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # the libraries' advice is to their callers
    try:
        code = _command(verbs)(prog_name=verbs.info.name, standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:
        if _lost_reader(error):
            _drop_output()
            sys.exit(CLOSED_PIPE)
        code = CLOSED_PIPE
        try:
            code = _code_of(error, verbs.info.name)  # which prints help where nothing was asked
            sys.stdout.flush()
        except OSError:
            _drop_output()
    sys.exit(code)


def _lost_reader(error: BaseException) -> bool:
    """Whether the reader of our output went away; click and rich make an exit with 1 of that."""
    return isinstance(error, BrokenPipeError) or (
        isinstance(error, SystemExit) and isinstance(error.__context__, BrokenPipeError)
    )


def _drop_output() -> None:
    """What is left to be written goes nowhere, so that the interpreter's own flush cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _code_of(error: BaseException, name: object) -> int:
    """The exit code, once the failure was printed."""
    match error:
        case GacprofError():
            _failed(type(error).__name__, str(error))
            return error.exit_code
        case KeyboardInterrupt():  # before typer is at work; later it gives 130 itself
            complain("interrupted")
            return 130
        case OSError():
            place = os.fsdecode(error.filename) if error.filename else "the system"
            _failed("OSError", f"{place}: {error.strerror or error}")
            return 2
        case ImportError() if error.name and error.name.partition(".")[0] in EXTRAS:
            missing = error.name.partition(".")[0]
            extra = EXTRAS[missing]
            _failed("Missing", f"this needs {missing}: pip install 'gacprof[{extra}]'")
            return 2
        case Exception() if hasattr(error, "format_message"):
            return _usage(error, name)
        case Exception():
            cause = error.__cause__  # typer makes an Abort of the end of a file
            aborted = type(error).__name__ == "Abort" and isinstance(cause, Exception)
            _failed("Fault", _fault(cause if aborted else error))  # type: ignore[arg-type]
            return FAULT
    raise error  # SystemExit and the like


def _fault(error: Exception) -> str:
    """What nobody foresaw, in a line that says where; out of memory in words of its own."""
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    said = f"{type(error).__name__}: {first_line(error)}"[:300]
    if is_out_of_memory(error):
        return f"out of memory ({said}): take fewer tokens, a smaller batch or dtype, or one model"
    frames = traceback.extract_tb(error.__traceback__)
    own = [(frame.filename.removeprefix(PACKAGE), frame.lineno) for frame in frames
           if frame.filename.startswith(PACKAGE)]  # fmt: skip
    place = " at {}:{}".format(*own[-1]) if own else ""
    return f"a fault of gacprof's own, {said}{place}: please report it ({TRACEBACK}=1 shows more)"


@cache
def _command(verbs: typer.Typer) -> Callable[..., Any]:
    """Made once a process: to read the annotations of all options takes 0.1 s."""
    return typer.main.get_command(verbs)


def _usage(error: Exception, name: object) -> int:
    """Usage errors are reported in their own words, in one line.

    A bare ``gacprof`` is an error whose text is the help: that is printed as it stands.
    """
    message: Callable[[], str] = error.format_message  # type: ignore[attr-defined]
    if type(error).__name__ == "NoArgsIsHelpError":  # typer brings its own copy of click's
        print(message())
        return 0
    context = getattr(error, "ctx", None)
    verb = context.command_path if context is not None else name
    _failed("UsageError", f"{message()} (see '{verb} --help')")
    return 2


def _failed(kind: str, message: str) -> None:
    """A line on stderr; where JSON was asked for, that on stdout too."""
    complain(message)
    if "--json" in sys.argv[1:]:
        with contextlib.suppress(OSError):  # stdout itself may be what failed
            print_json({"kind": kind, "message": message}, "error")

"""The command line: parse, call, print. Torch is imported only when a verb needs it.

Exit codes: 0 fine, 1 findings (misaligned, verify failed), 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import typer

from gacprof.cli import compressing, evaluating, evidence, maps, measuring, models, planning
from gacprof.cli.printing import complain, print_json
from gacprof.core.errors import GacprofError
from gacprof.devices.threads import short_waits

app = typer.Typer(
    name="gacprof",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for verb in (
    measuring.doctor, measuring.sweep, models.diagnose, planning.plan, planning.pareto,
    models.realign, models.verify, models.bench, compressing.compress, compressing.export,
    evaluating.import_gguf, evidence.report, evidence.explain, measuring.demo,
):  # fmt: skip
    app.command()(verb)
app.command("eval")(evaluating.evaluate)
app.add_typer(maps.app, name="map")
app.add_typer(evidence.app, name="evidence")
app.add_typer(measuring.app, name="fleet")


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


def main(verbs: typer.Typer = app) -> None:
    """Run a command line, by default ours; every foreseeable failure is one line on stderr."""
    short_waits()
    try:
        code = _command(verbs)(prog_name=verbs.info.name, standalone_mode=False)
    except GacprofError as error:
        _failed(type(error).__name__, str(error))
        code = error.exit_code
    except KeyboardInterrupt:  # before typer is at work; later it gives 130 itself
        complain("interrupted")
        code = 130
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        _failed("OSError", f"{error.filename or 'the system'}: {error.strerror or error}")
        code = 2
    except Exception as error:
        code = _usage(error, verbs.info.name)
    sys.exit(code)


@cache
def _command(verbs: typer.Typer) -> Callable[..., Any]:
    """Made once a process: to read the annotations of all options takes 0.1 s."""
    return typer.main.get_command(verbs)


def _usage(error: Exception, name: object) -> int:
    """Usage errors are reported in their own words, in one line; anything else is a bug of ours.

    A bare ``gacprof`` is an error whose text is the help: that is printed as it stands.
    """
    message = getattr(error, "format_message", None)
    if message is None:
        raise error
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

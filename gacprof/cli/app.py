"""The command line: parse, call, print. Torch is imported only when a verb needs it.

Exit codes: 0 fine, 1 findings (misaligned, verify failed), 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import os
import sys

import typer

from gacprof.cli import evidence, explaining, exporting, maps, measuring, models, planning
from gacprof.cli.printing import complain
from gacprof.core.errors import GacprofError
from gacprof.devices.threads import short_waits

app = typer.Typer(
    name="gacprof",
    help="Which tensor dimensions your GPU serves well, why, and how to move a model onto them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for verb in (
    measuring.doctor, measuring.sweep, models.diagnose, planning.plan, planning.pareto,
    models.realign, models.verify, models.bench, exporting.export, explaining.report,
    measuring.demo, explaining.explain, explaining.disputes, measuring.survey,
):  # fmt: skip
    app.command()(verb)
app.add_typer(maps.app, name="map")
app.add_typer(evidence.app, name="evidence")


def main() -> None:
    """Run the command line; every foreseeable failure is one line on stderr."""
    short_waits()
    try:
        code = app(standalone_mode=False)
    except GacprofError as error:
        complain(str(error))
        code = error.exit_code
    except KeyboardInterrupt:  # before typer is at work; later it gives 130 itself
        complain("interrupted")
        code = 130
    except BrokenPipeError:  # the reader of our output went away, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        complain(f"{error.filename or 'the system'}: {error.strerror or error}")
        code = 2
    except Exception as error:
        code = _usage(error)
    sys.exit(code)


def _usage(error: Exception) -> int:
    """Usage errors are reported in their own words, in one line; anything else is a bug of ours.

    A bare ``gacprof`` is an error whose text is the help: that is printed as it stands.
    """
    message = getattr(error, "format_message", None)
    if message is None:
        raise error
    if type(error).__name__ == "NoArgsIsHelpError":  # typer brings its own copy of click's
        print(message())
        return 0
    complain(f"{message()} (see 'gacprof --help')")
    return 2

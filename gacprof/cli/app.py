"""The command line: parse, call, print.

Exit codes: 0 fine, 1 findings (a misaligned model, a failed verification), 2 bad input, 130
interrupted, 141 the reader of a pipe went away, 70 a fault of gacprof, which shows its traceback.
"""

import io
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cyclopts

from gacprof import __version__
from gacprof.cli.help import overview, verb_help
from gacprof.cli.mistakes import import_text, kept_text, no_verb, parse_text, system_text
from gacprof.cli.verbs import VERBS, command
from gacprof.cli.written import written_text
from gacprof.core.errors import GacprofError
from gacprof.reporting.sections import json_of
from gacprof.reporting.terminal import screen_of

CRASHED = 70  # EX_SOFTWARE of BSD's sysexits.h
HELP = {"--help", "-h"}


def make_app(verb: str) -> cyclopts.App:
    """Make the command line of a verb."""
    app = cyclopts.App(
        name=f"gacprof {verb}",
        help_flags=(),
        version_flags=(),
        default_parameter=cyclopts.Parameter(consume_multiple=True, negative_iterable=()),
        result_action="return_value",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
    )
    app.default(command(verb))
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
    arguments_of_verb = [*options[count:], *command_words]
    try:
        if verb in VERBS and HELP.isdisjoint(options):
            code = call(verb, arguments_of_verb, as_json)
        else:
            code = answer_without_verb(verb)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = fail(". ".join(filter(None, ("interrupted", kept_text(verb)))), 130)
    except BrokenPipeError:  # | head: what Python flushes at its end would fail once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    except GacprofError as error:
        code = fail(str(error), 2)
    except cyclopts.CycloptsError as error:
        code = fail(parse_text(error, verb, arguments_of_verb), 2)
    except OSError as error:
        code = fail(system_text(error, verb), 2)
    except Exception as error:
        missing = import_text(error) if isinstance(error, ImportError) else ""
        if missing:
            code = fail(missing, 2)
        else:
            traceback.print_exc()
            code = CRASHED
    sys.exit(code)


def call(verb: str, words: Sequence[str], as_json: bool) -> int:
    """Call a verb's function with the words of a command line, and print what it returns."""
    function, bound, _ = make_app(verb).parse_args(words)
    result = function(*bound.args, **bound.kwargs)
    code = show(result, as_json)
    if not as_json:
        text = written_text(verb, bound.arguments, result)
        print(text, end="\n" * bool(text))
    return code


def answer_without_verb(words: str) -> int:
    """Print the version, or help: a verb's, or the verbs. Anything else is refused."""
    if words == "--version":
        print(__version__)
        return 0
    words = " ".join(word for word in words.split() if word not in HELP)
    if words in VERBS:
        print(verb_help(words))
    elif words in ("", "map"):
        print(overview(words))
    else:
        raise no_verb(words)
    return 0


def show(result: Any, as_json: bool) -> int:
    """Print a verb's result; 1 where it says that something is wrong (``ok`` is false)."""
    if isinstance(result, int | None):
        return result or 0
    if isinstance(result, Path | dict) and not as_json:  # what was written is told besides
        return 0
    if as_json:
        print(json.dumps(json_of(result), indent=1, ensure_ascii=False))
    else:
        print(screen_of(result, styled=sys.stdout.isatty()))
    return 0 if getattr(result, "ok", True) else 1


def fail(message: str, code: int) -> int:
    print(f"gacprof: {message}", file=sys.stderr)
    return code

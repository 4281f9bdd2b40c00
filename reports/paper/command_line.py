"""How these scripts are called: arguments in, a fault of the user's in one line, an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from gacprof.cli.printing import complain
from gacprof.core.errors import GacprofError


def arguments(docstring: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the script's own docstring."""
    return argparse.ArgumentParser(
        description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def run(
    main: Callable[[argparse.Namespace], int],
    parser: argparse.ArgumentParser,
    given: Sequence[str] | None = None,
) -> None:
    """Call ``main`` with what was given and exit: 0 fine, 1 findings, 2 bad input, 130
    interrupted."""
    try:
        code = main(parser.parse_args(given))
    except GacprofError as error:
        complain(str(error))
        code = error.exit_code
    except KeyboardInterrupt as interrupt:
        complain("; ".join(["interrupted", *getattr(interrupt, "__notes__", ())]))
        code = 130
    sys.exit(code)

"""The command line: one file a group of verbs, each with what it prints; ``app.py`` runs them."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line. Ctrl-C while it is still being imported ends it quietly too: raised
    within an import, an interrupt may be lost, or printed with a traceback."""
    try:
        import signal

        caught = signal.getsignal(signal.SIGINT)
        if caught is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda *_: os._exit(130))
        _open_streams()
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # its advice is to its callers
        from gacprof.cli.app import main as run

        signal.signal(signal.SIGINT, caught)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


def _open_streams() -> None:
    """All three standard streams are there, and take any text.

    One that was closed is the null device: else the next file that is opened gets its number, and
    what is printed lands in it. What a terminal cannot show (``µ`` in ASCII, a path that is no
    UTF-8) is written as an escape.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))
        elif mode == "w":
            getattr(sys, name).reconfigure(errors="backslashreplace")


__all__ = ["main"]

"""The command line: one file a group of verbs, each with what it prints; ``app.py`` runs them."""

from __future__ import annotations

import os


def main() -> None:
    """Run the command line. Ctrl-C while it is still being imported ends it quietly too: raised
    within an import, an interrupt may be lost, or printed with a traceback."""
    try:
        import signal

        caught = signal.getsignal(signal.SIGINT)
        if caught is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda *_: os._exit(130))
        from gacprof.cli.app import main as run

        signal.signal(signal.SIGINT, caught)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


__all__ = ["main"]

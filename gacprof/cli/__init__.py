"""The command line: one file a group of verbs, each with what it prints; ``app.py`` runs them."""

from __future__ import annotations


def main() -> None:
    """Run the command line. Ctrl-C while it is still being imported ends it quietly too."""
    try:
        from gacprof.cli.app import main as run
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run()


__all__ = ["main"]

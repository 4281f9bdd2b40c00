"""The command line: one file a group of verbs, ``app.py`` to hold them together."""

from __future__ import annotations

from gacprof.cli.app import main

__all__ = ["main"]

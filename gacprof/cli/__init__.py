"""The command line: one file a group of verbs, each with what it prints; ``app.py`` runs them."""

from __future__ import annotations

from gacprof.cli.app import main

__all__ = ["main"]

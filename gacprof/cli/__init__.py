"""The command line: every verb is a public function, its signature and docstring the options."""

from gacprof.cli.app import main

__all__ = ["main"]

"""The command line: every verb is a public function, its signature and docstring the options.

``verbs`` makes commands of functions; ``app`` parses, calls and prints.
"""

from gacprof.cli.app import main

__all__ = ["main"]

"""``python -m gacprof``: the command line, where its script is not on PATH."""

from gacprof.cli import main

main()

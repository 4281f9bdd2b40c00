"""``python -m gacprof``."""

from gacprof.cli import main

main()

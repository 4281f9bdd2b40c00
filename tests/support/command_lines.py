"""A command line that is run in this process, and how it ended."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest


class Ended(NamedTuple):
    """How a command line ended, and what it said."""

    code: int
    out: str
    err: str

    def refused(self, *words: str) -> None:
        """Bad input: exit code 2 and one clear line that holds these words."""
        assert self.code == 2 and self.err.startswith("gacprof: "), self
        assert self.err.count("\n") == 1 and "Traceback" not in self.err, self.err
        assert all(each in self.err for each in words), self.err


def ended(
    patch: pytest.MonkeyPatch,
    captured: pytest.CaptureFixture[str],
    main: Callable[[], None],
    *words: object,
) -> Ended:
    """``main`` run with these words as the process's own."""
    patch.setattr(sys, "argv", [*map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        main()
    code = stopped.value.code
    return Ended(code if isinstance(code, int) else 0, *captured.readouterr())

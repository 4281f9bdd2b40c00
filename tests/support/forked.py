"""What must end a process, or limit one, in a copy of this one: it has imported all there is."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import get_context
from typing import Any


def forked(work: Callable[..., object], *arguments: object) -> int | None:
    """Call ``work`` there. The exit code is as of ``subprocess``; 1 where it raised."""
    process = get_context("fork").Process(target=work, args=arguments)
    process.start()
    process.join(120)
    process.kill()
    return process.exitcode


def told_by(work: Callable[..., Any], *arguments: object) -> Any:
    """What ``work`` returns there."""
    ours, theirs = get_context("fork").Pipe(duplex=False)
    assert forked(lambda: theirs.send(work(*arguments))) == 0
    return ours.recv()

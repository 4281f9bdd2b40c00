"""Programs that run to their end: in a time, with what they print, and leaving nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """What became of a program and what it printed. ``code`` is None where it did not start, or not
    end in time; ``failure`` says so in one line ("ended with code 1: …"), empty where all is well.
    """

    code: int | None
    output: str = ""
    errors: str = ""
    failure: str = ""

    @property
    def lines(self) -> list[str]:
        """All that it printed but for empty lines, errors last."""
        lines = (line.strip() for text in (self.output, self.errors) for line in text.splitlines())
        return [line for line in lines if line]


def run(command: Sequence[str | Path], timeout_s: float, given: str = "") -> Ended:
    """Run a program, with ``given`` as its input. Never raises for what becomes of it.

    A program that does not end in time is killed, with all that it started: a child that outlives
    it would hold its output open, and be waited for.
    """
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe,
            text=True, errors="replace", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return Ended(None, failure=f"does not run: {error.strerror}")
    with process:
        try:
            output, errors = process.communicate(given, timeout_s)
        except subprocess.TimeoutExpired:
            kill_all(process)
            return Ended(None, *process.communicate(), f"did not finish within {timeout_s:g} s")
        except BaseException:
            kill_all(process)
            raise
    code = process.returncode
    last = (Ended(code, errors=errors).lines or ["no message"])[-1]
    return Ended(code, output, errors, f"ended with code {code}: {last}" if code else "")


def kill_all(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, and whatever it started there."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)

"""A program is run to its end: every way in which it can fail is one line."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from gacprof.core import programs


def python(code: str, timeout_s: float = 60.0, given: str = "") -> programs.Ended:
    return programs.run([sys.executable, "-c", code], timeout_s, given)


def test_what_a_program_is_given_and_prints():
    done = python("import sys; print(input() * 2); print('aside', file=sys.stderr)", given="ab\n")
    assert (done.code, done.output, done.errors, done.failure) == (0, "abab\n", "aside\n", "")
    assert done.lines == ["abab", "aside"]


def test_a_program_that_fails_says_its_last_word():
    assert python("raise SystemExit('a\\nb')").failure == "ended with code 1: b"
    assert python("raise SystemExit(3)").failure == "ended with code 3: no message"


def test_a_program_that_is_missing_is_a_failure_too(tmp_path: Path):
    done = programs.run([tmp_path / "absent"], 1.0)
    assert done.code is None and done.failure == "does not run: No such file or directory"


def test_one_out_of_time_ends_with_what_it_started(tmp_path: Path):
    """Its child holds its output open: without it there is nothing to wait for."""
    code = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
print("begun", flush=True)
time.sleep(600)"""
    done = python(code, timeout_s=3.0)
    assert (done.code, done.output) == (None, "begun\n")
    assert done.failure == "did not finish within 3 s"
    state = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    for _ in range(100):
        if not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the child still runs")

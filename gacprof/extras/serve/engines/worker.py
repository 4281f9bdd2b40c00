"""The process that an engine runs in: it answers requests, one JSON object a line.

It runs in the engine's own interpreter, where gacprof need not be: ``python worker.py FILE``, FILE
being the engine's (``in_vllm.py``), and both use nothing of gacprof: importing it fails. An
engine's file names as ``MODEL`` a class with the methods of :class:`EngineModel` here; those that
exports are checked with (:mod:`gacprof.extras.serve.checking`) have a method ``probe`` besides.

A request is ``{"do": "prefill", "ids": […]}``, an answer ``{"ok": …}`` or ``{"error": "one
line"}``. Answers go to the stdout that the process was started with; what the engine itself prints
there goes to stderr.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Protocol, TextIO

PR_SET_PDEATHSIG = 1  # prctl(2)


class EngineModel(Protocol):
    """A model in an engine. Token ids are of one sequence; times are microseconds."""

    def open(
        self, model: str, threads: int, positions: int, dtype: str | None, trust: bool
    ) -> dict[str, Any]:
        """Load it; tells the engine's ``version``, the ``device`` and the ``vocabulary``."""

    def prefill(self, ids: list[int]) -> float:
        """Read a prompt that no cache knows, and write the first token."""

    def decode(self, ids: list[int], steps: int) -> float:
        """The mean of so many tokens after the first, the prompt being read untimed."""

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """The likeliest tokens, one after another; an end of text does not end it."""


def answer(served: EngineModel, request: dict[str, Any]) -> Any:
    match request:
        case {"do": "open", **settings}:
            return served.open(**settings)
        case {"do": "prefill", "ids": ids}:
            return _timed(served.prefill, ids)
        case {"do": "decode", "ids": ids, "steps": steps}:
            return _timed(served.decode, ids, steps)
        case {"do": "greedy", "ids": ids, "count": count}:
            return served.greedy(ids, count)
        case {"do": "probe", **asked}:
            return served.probe(**asked)  # type: ignore[attr-defined]
        case {"do": "memory"}:
            return _resident_bytes()
    raise ValueError(f"the worker does not know {request.get('do')!r}")


def _timed(call: Any, *arguments: Any) -> dict[str, Any]:
    before = _waits_ns()
    us = call(*arguments)
    waits = (waited - before.get(thread, 0) for thread, waited in _waits_ns().items())
    return {"us": us, "waited_us": max(waits, default=0) / 1e3}


def _waits_ns() -> dict[str, int]:
    """How long each thread has waited for a core so far; empty where Linux does not tell."""
    found = {}
    with contextlib.suppress(OSError):
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError, ValueError, IndexError):
                found[thread.name] = int((thread / "schedstat").read_text().split()[1])
    return found


def _resident_bytes() -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def serve(served: EngineModel, requests: TextIO, answers: TextIO) -> None:
    for line in requests:
        try:
            answered: dict[str, Any] = {"ok": answer(served, json.loads(line))}
        except Exception as error:  # an engine may raise anything; answered in one line
            text = str(error).strip() or type(error).__name__
            answered = {"error": text.splitlines()[0], "missing": isinstance(error, ImportError)}
        print(json.dumps(answered), file=answers, flush=True)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.modules["gacprof"] = None  # type: ignore[assignment]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    spec = importlib.util.spec_from_file_location("engine", sys.argv[1])
    assert spec is not None and spec.loader is not None
    engine = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(engine)
    serve(engine.MODEL(), sys.stdin, answers)
    answers.flush()
    os._exit(0)  # engines hang in their own clearing up now and then


if __name__ == "__main__":
    main()

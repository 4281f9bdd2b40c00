"""Damage files and see what reading them does: ``python tests/fuzz/fuzzer.py --count 20000``.

Every input is read in a forked process with an address space of :data:`MEMORY` more than it has and
:data:`SECONDS` to go. Allowed are an answer and a :class:`GacprofError` of one line. Anything else
is a finding, printed with its seed; ``--seed N --only KIND --count 1`` repeats it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from targets import CANARY, Target, targets

SECONDS = 10
MEMORY = 2 << 30
GRACE_S = 5
FINE = ("accepted", "refused")


@dataclass(frozen=True)
class Outcome:
    target: str
    seed: int
    kind: str
    detail: str = ""


class _TooLongError(BaseException):
    """No ``Exception``: what catches everything shall not catch it."""


def fuzz(folder: Path, count: int, seed: int = 0, only: str = "") -> Iterator[Outcome]:
    """``count`` inputs in all, the kinds in turn; input ``n`` is drawn by ``seed + n``."""
    made = [t for t in targets(folder / "good") if only in ("", t.name)]
    todo = [(made[n % len(made)], seed + n) for n in range(count)]
    while todo:
        done = 0
        for outcome in _in_a_process(todo, folder / "work"):
            yield outcome
            done += 1
        todo = todo[done:]


def _in_a_process(todo: list[tuple[Target, int]], work: Path) -> Iterator[Outcome]:
    """Outcomes until all are done, or one input ends the process or hangs it."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(theirs, todo, work), daemon=True)
    process.start()
    theirs.close()
    try:
        for target, seed in todo:
            lost = ""
            try:
                if ours.poll(SECONDS + GRACE_S):
                    yield ours.recv()
                else:
                    lost = "hang"
            except EOFError:
                lost = "process ended"
            if lost:
                yield Outcome(target.name, seed, lost)
                return
    finally:
        process.kill()
        process.join()


def _serve(pipe: Connection, todo: list[tuple[Target, int]], work: Path) -> None:
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    signal.signal(signal.SIGALRM, _stop)
    for target, seed in todo:
        pipe.send(_one(target, seed, work))


def _stop(*_: object) -> None:
    raise _TooLongError


def _one(target: Target, seed: int, work: Path) -> Outcome:
    from gacprof.core.errors import GacprofError

    shutil.rmtree(work, ignore_errors=True)
    given, out, elsewhere = work / "given", work / "out", work / "elsewhere"
    shutil.copytree(target.folder, given)
    out.mkdir()
    elsewhere.mkdir()
    os.chdir(elsewhere)
    file = given / target.file
    file.write_bytes(target.damage(file.read_bytes(), random.Random(seed)))
    before = _state(given)
    signal.alarm(SECONDS)
    try:
        target.read(given, out)
        kind, detail = "accepted", ""
    except GacprofError as error:
        text = str(error)
        clear = text.strip() and "\n" not in text and len(text) < 3000 and "\x1b" not in text
        kind, detail = ("refused", "") if clear else ("unclear message", text[:500])
    except _TooLongError:
        kind, detail = "hang", "".join(traceback.format_stack()[-3:])
    except MemoryError:
        kind, detail = "memory", traceback.format_exc(limit=-3)
    except BaseException:
        kind, detail = "traceback", traceback.format_exc(limit=-4)
    finally:
        signal.alarm(0)
    if (elsewhere / CANARY).exists():
        kind = "code run"
    elif _state(given) != before:
        kind = "input changed"
    elif any(elsewhere.iterdir()) or {p.name for p in work.iterdir()} != {
        "given", "out", "elsewhere"
    }:  # fmt: skip
        kind = "written outside"
    elif kind == "refused" and any(out.iterdir()):
        kind, detail = "half written", ", ".join(p.name for p in out.iterdir())
    return Outcome(target.name, seed, kind, detail)


def _state(folder: Path) -> list[tuple[str, int, int]]:
    return sorted(
        (str(p), p.stat().st_size, p.stat().st_mtime_ns) for p in folder.rglob("*") if p.is_file()
    )


def main() -> int:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--count", type=int, default=20000)
    ask.add_argument("--seed", type=int, default=0)
    ask.add_argument("--only", default="", help="one kind of file")
    given = ask.parse_args()
    began = time.monotonic()
    found: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        for outcome in fuzz(Path(folder), given.count, given.seed, given.only):
            found[outcome.target, outcome.kind] += 1
            if outcome.kind not in FINE:
                print(f"{outcome.kind}: --only '{outcome.target}' --seed {outcome.seed} --count 1")
                print(f"  {outcome.detail}", flush=True)
    print(f"{given.count} inputs in {time.monotonic() - began:.0f} s")
    for (target, kind), times in sorted(found.items()):
        print(f"{target:16s} {kind:16s} {times}")
    return int(any(kind not in FINE for _, kind in found))


if __name__ == "__main__":
    sys.exit(main())

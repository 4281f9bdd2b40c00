"""One core for each compute thread, first call on it, and short waits, while something is timed.

A parallel CPU kernel is as slow as its slowest thread. The scheduler may put two of them on one
core, for seconds on end when other work runs: a product of 0.3 ms then takes 8 (measured beside
two busy processes on two cores: 1 block in 15 s unbound, 35 bound). Binding needs no privilege.
It is undone on leaving, since child processes would inherit it.

Where the system permits it (root, or CAP_SYS_NICE), these threads also come before other programs:
beside one and two busy processes the floor of a sweep of 45 s is then 2 to 3 %, else 4 to 6 %
(reports/noise.md). What the user set with ``nice`` stays.

A thread that spins while it waits for one that has lost its core uses up its own time slice, and
has lost its core when the other one is back. So threads wait asleep, after a short spin: beside
two busy processes the floor of a sweep of 30 s is then 7 % instead of 27 to 145 %. Too short a spin
costs as well: between two products of a model there is other work, and waking a thread takes longer
than a small product (reports/noise.md has the figures).
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

WATCH_S = 0.2
"""Work enough for the kernel's clock ticks (10 ms) to show which threads compute."""
SPIN_COUNT = "30000"
"""Of GNU OpenMP (libgomp), about 1 ms: longer than the gap between two products of a model, shorter
than a time slice. Its own default is ten times as long."""
PRIORITY = -10
"""Niceness; a thread of it gets nine times the share of one of 0, the default (sched(7))."""
SLICE_NS = 3_000_000
"""For which Linux's scheduler gives a core to another thread (its base slice)."""
NEGLIGIBLE = 0.02
"""Of the usual time of a call: any loses a core for a moment now and then."""
WATCHED = 8
"""So many threads' waits are read, at 2 µs each, before and after every call."""
WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "KMP_BLOCKTIME")


def short_waits() -> None:
    """Let OpenMP's threads, once they are loaded, wait asleep; what the user set stays."""
    if not any(name in os.environ for name in WAITING):
        os.environ["GOMP_SPINCOUNT"] = SPIN_COUNT


class ComputeThreads:
    """torch's compute threads while something is timed. ``bound``: each to a core of its own."""

    def __init__(self, threads: Sequence[int], bound: bool) -> None:
        self.bound = bound
        self._files: list[int] = []
        for thread in threads[:WATCHED] or [threading.get_native_id()]:
            with suppress(OSError):  # not Linux, or a kernel that keeps no such account
                self._files.append(os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY))

    def waits_ns(self) -> list[int]:
        """How long each has waited for a core so far, ready to run (Linux,
        Documentation/scheduler/sched-stats.rst). Where that is not known, a slice for every time
        that the system has taken a core from the process."""
        try:
            return [int(os.pread(file, 80, 0).split()[1]) for file in self._files] or [_lost_ns()]
        except (OSError, ValueError, IndexError):
            return [_lost_ns()]

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files = []


def _lost_ns() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw * SLICE_NS


def longest_wait_us(before: Sequence[int], after: Sequence[int]) -> float:
    """How long the thread that waited longest did, of two readings: all others wait for it."""
    return max((b - a for a, b in zip(before, after, strict=False)), default=0) / 1e3


def disturbed(us: Sequence[float], waited_us: Sequence[float]) -> list[bool]:
    """Which calls of a block waited for a core for more than :data:`NEGLIGIBLE` of the median
    call's time: one limit for all, since which of them count must not depend on their times."""
    limit = NEGLIGIBLE * median(us or [0.0])
    return [waited > limit for waited in waited_us]


@contextmanager
def bound_threads() -> Iterator[ComputeThreads]:
    """Bind each of torch's compute threads to a core of its own, before other programs where the
    system permits it.

    They are not bound where there are fewer cores than threads, or where they cannot be
    identified.
    """
    before = cores_allowed()
    threads = _compute_threads() if before else []
    cores = sorted(before)
    done = 0 < len(threads) <= len(cores)
    bound = list(zip(threads, cores, strict=False)) if done else []
    watched = ComputeThreads(threads, done)
    try:
        for thread, core in bound:
            _bind(thread, {core})
            _prefer(thread, 0, PRIORITY)
        yield watched
    finally:
        watched.close()
        for thread, _ in bound:
            _bind(thread, before)
            _prefer(thread, PRIORITY, 0)


def cores_allowed() -> set[int]:
    """The cores that the system lets this process use; empty where it does not say."""
    try:
        return os.sched_getaffinity(0)
    except (AttributeError, OSError):  # not Linux
        return set()


def _bind(thread: int, cores: set[int]) -> None:
    with suppress(OSError):  # the thread may be gone
        os.sched_setaffinity(thread, cores)


def goes_first() -> bool:
    """Whether compute threads go before other programs while they are timed."""
    this = 0  # the calling thread
    preferred = _prefer(this, 0, PRIORITY)
    _prefer(this, PRIORITY, 0)
    return preferred


def _prefer(thread: int, was: int, now: int) -> bool:
    """Change a thread's niceness (on Linux setpriority(2) takes a thread's id); whether it was
    as expected, and the system permits the change."""
    try:
        if os.getpriority(os.PRIO_PROCESS, thread) != was:
            return False
        os.setpriority(os.PRIO_PROCESS, thread, now)
    except OSError:  # not permitted, or the thread is gone
        return False
    return True


def _compute_threads() -> list[int]:
    """The threads that a large product runs on, the calling one first."""
    import torch

    wanted = torch.get_num_threads()
    x = torch.randn(768, 768, generator=torch.Generator().manual_seed(0))
    x @ x  # starts the pool
    for patience in (1, 4):
        before, until = _ticks(), time.monotonic() + patience * WATCH_S
        while time.monotonic() < until:
            x @ x
        after = _ticks()
        spent = {thread: ticks - before.get(thread, 0) for thread, ticks in after.items()}
        main = threading.get_native_id()
        busiest = sorted(spent, key=lambda t: (t != main, -spent[t]))[:wanted]
        if len(busiest) == wanted and all(spent[thread] > 0 for thread in busiest):
            return busiest
    return []


def _ticks() -> dict[int, int]:
    """Clock ticks that each thread of this process has run for (proc(5): utime + stime)."""
    found = {}
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError, ValueError, IndexError):
            fields = (thread / "stat").read_text().rpartition(")")[2].split()
            found[int(thread.name)] = int(fields[11]) + int(fields[12])
    return found

"""Give each compute thread a core of its own, and tell how long it waited for it while timed.

The scheduler may put two threads on one core for seconds: a product of 0.3 ms then takes 8. Without
binding and the scheduler's account of waits two sweeps agree to 14 to 28 %, with both to 1 %.
"""

import gc
import os
import resource
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

WATCH_S = 0.4  # work enough for the kernel's clock ticks (10 ms) to show which threads compute
PRIORITY = -10  # niceness; such a thread gets nine times the share of one of 0 (sched(7))
SLICE_NS = 3_000_000  # Linux's base slice, for which it gives a core to another thread
NEGLIGIBLE_WAIT = 0.02  # share of a usual call: any loses a core for a moment now and then
MAX_WATCHED = 8  # threads whose waits are read, at 2 µs each, before and after every call


class ComputeThreads:
    """Torch's compute threads, until closed each bound to a core of its own, if there are enough
    cores, with the scheduler's accounts of them."""

    def __init__(self) -> None:
        threads = compute_threads()
        self._cores = sorted(os.sched_getaffinity(0))
        self._accounts: list[int] = []
        for thread in (threads or [threading.get_native_id()])[:MAX_WATCHED]:
            with suppress(OSError):  # a kernel that keeps no such account
                self._accounts.append(os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY))
        self._bound = threads if len(threads) <= len(self._cores) else []
        for thread, core in zip(self._bound, self._cores, strict=False):
            _place(thread, {core}, niceness=PRIORITY, instead_of=0)

    def waits_ns(self) -> list[int]:
        """Return the time for which each thread was ready but had no core."""
        with suppress(OSError, ValueError, IndexError):  # of a thread that has ended
            if self._accounts:
                return [int(os.pread(account, 80, 0).split()[1]) for account in self._accounts]
        # Without accounts: a time slice for each core that the system took from the process.
        return [resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw * SLICE_NS]

    def longest_wait_us(self, since_ns: Sequence[int]) -> float:
        """Return the longest wait since a reading: other threads wait for that one."""
        return max(now - then for then, now in zip(since_ns, self.waits_ns(), strict=False)) / 1e3

    def close(self) -> None:
        while self._accounts:
            os.close(self._accounts.pop())
        for thread in self._bound:
            _place(thread, set(self._cores), niceness=0, instead_of=PRIORITY)


def lost_core(times_us: Sequence[float], waits_us: Sequence[float]) -> list[bool]:
    """Return which calls of a block waited for a core for too long."""
    # One limit for all, the median call's: which calls count must not depend on their own times.
    limit_us = NEGLIGIBLE_WAIT * torch.tensor(times_us, dtype=torch.float64).nanquantile(0.5)
    lost: list[bool] = (torch.tensor(waits_us) > limit_us).tolist()
    return lost


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep Python's garbage collector from running while something is timed."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _place(thread: int, cores: set[int], *, niceness: int, instead_of: int) -> None:
    """Bind a thread to cores and change its niceness, unless the user has set that."""
    with suppress(OSError):  # not permitted (it takes root or CAP_SYS_NICE), or the thread is gone
        os.sched_setaffinity(thread, cores)
        # On Linux setpriority(2) takes a thread's id.
        if os.getpriority(os.PRIO_PROCESS, thread) == instead_of:
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


def compute_threads() -> list[int]:
    """Return the ids of a large product's threads, the calling one first; empty if unclear."""
    x = torch.randn(768, 768)
    x @ x  # starts the pool
    before = _ticks()
    until = time.monotonic() + WATCH_S
    while time.monotonic() < until:
        x @ x
    spent = {thread: ticks - before.get(thread, 0) for thread, ticks in _ticks().items()}
    caller = threading.get_native_id()
    ordered = sorted(spent, key=lambda thread: (thread != caller, -spent[thread]))
    busiest = ordered[: torch.get_num_threads()]
    return busiest if all(spent[thread] > 0 for thread in busiest) else []


def _ticks() -> dict[int, int]:
    """Return the clock ticks that each thread has run for (proc(5): utime + stime)."""
    ticks = {}
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has just ended
            fields = (thread / "stat").read_text().rpartition(")")[2].split()
            ticks[int(thread.name)] = int(fields[11]) + int(fields[12])
    return ticks

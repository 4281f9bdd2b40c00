"""A device in a process of its own: a crash or a hang costs one point, not the sweep.

The sweep sends a request for a session or for blocks and waits for the answer. A worker that does
not answer in time is killed; one that dies, or whose device an error has broken for good, is
replaced. :meth:`IsolatedDevice.renew` replaces it on purpose: some of what slows a call is drawn
once per process (where its memory and its code lie), so a sweep is spread over several.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import multiprocessing
import os
import signal
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from gacprof.core.errors import MeasurementError, first_line
from gacprof.core.points import Point
from gacprof.devices.device import BlockTimes, Device, Session, Slot
from gacprof.devices.opening import device_name, open_device
from gacprof.devices.threads import short_waits
from gacprof.operators.own import own_operators, register_pickled

START_TIMEOUT_S = 120.0
"""For importing torch and opening the device; a first start from a cold disk takes long."""
BLOCK_TIMEOUT_S = 60.0
"""For a block, or for making a curve ready. The slowest honest one compiles for some seconds."""
LEAVING_S, DYING_S = 0.2, 5.0
"""For a worker asked to end, and for one whose pipe closed: the driver takes a moment to clear a
dead process's context, and only then is it known how it ended."""
PR_SET_PDEATHSIG = 1  # prctl(2)

Opener = Callable[[], Device]
"""Opens the device in the worker; it must survive pickling."""


class WorkerLostError(MeasurementError):
    """The worker died or had to be killed; says why. The next session starts another."""


KERNEL_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Of oneDNN and of PyTorch's layer above it. A sweep of more shapes than they hold would time the
making of a kernel with every call; a model has few shapes."""
CACHED_KERNELS = 16384
CALLS_IN_TIME = 16
"""So many calls are expected within the time limit; more have so much longer. Large products on few
cores take a second each."""
SLOTS_IN_TIME = 64
"""So many slots are expected to be ready within it: cuDNN plans each new shape of attention for
0.4 s (modelscope/FunASR#3704, a B200)."""


class IsolatedDevice(Device):
    """A device in a worker process. Use as a context, or call :meth:`close`.

    ``spares`` further workers are started together with the first, for :meth:`renew`: importing
    torch takes seconds, and so costs them once. They sleep until then, and open no device.
    Raises :class:`MeasurementError` where the worker cannot open the device.
    """

    def __init__(self, opener: Opener, timeout_s: float = BLOCK_TIMEOUT_S, spares: int = 0) -> None:
        self._opener = opener
        self._timeout_s = timeout_s
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._spares = [self._spawn() for _ in range(spares + 1)]
        self._burnt_in, self._cold = False, True
        self._sessions = 0
        self._kernels: dict[Point, tuple[str, ...]] = {}
        """Of points, as any worker named them: the next ones need not trace them again."""
        self.generation = -1
        """How many workers there were before the present one."""
        self._start()
        for _, pipe in self._spares:  # imported by now or soon; not while anything is timed
            pipe.poll(START_TIMEOUT_S)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def session(self, slots: Sequence[Slot], reuse_bytes: int = 0) -> Session:
        """Raises :class:`WorkerLostError` where preparing the slots killed the worker."""
        self._running()
        self._sessions += 1
        limit_s = self._timeout_s * max(1.0, len(slots) / SLOTS_IN_TIME)
        message = ("session", self._sessions, tuple(slots), reuse_bytes)
        opened = self._ask_for_slots(message, limit_s)
        self._kernels |= {slots[place].point: names for place, names in opened.kernels.items()}
        return _RemoteSession(self, self._sessions, self.generation, opened)

    def blocks(self, wanted: Sequence[tuple[Session, Sequence[int]]]) -> list[BlockTimes]:
        """All in one message. Raises :class:`WorkerLostError`, as a single block does."""
        calls = sum(len(order) for _, order in wanted)
        limit_s = self._timeout_s * max(1.0, calls / CALLS_IN_TIME)
        orders = [(_number(session), tuple(order)) for session, order in wanted]
        found: list[BlockTimes] = self._ask_for_slots(("blocks", orders), limit_s)
        return found

    def mixed(self, wanted: Sequence[tuple[Session, int]]) -> BlockTimes | None:
        """Raises :class:`WorkerLostError`."""
        slots = [(_number(session), slot) for session, slot in wanted]
        found: BlockTimes | None = self._ask_for_slots(("mixed", slots))
        return found

    def burn_in(self) -> None:
        """Run in the worker; a replacement of the worker burns in again.

        Raises :class:`MeasurementError` where the device cannot do even that.
        """
        self._burnt_in = True
        self._running()

    def renew(self) -> None:
        self._stop()
        self._running()

    def close(self) -> None:
        self._stop()
        while self._spares:
            self._process, self._pipe = self._spares.pop()
            self._stop()

    def ask(self, message: tuple[Any, ...], timeout_s: float | None = None) -> Any:
        """The worker's answer. Raises :class:`WorkerLostError`, or what the worker raised."""
        return self._receive(timeout_s or self._timeout_s, message)

    def _ask_for_slots(self, message: tuple[Any, ...], timeout_s: float | None = None) -> Any:
        """As :meth:`ask`, but every error is :class:`WorkerLostError`: a device reports single
        slots that fail, and raises only where it does not know which one it was."""
        try:
            return self.ask(message, timeout_s)
        except WorkerLostError:
            raise
        except MeasurementError as error:
            raise WorkerLostError(str(error)) from None

    def _receive(self, limit_s: float, message: tuple[Any, ...] = ()) -> Any:
        """What the worker sends, after it was sent the message if there is one."""
        assert self._pipe is not None
        try:
            if message:
                self._pipe.send(message)
            if not self._pipe.poll(limit_s):
                self._stop()
                raise WorkerLostError(f"hung: no answer within {limit_s:g} s")
            answer, context_lost = self._pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            how = self._stop(DYING_S)
            raise WorkerLostError(f"the worker process {how}") from None
        except KeyboardInterrupt:
            self._stop()  # its answer would be taken for the next question's
            raise
        if context_lost:
            self._stop()
            if isinstance(answer, list):  # results after the first failure mean nothing
                raise WorkerLostError(next(why for t in answer for why in t.failed.values()))
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _running(self) -> None:
        """A worker, burnt in if that was ever asked for."""
        if self._pipe is None:
            self._start()
        if self._burnt_in and self._cold:
            self._cold = False
            try:
                self.ask(("burn_in",), START_TIMEOUT_S)
            except MeasurementError as error:
                raise MeasurementError(f"the device cannot be kept busy: {error}") from None

    def _spawn(self) -> tuple[BaseProcess, Connection]:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_serve, args=(theirs, self._opener, os.getpid()), daemon=True
        )
        with _without_main(), _without_ctrl_c():
            process.start()
        theirs.close()
        return process, ours

    def _start(self) -> None:
        """Take a spare worker, or start one, and let it open the device."""
        self._process, self._pipe = self._spares.pop(0) if self._spares else self._spawn()
        self._cold = True
        self.generation += 1
        try:
            self._receive(START_TIMEOUT_S)  # that it is ready
            opened = self._receive(START_TIMEOUT_S, ("open", self._kernels))
        except WorkerLostError as lost:
            busy = "; the machine may be busy: try again, or measure in this process (--no-isolate)"
            then = busy if str(lost).startswith("hung") else ""
            raise MeasurementError(
                f"the device cannot be opened in a worker: {lost}{then}"
            ) from None
        except MeasurementError:
            self._stop()
            raise
        self.environment, self.timer = opened

    def _stop(self, patience_s: float = LEAVING_S) -> str:
        """End the worker. Returns how it ended, if it had done so by itself."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if pipe is not None:
            pipe.close()
        if process is None:
            return "was stopped"
        process.join(patience_s)
        if process.exitcode is None:
            process.kill()
            process.join()
            return "was stopped"
        if process.exitcode < 0:
            hint = " (out of memory?)" if process.exitcode == -signal.SIGKILL else ""
            return f"was killed by {signal.Signals(-process.exitcode).name}{hint}"
        return f"ended with exit code {process.exitcode}"


@dataclass(frozen=True)
class _Opened:
    """A session as the worker opened it, by the slots' places."""

    failed: Mapping[int, str]
    kernels: Mapping[int, tuple[str, ...]]
    remarks: Mapping[int, str]


class _RemoteSession(Session):
    """A session in the worker. Its blocks raise :class:`WorkerLostError` once that is gone."""

    def __init__(
        self, device: IsolatedDevice, number: int, generation: int, opened: _Opened
    ) -> None:
        self._device, self.number, self._generation = device, number, generation
        self.failed, self._opened = opened.failed, opened

    @property
    def alive(self) -> bool:
        return self._device.pid is not None and self._device.generation == self._generation

    def block(self, order: Sequence[int]) -> BlockTimes:
        return self._device.blocks([(self, order)])[0]

    def kernels(self) -> Mapping[int, tuple[str, ...]]:
        return self._opened.kernels

    def remarks(self) -> Mapping[int, str]:
        return self._opened.remarks

    def close(self) -> None:
        if self.alive:
            with contextlib.suppress(MeasurementError):
                self._device.ask(("close", self.number))


def _number(session: Session) -> int:
    """The session's number in the worker. Raises where that worker is gone."""
    assert isinstance(session, _RemoteSession)
    if not session.alive:
        raise WorkerLostError("the worker process was replaced")
    return session.number


@contextlib.contextmanager
def sweeper(
    name: str | None = None,
    *,
    timer: str = "auto",
    isolate: bool = True,
    timeout_s: float = BLOCK_TIMEOUT_S,
    processes: int = 1,
) -> Iterator[Device]:
    """The device of that name to sweep with: in processes of its own by default.

    In the calling process blocks cannot be spread over fresh ones.
    """
    name = device_name(name)
    opened: Device
    if isolate:
        opener = partial(open_in_worker, own_operators(), name, timer)
        opened = IsolatedDevice(opener, timeout_s, processes - 1)
    else:
        opened = open_device(name, timer)
    with opened:
        yield opened


def open_in_worker(own: bytes, name: str, timer: str) -> Device:
    """Open the device in a worker, which has to know the caller's own operators too."""
    register_pickled(own)
    return open_device(name, timer)


@contextlib.contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Ctrl-C reaches this process afterwards and those begun meanwhile, which are in its terminal's
    group, never: while they import, it would be printed with a traceback."""
    resource_tracker.ensure_running()  # unblocks the signal when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Hide the caller's script, which a spawned process would run again: a sweep that stands in
    a script outside of ``if __name__ == "__main__"`` would start itself over and over."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _serve(pipe: Connection, opener: Opener, parent: int) -> None:
    """The worker: open the device, answer messages until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _die_with(parent)
    # Else Inductor starts a process for each core: for a handful of points, beside the timing.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    short_waits()
    for cache in KERNEL_CACHES:
        os.environ.setdefault(cache, str(CACHED_KERNELS))
    with contextlib.suppress(ImportError):
        importlib.import_module("torch")  # before anything is timed; the device is opened later
    sessions: dict[int, Session] = {}
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        pipe.send(("ready", False))
        _, kernels = pipe.recv()
        try:
            device = opener()
            device.learn(kernels)
            hello: Any = device.environment, device.timer
        except Exception as error:
            hello = MeasurementError(first_line(error))
        pipe.send((hello, False))
        while not isinstance(hello, Exception):
            answer = _answer(device, sessions, pipe.recv())
            each = answer if isinstance(answer, list) else [answer]
            failed = isinstance(answer, Exception) or any(
                isinstance(one, BlockTimes | _Opened) and bool(one.failed) for one in each
            )
            pipe.send((answer, failed and not device.usable()))


def _answer(device: Device, sessions: dict[int, Session], message: tuple[Any, ...]) -> Any:
    """The answer to a request; an exception as text, since not every one survives pickling."""
    try:
        match message:
            case ("burn_in",):
                return device.burn_in()
            case ("session", number, slots, reuse_bytes):
                session = sessions[number] = device.session(slots, reuse_bytes)
                return _Opened(
                    dict(session.failed), dict(session.kernels()), dict(session.remarks())
                )
            case ("blocks", wanted):
                return device.blocks([(sessions[number], order) for number, order in wanted])
            case ("mixed", wanted):
                return device.mixed([(sessions[number], slot) for number, slot in wanted])
            case ("close", number):
                return sessions.pop(number).close()
    except Exception as error:  # an operator may raise anything; the sweep goes on
        return MeasurementError(first_line(error))
    return MeasurementError(f"the worker does not know {message[0]!r}")


def _die_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent dies, so that a hung one is not left."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)

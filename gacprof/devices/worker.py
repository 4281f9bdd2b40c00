"""A device in a worker process, which is replaced when a point kills it or takes too long."""

import importlib
import math
import multiprocessing
import os
import signal
import warnings
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Environment, KernelRun, Point
from gacprof.devices.device import UNKNOWN, UNTRACED, BlockTimes, Session, first_line, open_device
from gacprof.operators.base import OPERATORS
from gacprof.operators.own import OwnOperator

START_LIMIT_S = 120.0  # a first import of torch from a cold disk takes long
CALL_LIMIT_S, POINTS_IN_LIMIT = 60.0, 16  # per 16 points: one may have to be compiled
DYING_S = 5.0  # until a worker ends whose pipe has closed
SURROUNDINGS = {  # read when torch is loaded
    "GOMP_SPINCOUNT": "30000",  # 1 ms, longer than the gap between two products; then they sleep
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16384",  # kernels of all shapes of a sweep
    "LRU_CACHE_CAPACITY": "16384",  # of PyTorch's layer above oneDNN
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}


class WorkerLost(Exception):  # noqa: N818 - no error of a user's
    """An error: the worker died, hung or gave up while it was at the point with that index."""

    def __init__(self, reason: str, place: int) -> None:
        super().__init__(reason)
        self.place = place


class IsolatedDevice:
    """A device in a worker process. Raises :class:`MeasurementError` where it cannot be opened."""

    def __init__(self, name: str, call_limit_s: float = CALL_LIMIT_S) -> None:
        self._name, self._call_limit_s = name, call_limit_s
        self._process: BaseProcess | None = None
        self._sessions: list[RemoteSession] = []
        self._sent: list[tuple[RemoteSession, int]] = []  # by place in the worker
        self._traced = True
        self._start()

    def prepare(self, axes: Sequence[Sequence[Point]]) -> list["RemoteSession"]:
        first = len(self._sessions)
        self._sessions += [RemoteSession(self, first + i, axis) for i, axis in enumerate(axes)]
        self.prepare_sessions()
        return self._sessions[first:]

    def prepare_sessions(self) -> None:
        """Prepare what the worker lacks; where it dies on a point, prepare the others anew."""
        while stale := [s for s in self._sessions if not s.sent and s.waiting()]:
            try:
                self._request_sessions(stale)
            except WorkerLost as lost:
                if self.blame(lost):
                    continue
                if not self._traced:  # nothing is left to blame
                    for session in stale:
                        session.fail(str(lost))
                # What is no point's fault is the tracer's: names are done without.
                self._traced = False

    def _request_sessions(self, sessions: Sequence["RemoteSession"]) -> None:
        if self._process is None:
            self._start()
        before = len(self._sent)
        content = []
        for session in sessions:
            session.sent = session.waiting()
            self._sent += [(session, index) for index in session.sent]
            content.append((session.number, [session.points[index] for index in session.sent]))
        answers = self.request("prepare", content, len(self._sent) - before)
        for session, (failures, kernels) in zip(sessions, answers, strict=True):
            session.failures |= {session.sent[place]: why for place, why in failures.items()}
            session.kernels = {session.sent[place]: runs for place, runs in kernels.items()}

    def blame(self, lost: WorkerLost) -> bool:
        """Mark the point that the worker was at as failed; return whether it was at one."""
        if lost.place == UNKNOWN:
            return False
        session, index = self._sent[lost.place]
        session.failures[index] = str(lost)
        return True

    def request(self, action: str, content: Any, calls: int) -> Any:
        """Return the worker's answer. Raises :class:`WorkerLost`."""
        self._current.value = UNKNOWN
        with suppress(ConnectionError):  # then there is no answer either
            self._pipe.send((action, content))
        return self._answer(self._call_limit_s * max(1.0, calls / POINTS_IN_LIMIT))

    def _start(self) -> None:
        for name, value in SURROUNDINGS.items():
            os.environ.setdefault(name, value)
        context = multiprocessing.get_context("spawn")
        self._current = context.Value("q", UNKNOWN, lock=False)
        self._pipe, pipe = context.Pipe()
        # What the worker imports to know users' operators too.
        theirs = {o.function.__module__ for o in OPERATORS.values() if isinstance(o, OwnOperator)}
        modules = sorted(theirs - {"__main__", "__mp_main__"})
        arguments = (pipe, self._current, self._name, modules, self._traced)
        self._process = context.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
        self._sent = []
        pipe.close()
        try:
            self.environment: Environment = self._answer(START_LIMIT_S)
        except WorkerLost as lost:
            raise MeasurementError(f"{self._name} cannot be opened in a worker: {lost}") from None

    def _answer(self, limit_s: float) -> Any:
        assert self._process is not None
        reason = f"hung: no answer within {limit_s:g} s"
        try:
            if self._pipe.poll(limit_s):
                answer = self._pipe.recv()
                if not isinstance(answer, MeasurementError):
                    return answer
                reason = str(answer)
        except (EOFError, ConnectionError):
            self._process.join(DYING_S)
            reason = f"killed its process, which ended with code {self._process.exitcode}"
        except KeyboardInterrupt:  # a late answer would be taken for the next one's
            self.close()
            raise
        self.close()
        raise WorkerLost(reason, self._current.value)

    def close(self) -> None:
        """End the worker; the next request starts another."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
            self._pipe.close()
            for session in self._sessions:
                session.sent = []


class RemoteSession:
    """Points prepared in the worker, and in the next one without those that failed."""

    def __init__(self, device: IsolatedDevice, number: int, points: Sequence[Point]) -> None:
        self._device, self.number, self.points = device, number, points
        self.failures: dict[int, str] = {}
        self.kernels: dict[int, tuple[KernelRun, ...]] = {}
        self.sent: list[int] = []  # indices of the points that the worker has

    def waiting(self) -> list[int]:
        return [index for index in range(len(self.points)) if index not in self.failures]

    def fail(self, reason: str) -> None:
        self.failures |= dict.fromkeys(self.waiting(), reason)

    def time_block(self, order: Sequence[int]) -> BlockTimes:
        """As :meth:`.Session.time_block`; all nan where the worker is lost."""
        self._device.prepare_sessions()
        times_us = [math.nan] * len(order)
        places = [place for place, index in enumerate(order) if index not in self.failures]
        if not places:
            return BlockTimes(times_us, math.nan)
        content = (self.number, [self.sent.index(order[place]) for place in places])
        try:
            block, failures = self._device.request("time", content, len(places))
        except WorkerLost as lost:
            if not self._device.blame(lost):
                self.fail(str(lost))
            return BlockTimes(times_us, math.nan)
        self.failures |= {self.sent[place]: why for place, why in failures.items()}
        for place, us in zip(places, block.times_us, strict=True):
            times_us[place] = us
        return BlockTimes(times_us, block.slot_us, block.conditions)


def serve(pipe: Connection, current: Any, name: str, modules: Sequence[str], traced: bool) -> None:
    """Open the device and answer requests until the pipe closes, or the device raises."""
    if not traced:
        os.environ[UNTRACED] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    warnings.simplefilter("ignore")  # PyTorch's, of kernels that it does not take
    try:
        for module in modules:
            importlib.import_module(module)
        device: Any = open_device(name)
        device.current = current
        pipe.send(device.environment)
        sessions: dict[int, Session] = {}
        while True:
            action, content = pipe.recv()
            if action == "prepare":
                prepared = device.prepare([points for _, points in content])
                sessions |= {number: s for (number, _), s in zip(content, prepared, strict=True)}
                pipe.send([(dict(s.failures), dict(s.kernels)) for s in prepared])
            else:
                number, order = content
                block = sessions[number].time_block(order)
                pipe.send((block, dict(sessions[number].failures)))
    except (EOFError, ConnectionError):
        return  # the parent has ended
    except Exception as error:  # torch and operators may raise anything
        pipe.send(MeasurementError(first_line(error)))

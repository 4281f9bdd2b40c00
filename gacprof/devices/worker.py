"""A device in a worker process: a point that kills it or takes too long is a failure, the process
is replaced, and the other points go on. Addresses, caches and the placement of threads differ
between processes: a sweep opens several such devices, one after another, to see that too."""

from __future__ import annotations

import importlib
import math
import multiprocessing
import os
import signal
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Environment, Point
from gacprof.devices.device import UNKNOWN, Session, first_line, open_device
from gacprof.operators.own import modules_of_own_operators

START_LIMIT_S = 120.0
"""For importing torch and opening the device; a first start from a cold disk takes long."""
CALL_LIMIT_S, POINTS_IN_LIMIT = 60.0, 16
"""For so many points, a call that is compiled among them; more points have so much longer."""
DYING_S = 5.0
"""For a worker whose pipe has closed to end."""
SURROUNDINGS = {
    "GOMP_SPINCOUNT": "30000",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16384",
    "LRU_CACHE_CAPACITY": "16384",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}
"""The worker's environment, read when torch is loaded. GNU OpenMP's threads spin for 1 ms, longer
than the gap between two products and shorter than a time slice, and then wait asleep. oneDNN and
PyTorch's layer above it keep the kernels of all shapes of a sweep."""


class WorkerLost(Exception):  # noqa: N818 - no error of a user's
    """The worker died, hung or gave up while it was at the point of that index."""

    def __init__(self, reason: str, index: int) -> None:
        super().__init__(reason)
        self.index = index


class IsolatedDevice:
    """The device of that name in a worker process; ``generation`` counts workers that have ended.
    Raises :class:`MeasurementError` where it cannot be opened."""

    def __init__(self, name: str, call_limit_s: float = CALL_LIMIT_S) -> None:
        self._name, self._call_limit_s = name, call_limit_s
        self._process: BaseProcess | None = None
        self._sessions = self.generation = 0
        self._start()

    def prepare(self, points: Sequence[Point]) -> RemoteSession:
        self._sessions += 1
        return RemoteSession(self, self._sessions, points)

    def request(self, action: str, session: int, items: Sequence[Any]) -> Any:
        """The worker's answer to an action on so many points. Raises :class:`WorkerLost`."""
        if self._process is None:
            self._start()
        self._current.value = UNKNOWN
        with suppress(BrokenPipeError, ConnectionResetError):  # then there is no answer either
            self._pipe.send((action, session, items))
        return self._answer(self._call_limit_s * max(1.0, len(items) / POINTS_IN_LIMIT))

    def _start(self) -> None:
        for name, value in SURROUNDINGS.items():
            os.environ.setdefault(name, value)
        context = multiprocessing.get_context("spawn")
        self._current = context.Value("q", UNKNOWN, lock=False)
        self._pipe, pipe = context.Pipe()
        arguments = (pipe, self._current, self._name, modules_of_own_operators())
        self._process = context.Process(target=serve, args=arguments, daemon=True)
        self._process.start()
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
        except (EOFError, ConnectionResetError):
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
            self.generation += 1


class RemoteSession:
    """Points prepared in the worker, and in the next one without those that failed."""

    def __init__(self, device: IsolatedDevice, number: int, points: Sequence[Point]) -> None:
        self._device, self._number, self._points = device, number, points
        self.failures: dict[int, str] = {}
        self._kernels: dict[int, tuple[str, ...]] = {}
        self._prepare()

    def _prepare(self) -> None:
        self._sent: list[int] = []
        while len(self.failures) < len(self._points):
            self._sent = [i for i in range(len(self._points)) if i not in self.failures]
            points = [self._points[index] for index in self._sent]
            try:
                failures, kernels = self._device.request("prepare", self._number, points)
            except WorkerLost as lost:
                self._blame(lost)
                continue
            self._add(failures)
            self._kernels = dict(zip(self._sent, kernels, strict=True))
            break
        self._generation = self._device.generation

    def _add(self, failures: Mapping[int, str]) -> None:
        self.failures |= {self._sent[place]: reason for place, reason in failures.items()}

    def _blame(self, lost: WorkerLost) -> None:
        """The point that the worker was at is a failure; where that is not known, all are."""
        places = range(len(self._sent)) if lost.index == UNKNOWN else [lost.index]
        self._add(dict.fromkeys(places, str(lost)))

    def time_block(self, order: Sequence[int]) -> list[float]:
        """As :meth:`.Session.time_block`; all nan where the worker is lost."""
        if self._generation != self._device.generation:
            self._prepare()
        places = [place for place, index in enumerate(order) if index not in self.failures]
        remote_order = [self._sent.index(order[place]) for place in places]
        times_us = [math.nan] * len(order)
        try:
            if places:
                timed_us, failures = self._device.request("time", self._number, remote_order)
                self._add(failures)
                for place, us in zip(places, timed_us, strict=True):
                    times_us[place] = us
        except WorkerLost as lost:
            self._blame(lost)
        return times_us

    def kernels(self, index: int) -> tuple[str, ...]:
        return self._kernels.get(index, ())

    def close(self) -> None:
        with suppress(WorkerLost):
            if self._generation == self._device.generation:
                self._device.request("close", self._number, ())


def serve(pipe: Connection, current: Any, name: str, modules: Sequence[str]) -> None:
    """Open the device and answer requests until the pipe closes. What a device raises is the last
    answer; points that fail by themselves are in their session's failures."""
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
            action, number, items = pipe.recv()
            pipe.send(_act(device, sessions, action, number, items))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the parent has ended
    except Exception as error:  # torch and operators may raise anything
        pipe.send(MeasurementError(first_line(error)))


def _act(
    device: Any, sessions: dict[int, Session], action: str, number: int, items: Sequence[Any]
) -> Any:
    """The answer to a request, as :class:`RemoteSession` makes them."""
    if action == "prepare":
        session = sessions[number] = device.prepare(items)
        return dict(session.failures), [session.kernels(index) for index in range(len(items))]
    if action == "time":
        return sessions[number].time_block(items), dict(sessions[number].failures)
    return sessions.pop(number).close()

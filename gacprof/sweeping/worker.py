"""A device in a process of its own: what kills or hangs it costs one point, not the sweep.

The engine asks for whole visits, one message there and one back. A worker that does not
answer in time is killed; one that dies, or says that its CUDA context is spoilt (an illegal
access cannot be recovered from within the process), is replaced. The point is marked failed
with what is known of the reason.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from gacprof.errors import MeasurementError
from gacprof.measure.device import Device, Work, open_device
from gacprof.points import Environment, Point, Sample
from gacprof.sweeping.order import Visit
from gacprof.sweeping.suite import Timing

START_TIMEOUT_S = 120.0
"""For importing torch and opening the device; a first start from a cold disk takes long."""
POINT_TIMEOUT_S = 60.0
"""For one visit. The slowest honest visit is a torch.compile of some seconds."""
LEAVING_S, DYING_S = 0.2, 5.0
"""For a worker told to go, and for one that hung up: the driver takes a moment to clear away a
dead process's context, and only then is it known how it died."""
PR_SET_PDEATHSIG = 1  # prctl(2)

SPOILT = ("CUDA error", "CUBLAS_STATUS_EXECUTION_FAILED", "device-side assert", "cudaError")
"""What errors that leave a CUDA context unusable say of themselves, and some others say too
(a product that cuBLAS refuses). Only for devices that cannot tell themselves."""

Opener = Callable[[], Device]


class OpenNamed:
    """Opens the device of that name; a value, so that it can be sent to a fresh process."""

    def __init__(self, name: str | None, timer: str = "auto") -> None:
        self.name, self.timer = name, timer

    def __call__(self) -> Device:
        return open_device(self.name, self.timer)


class IsolatedDevice:
    """A :class:`~gacprof.measure.device.Device` whose visits are taken in a worker process.

    Raises :class:`MeasurementError` where the worker cannot open the device. Use as a context,
    or call :meth:`close`.
    """

    def __init__(self, opener: Opener, timeout_s: float = POINT_TIMEOUT_S) -> None:
        self._opener = opener
        self._timeout_s = timeout_s
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._burnt_in = False
        self.restarts = -1
        self._start()

    def __enter__(self) -> IsolatedDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def prepare(self, point: Point) -> Work:
        raise MeasurementError("a device in a worker process is asked for visits, not prepared")

    def burn_in(self) -> None:
        """Run in the worker; a replacement of the worker burns in again.

        Raises :class:`MeasurementError` where the device cannot do even that.
        """
        self._burnt_in = True
        try:
            answer = self._ask(("burn_in",), START_TIMEOUT_S)
        except _WorkerLostError as lost:
            raise MeasurementError(f"the device cannot be kept busy: {lost}") from None
        if isinstance(answer, Exception):
            self._stop()
            raise MeasurementError(f"the device cannot be kept busy: {answer}") from None

    def measure_visit(self, visit: Visit, axes: tuple[str, ...], timing: Timing) -> Sample:
        """The sample of a visit. Whatever happens to the worker becomes a failed sample."""
        if self._pipe is None:
            self._start()
            if self._burnt_in:
                self.burn_in()
        try:
            answer = self._ask(("visit", visit, axes, timing), self._timeout_s)
        except _WorkerLostError as lost:
            return self._failed(visit, axes, str(lost))
        sample, spoilt = answer
        assert isinstance(sample, Sample)
        if spoilt:
            self._stop()
        return sample

    def close(self) -> None:
        self._stop()

    def _ask(self, message: tuple[Any, ...], timeout_s: float) -> Any:
        assert self._pipe is not None
        try:
            self._pipe.send(message)
            if not self._pipe.poll(timeout_s):
                self._stop()
                raise _WorkerLostError(f"hung: no answer within {timeout_s:g} s")
            return self._pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            how = self._stop(DYING_S)
            raise _WorkerLostError(f"the worker process {how}") from None
        except KeyboardInterrupt:
            self._stop()  # its answer would be taken for the next point's
            raise

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, self._opener, os.getpid()), daemon=True
        )
        self._process.start()
        theirs.close()
        self._pipe = ours
        self.restarts += 1
        try:
            answer = self._ask(("hello",), START_TIMEOUT_S)
        except _WorkerLostError as lost:
            raise MeasurementError(f"the device cannot be opened in a worker: {lost}") from None
        if isinstance(answer, Exception):
            self._stop()
            raise MeasurementError(str(answer)) from None
        self.environment: Environment
        self.timer: str
        self.environment, self.timer = answer

    def _stop(self, patience_s: float = LEAVING_S) -> str:
        """End the worker; says how it ended if it had done so by itself."""
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

    def _failed(self, visit: Visit, axes: tuple[str, ...], reason: str) -> Sample:
        return Sample(
            visit.point,
            axes,
            (),
            self.timer,
            visit.number,
            visit.duplicate,
            status="failed",
            reason=reason,
            taken_at=time.time(),
        )


class _WorkerLostError(Exception):
    """The worker died or had to be killed; says why."""


@contextlib.contextmanager
def sweeper(device: Device, name: str, *, apart: bool | None = None) -> Iterator[Device]:
    """The device to sweep with, for a process that goes on to other work afterwards.

    A GPU's is in a process of its own (``apart`` decides otherwise): what spoils its context
    costs one point, its memory is free again, and its tracing slows nothing that follows.
    """
    if not (device.environment.kind == "cuda" if apart is None else apart):
        yield device
        return
    with IsolatedDevice(OpenNamed(name)) as worker:
        yield worker


def _serve(pipe: Connection, opener: Opener, parent: int) -> None:
    """The worker: open the device, answer messages until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _die_with(parent)
    # Else Inductor starts a process for each core: for a handful of points, beside the timing.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    from gacprof.sweeping.visiting import measure_visit

    try:
        device = opener()
        hello: Any = (device.environment, device.timer)
    except Exception as error:
        hello = MeasurementError(str(error))
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            message = pipe.recv()
            if message[0] == "hello":
                pipe.send(hello)
            elif message[0] == "burn_in":
                pipe.send(_burn_in(device))
            else:
                sample = measure_visit(device, *message[1:])
                pipe.send((sample, sample.status == "failed" and _spoilt(device, sample.reason)))


def _burn_in(device: Device) -> Exception | None:
    try:
        device.burn_in()
    except Exception as error:  # sent as text: not every exception survives pickling
        return MeasurementError((str(error).strip() or type(error).__name__).splitlines()[0])
    return None


def _spoilt(device: Device, reason: str) -> bool:
    """Whether nothing more can be measured in this process."""
    usable: Callable[[], bool] | None = getattr(device, "usable", None)
    return not usable() if usable else any(sign in reason for sign in SPOILT)


def _die_with(parent: int) -> None:
    """Ask Linux to kill this process when its parent dies, so that a hung one is not left."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)

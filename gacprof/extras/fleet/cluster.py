"""What runs beside a device of the fleet, and where: in Ray, or in threads of this process.

A :class:`Worker` is the engine of a sweep, one batch of blocks a call; a :class:`Cluster` is what
the driver needs of Ray.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import gacprof
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Block, Environment, PointNote
from gacprof.devices.device import Device
from gacprof.devices.worker import IsolatedDevice, Opener, open_in_worker
from gacprof.sweeping.engine import CurveOutcome, SweepEngine
from gacprof.sweeping.suite import CurvePlan, Schedule

THREADS = "OMP_NUM_THREADS"
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Hello(NamedTuple):
    """What a worker opened. ``version`` is gacprof's there; ``gpu`` names a GPU as its node does,
    empty where that is unknown."""

    environment: Environment
    timer: str
    version: str
    gpu: str


class ShareStep(NamedTuple):
    """What one call measured. ``outcomes`` by curve, once the share is ``over``."""

    blocks: Sequence[Block]
    notes: Sequence[PointNote]
    done: float
    total: float
    over: bool
    outcomes: Mapping[str, CurveOutcome]


class Worker:
    """Opens its device in a process of its own, so that what crashes or hangs is handled beside
    it. ``threads`` is ``OMP_NUM_THREADS`` of the caller: Ray sets one of its own."""

    def __init__(
        self,
        opener: Opener,
        *,
        timeout_s: float,
        processes: int = 1,
        isolate: bool = True,
        threads: str | None = None,
    ) -> None:
        self._opener, self._timeout_s, self._isolate = opener, timeout_s, isolate
        self._spares, self._threads = processes - 1, threads
        self._device: Device | None = None
        self._engine: SweepEngine | None = None
        self._steps: Iterator[None] = iter(())
        self._kept: _Kept = _Kept()

    def hello(self) -> Hello:
        """Open the device. Raises :class:`MeasurementError`."""
        os.environ.pop(THREADS, None)
        if self._threads is not None:
            os.environ[THREADS] = self._threads
        if self._isolate:
            self._device = IsolatedDevice(self._opener, self._timeout_s, self._spares)
        else:
            self._device = self._opener()
        # Ray shows a worker one GPU only, as ``cuda:0``: which one of the node that is.
        visible = os.environ.get(VISIBLE, "")
        gpu = "" if "," in visible else f"cuda:{visible}" if visible.isdigit() else visible
        return Hello(self._device.environment, self._device.timer, gacprof.__version__, gpu)

    def begin(
        self,
        timing: Schedule,
        plans: Sequence[CurvePlan],
        blocks: Sequence[Block],
        budget_s: float | None,
        salt: str,
    ) -> None:
        """Take a share of the curves, and the blocks of them that there are."""
        assert self._device is not None
        if self._engine is not None:
            self._device.renew()
        self._kept = _Kept()
        self._engine = SweepEngine(
            timing, self._device, plans, self._kept, blocks=blocks, budget_s=budget_s, salt=salt
        )
        self._steps = self._engine.steps()

    def step(self) -> ShareStep:
        """Measure the next batch. Raises :class:`MeasurementError` where the device cannot."""
        assert self._engine is not None
        over = next(self._steps, self) is self
        kept, outcomes = self._kept, self._engine.outcomes() if over else {}
        measured = ShareStep(kept.blocks, kept.notes, *self._engine.progress(), over, outcomes)
        kept.blocks, kept.notes = [], []
        return measured

    def close(self) -> None:
        if self._device is not None:
            self._device.close()
        self._device = None


@dataclass
class _Kept:
    """Blocks and notes until they are handed over."""

    blocks: list[Block] = field(default_factory=list)
    notes: list[PointNote] = field(default_factory=list)

    def append(self, *blocks: Block) -> None:
        self.blocks.extend(blocks)

    def note(self, notes: Iterable[PointNote]) -> None:
        self.notes += notes


@dataclass(frozen=True)
class WorkerPlace:
    """Where a worker can be started: one device of a ``node``. ``device`` is its name there
    (``cuda:0``), ``number`` tells those of a node apart, ``name`` is the fleet's. ``resources`` are
    those of the node in Ray."""

    name: str = field(compare=False)
    node: str
    device: str
    number: int = 0
    resources: dict[str, float] = field(default_factory=dict, compare=False)


class GoneError(MeasurementError):
    """A worker, or its node, is no longer there."""


Making = partial[Worker]
"""Makes the worker where it is to run; it must survive pickling."""


class Cluster(Protocol):
    """Workers by handle; what a call returns is a reference, known by its value. ``grows`` says
    whether more places may come."""

    grows: bool

    def places(self) -> list[WorkerPlace]: ...
    def start(self, place: WorkerPlace, make: Making) -> Any: ...
    def call(self, handle: Any, method: str, *args: Any) -> Any: ...

    def ready(self, references: Sequence[Any], timeout_s: float) -> Iterable[Any]:
        """Those that are answered, after waiting for one."""
        ...

    def result(self, reference: Any) -> Any:
        """Raises :class:`GoneError`, or :class:`MeasurementError` that the worker raised."""
        ...

    def stop(self, handle: Any) -> None: ...


class Threads:
    """The devices of this machine, a thread each; their sweeps run in processes of their own."""

    grows = False

    def __init__(self, devices: Sequence[str]) -> None:
        host = platform.node() or "here"
        self._places = [WorkerPlace(f"{host}/{name}", host, name) for name in devices]

    def places(self) -> list[WorkerPlace]:
        return self._places

    def start(self, place: WorkerPlace, make: Making) -> tuple[Worker, ThreadPoolExecutor]:
        return make(), ThreadPoolExecutor(1, thread_name_prefix=place.name)

    def call(self, handle: tuple[Worker, ThreadPoolExecutor], method: str, *args: Any) -> Any:
        worker, thread = handle
        return thread.submit(getattr(worker, method), *args)

    def ready(self, references: Sequence[Future[Any]], timeout_s: float) -> Iterable[Any]:
        return wait(references, timeout_s, return_when=FIRST_COMPLETED).done

    def result(self, reference: Future[Any]) -> Any:
        return reference.result()

    def stop(self, handle: tuple[Worker, ThreadPoolExecutor]) -> None:
        worker, thread = handle
        thread.submit(worker.close)  # a process ends with the thread that started it
        thread.shutdown(wait=True)


OpenerOn = Callable[[WorkerPlace], Opener]
"""How the device of a place is opened by its worker."""


def opener_on(own: bytes, timer: str) -> OpenerOn:
    """The real device of a place. ``own`` are the caller's operators."""
    return lambda place: partial(open_in_worker, own, place.device, timer)

"""Where workers run: what the driver needs of Ray, and the same in threads of this process."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from gacprof.core.errors import MeasurementError
from gacprof.devices.worker import Opener, open_away
from gacprof.extras.fleet.worker import Worker


@dataclass(frozen=True)
class Place:
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

    def places(self) -> list[Place]: ...
    def start(self, place: Place, make: Making) -> Any: ...
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
        self._places = [Place(f"{host}/{name}", host, name) for name in devices]

    def places(self) -> list[Place]:
        return self._places

    def start(self, place: Place, make: Making) -> tuple[Worker, ThreadPoolExecutor]:
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


OpenerOn = Callable[[Place], Opener]
"""How the device of a place is opened by its worker."""


def opener_on(own: bytes, timer: str) -> OpenerOn:
    """The real device of a place. ``own`` are the caller's operators."""
    return lambda place: partial(open_away, own, place.device, timer)

"""Layers of a model decomposed, and parts of an evaluation scored, as Ray tasks.

The functions are those that run on one machine, and so are their results, to the last bit: a task
runs only on nodes whose processor or GPU, libraries and number of threads are this machine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any, TypeVar

from gacprof.core.errors import MeasurementError
from gacprof.core.tasks import Tasks
from gacprof.devices.device import device_name
from gacprof.fleet.cluster import GoneError
from gacprof.fleet.members import kind_of
from gacprof.fleet.on_ray import connected, imported, result_of

T = TypeVar("T")

TRIES = 4
"""Nodes or processes lost with one task before it is given up."""
AHEAD = 2
"""Tasks a node that are under way: their arguments and results bound the object store's use."""


@contextmanager
def tasks_on(address: str | None, device: str | None) -> Iterator[Tasks]:
    """Tasks on the Ray at ``address`` (:func:`.on_ray.connected`); in this process without one."""
    if address is None:
        yield Tasks()
        return
    with connected(address):
        yield RayTasks(device_name(device))


class RayTasks(Tasks):
    """Tasks on the nodes of the Ray that is connected which are equal to this machine; ``device``
    is ``cpu`` or ``cuda``.

    Raises :class:`MeasurementError` where no node is.
    """

    def __init__(self, device: str) -> None:
        import torch

        self._ray, self._device = imported(), device.partition(":")[0]
        self._threads = torch.get_num_threads()
        self._kind = _kind(self._device, self._threads)
        self._remote = self._ray.remote(max_retries=0)(_run)
        self._nodes = cycle(self._equal_nodes())

    def _equal_nodes(self) -> list[str]:
        ids = [node["NodeID"] for node in self._ray.nodes() if node["Alive"] and self._fits(node)]
        asked = [self._on(node, _kind, (self._device, self._threads)) for node in ids]
        equal = []
        for node, reference in zip(ids, asked, strict=True):
            try:
                if result_of(self._ray, reference) == self._kind:
                    equal.append(node)
            except MeasurementError:  # a node that cannot even answer is not used
                continue
        if not equal:
            raise MeasurementError(
                f"none of the {len(ids)} nodes with a {self._device} and {self._threads} cores has "
                "this machine's processor and libraries, so that results could differ: start "
                "the command on one of the nodes ('ray job submit')"
            )
        self.ahead = AHEAD * len(equal)
        return equal

    def _fits(self, node: dict[str, Any]) -> bool:
        resources = node["Resources"]
        gpu = self._device != "cuda" or resources.get("GPU", 0) >= 1
        return gpu and resources.get("CPU", 0) >= self._threads

    def _on(self, node: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

        gpus = 1 if self._device == "cuda" else 0
        options = self._remote.options(
            num_cpus=self._threads, num_gpus=gpus, scheduling_strategy=OnNode(node, soft=False)
        )
        return options.remote(self._threads, function, *args)

    def submit(self, function: Callable[..., T], *args: object) -> Callable[[], T]:
        begun = self._on(next(self._nodes), function, args)
        return lambda: self._result(begun, function, args)

    def _result(self, reference: Any, function: Callable[..., T], args: tuple[Any, ...]) -> T:
        for _ in range(TRIES - 1):
            try:
                found: T = result_of(self._ray, reference)
                return found
            except GoneError:
                self._nodes = cycle(self._equal_nodes())
                reference = self._on(next(self._nodes), function, args)
        last: T = result_of(self._ray, reference)
        return last


def _run(threads: int, function: Callable[..., T], *args: Any) -> T:
    """In the task: with the caller's number of threads, for sums are split among them."""
    import torch

    torch.set_num_threads(threads)
    return function(*args)


def _kind(device: str, threads: int) -> str:
    """What results depend on: the device and its libraries."""
    from gacprof.devices.environment import cpu_environment, cuda_environment

    environment = cpu_environment() if device == "cpu" else cuda_environment(0, None)
    return kind_of(environment, str(threads))

"""Ray as the fleet's cluster: an actor a device, tasks for the layers of models.

Nothing large goes through Ray's object store: a batch of blocks is some kilobytes, and Ray sends
those from process to process. The store that a local Ray begins with is bounded (:data:`STORE`).

Batches of a calibration text are run through a model's layers, and these are decomposed, as Ray
tasks. The functions are those that run on one machine, and
so are their results, to the last bit: a task runs only on nodes whose processor or GPU, libraries
and number of threads are this machine's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from secrets import token_hex
from typing import Any, TypeVar

from gacprof.core.errors import GacprofError, MeasurementError, first_line
from gacprof.core.tasks import Tasks
from gacprof.devices.environment import cpu_environment, cuda_environment
from gacprof.devices.opening import device_name
from gacprof.extras.fleet.cluster import GoneError, Making, Worker, WorkerPlace
from gacprof.extras.fleet.members import kind_of

STORE = 128 << 20
"""Bytes of a local Ray's object store."""
KINDS = ("auto", "cuda", "cpu", "all")
TRIES = 4
"""Nodes or processes lost with one task before it is given up."""
AHEAD = 2
"""Tasks a node that are under way: their arguments and results bound the object store's use."""

T = TypeVar("T")


def imported(local: bool = False) -> Any:
    """The package. A ``local`` Ray listens on the loopback address alone, and asks for a token.

    Raises :class:`MeasurementError` where it is not installed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # this program reports to nobody
    if local:
        # The nodes' address is the loopback one where Ray makes no clusters (services.py,
        # get_node_ip_address): the switch for that is named after other systems.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        if "RAY_AUTH_MODE" not in os.environ:
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(32)}
    # A worker gets the GPU that it asked for; one that asked for none still sees those there are.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise MeasurementError(
            "a fleet runs on Ray, which is not installed here: pip install 'gacprof[fleet]'"
        ) from None
    return ray


@contextmanager
def connected(address: str) -> Iterator[None]:
    """A connection to the Ray at ``address``: ``local`` starts one for the time, ``auto`` is the
    cluster that this machine belongs to. One that the caller has made is used and left open.

    Raises :class:`MeasurementError` where there is none.
    """
    local = address == "local"
    ray = imported(local)
    if ray.is_initialized():
        yield
        return
    more = {"object_store_memory": STORE, "include_dashboard": False} if local else {}
    try:
        ray.init(address, logging_level=logging.ERROR, log_to_driver=False, **more)
    except (
        ray.exceptions.RayError, ConnectionError, ValueError, RuntimeError, ImportError, OSError,
    ) as error:  # fmt: skip
        raise MeasurementError(
            f"no Ray cluster at '{address}' ({first_line(error)}): start one with "
            "'ray start --head', or use --address local"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


class RayCluster:
    """The devices of the nodes of the Ray that is connected. ``kind`` chooses among them: GPUs,
    CPUs (one device a node), both, or GPUs if there are any, else CPUs."""

    grows = True

    def __init__(self, kind: str = "auto") -> None:
        if kind not in KINDS:
            raise MeasurementError(f"'{kind}' is no kind of device: use {', '.join(KINDS)}")
        self._ray, self._kind = imported(), kind
        self._actor = self._ray.remote(max_restarts=0, max_task_retries=0)(Worker)

    def places(self) -> list[WorkerPlace]:
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        hosts = [node["NodeManagerHostname"] for node in nodes]
        gpus, cpus = [], []
        for node, host in zip(nodes, hosts, strict=True):
            name, resources = node["NodeID"], node["Resources"]
            if hosts.count(host) > 1:  # several nodes on one machine
                host = f"{host}-{name[:6]}"
            for i in range(int(resources.get("GPU", 0))):
                gpus.append(WorkerPlace(f"{host}/gpu{i}", name, "cuda:0", i, resources))
            if resources.get("CPU", 0) >= 1:
                cpus.append(WorkerPlace(f"{host}/cpu", name, "cpu", 0, resources))
        chosen = {"cuda": gpus, "cpu": cpus, "all": gpus + cpus, "auto": gpus or cpus}
        return chosen[self._kind]

    def start(self, place: WorkerPlace, make: Making) -> Any:
        # All cores of a CPU that is measured; beside a GPU one that starts its calls.
        needed = {"num_cpus": int(place.resources["CPU"])} if place.device == "cpu" else {
            "num_gpus": 1, "num_cpus": min(1, place.resources.get("CPU", 0))}  # fmt: skip
        actor = self._actor.options(**needed, **_on_node(place.node))
        return actor.remote(*make.args, **make.keywords)

    def call(self, handle: Any, method: str, *args: Any) -> Any:
        return getattr(handle, method).remote(*args)

    def ready(self, references: Sequence[Any], timeout_s: float) -> Iterable[Any]:
        done, rest = self._ray.wait(list(references), num_returns=1, timeout=timeout_s)
        if done and rest:
            done += self._ray.wait(rest, num_returns=len(rest), timeout=0)[0]
        return done

    def result(self, reference: Any) -> Any:
        return result_of(self._ray, reference)

    def stop(self, handle: Any) -> None:
        self._ray.kill(handle)


def _on_node(node: str) -> dict[str, Any]:
    """The option that runs an actor or a task on this very node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


def result_of(ray: Any, reference: Any) -> Any:
    """Raises :class:`GoneError` for a process or node that died, gacprof's own errors as they are,
    and anything else as :class:`MeasurementError`."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, GacprofError) and not isinstance(cause, GoneError):
            raise type(cause)(str(cause)) from None
        raise MeasurementError(first_line(cause)) from None
    except ray.exceptions.RayError as error:
        raise GoneError(_why(error)) from None


def _why(error: Exception) -> str:
    """Ray's message goes on for pages; its cause is a line of its own."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if "Worker exit type" in line or "node" in line.lower()]
    return f"its Ray worker died ({(causes or lines or [type(error).__name__])[0][:160]})"


@contextmanager
def tasks_on(address: str | None, device: str | None) -> Iterator[Tasks]:
    """Tasks on the Ray at ``address`` (:func:`connected`); in this process without one."""
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
        self._layer: tuple[Any, Any] = (None, None)

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
        gpus = 1 if self._device == "cuda" else 0
        there = self._remote.options(num_cpus=self._threads, num_gpus=gpus, **_on_node(node))
        return there.remote(self._threads, function, *args)

    def submit(self, function: Callable[..., T], *args: object) -> Callable[[], T]:
        from torch import nn

        sent = tuple(self._stored(arg) if isinstance(arg, nn.Module) else arg for arg in args)
        begun = self._on(next(self._nodes), function, sent)
        return lambda: self._result(begun, function, sent)

    def _stored(self, layer: Any) -> Any:
        """A layer goes into the object store once for all its batches."""
        if self._layer[0] is not layer:
            self._layer = layer, self._ray.put(layer)
        return self._layer[1]

    def _result(self, reference: Any, function: Callable[..., T], args: tuple[Any, ...]) -> T:
        for _ in range(TRIES - 1):
            try:
                return result_of(self._ray, reference)
            except GoneError:
                self._nodes = cycle(self._equal_nodes())
                reference = self._on(next(self._nodes), function, args)
        return result_of(self._ray, reference)


def _run(threads: int, function: Callable[..., T], *args: Any) -> T:
    """In the task: with the caller's number of threads, for sums are split among them."""
    import torch

    torch.set_num_threads(threads)
    return function(*args)


def _kind(device: str, threads: int) -> str:
    """What results depend on: the device and its libraries."""
    environment = cpu_environment() if device == "cpu" else cuda_environment(0, None)
    return kind_of(environment, str(threads))

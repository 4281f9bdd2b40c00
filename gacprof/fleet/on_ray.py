"""Ray as the fleet's cluster: an actor a device, tasks for the layers of models.

Nothing large goes through Ray's object store: a batch of blocks is some kilobytes, and Ray sends
those from process to process. The store that a local Ray begins with is bounded (:data:`STORE`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gacprof.core.errors import GacprofError, MeasurementError, first_line
from gacprof.fleet.cluster import GoneError, Making, Place
from gacprof.fleet.worker import Worker

STORE = 128 << 20
"""Bytes of a local Ray's object store."""
KINDS = ("auto", "cuda", "cpu", "all")


def imported() -> Any:
    """The package. Raises :class:`MeasurementError` where it is not installed."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # this program reports to nobody
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
    ray = imported()
    if ray.is_initialized():
        yield
        return
    local = address == "local"
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

    def places(self) -> list[Place]:
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        hosts = [node["NodeManagerHostname"] for node in nodes]
        gpus, cpus = [], []
        for node, host in zip(nodes, hosts, strict=True):
            name, resources = node["NodeID"], node["Resources"]
            if hosts.count(host) > 1:  # several nodes on one machine
                host = f"{host}-{name[:6]}"
            for i in range(int(resources.get("GPU", 0))):
                gpus.append(Place(f"{host}/gpu{i}", name, "cuda:0", i, resources))
            if resources.get("CPU", 0) >= 1:
                cpus.append(Place(f"{host}/cpu", name, "cpu", 0, resources))
        chosen = {"cuda": gpus, "cpu": cpus, "all": gpus + cpus, "auto": gpus or cpus}
        return chosen[self._kind]

    def start(self, place: Place, make: Making) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

        # All cores of a CPU that is measured; beside a GPU one that starts its calls.
        needed = {"num_cpus": int(place.resources["CPU"])} if place.device == "cpu" else {
            "num_gpus": 1, "num_cpus": min(1, place.resources.get("CPU", 0))}  # fmt: skip
        options = {**needed, "scheduling_strategy": OnNode(place.node, soft=False)}
        made = make.keywords  # type: ignore[attr-defined]
        return self._actor.options(**options).remote(*make.args, **made)  # type: ignore[attr-defined]

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
    told = [line for line in lines if "Worker exit type" in line or "node" in line.lower()]
    return f"its Ray worker died ({(told or lines or [type(error).__name__])[0][:160]})"

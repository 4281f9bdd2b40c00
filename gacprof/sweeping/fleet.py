"""A suite swept by all devices of a Ray cluster: equal devices share the axes, a map for each kind.

Each device runs the sweep of its share into a folder of its own, and sends the blocks. A task whose
node is lost is run anew by Ray.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gacprof.cliffmap.build import build_map
from gacprof.cliffmap.cliffmap import MAP_FILE
from gacprof.cliffmap.run_folder import PointRecords, RunHeader, RunWriter
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Axis, Block, Environment
from gacprof.devices.device import open_device
from gacprof.sweeping.engine import measure, require_budget
from gacprof.sweeping.suite import load_suite

TRIES = 3
"""Times that a share is measured anew when its node is lost."""


@dataclass(frozen=True)
class Place:
    """A device of the cluster: a GPU of a node, or all CPUs of a node without one."""

    node: str
    cpus: float
    gpus: int


Share = tuple[list[Block], PointRecords]
"""The blocks and point records that one device measured of its axes."""


def sweep_fleet(
    suite: str | Path = "quick",
    *,
    address: str = "local",
    out: str | Path = "runs/fleet",
    budget_s: float | None = None,
) -> dict[str, Path]:
    """Sweep many devices at once, on Ray.

    Parameters
    ----------
    suite
        A shipped suite's name or a TOML file.
    address
        A Ray cluster: auto, ray://HEAD:10001, or local for this machine alone.
    out
        The folder of run folders, one for each kind of device: equal name, architecture and stack.
    budget_s
        Seconds for each device.

    Returns
    -------
    dict of Path
        By kind of device: the run folder, which holds ``cliffmap.json``.

    Raises
    ------
    MeasurementError
        The cluster has no device, or a run folder is there already.
    """
    require_budget(budget_s)
    ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
    places = find_places()
    environments = ray.get([on_place(place, read_environment_of).remote(place) for place in places])
    kinds: dict[str, list[int]] = {}
    for i, environment in enumerate(environments):
        kinds.setdefault(kind_of(environment), []).append(i)
    folders = {}
    for kind, members in kinds.items():
        header = header_of(suite, environments[members[0]])
        run = RunWriter.create(Path(out) / kind, header)
        shares = ray.get(
            [
                on_place(places[i], measure_share).remote(
                    places[i], replace_axes(header, header.axes[place :: len(members)]), budget_s
                )
                for place, i in enumerate(members)
            ]
        )
        collect(run, shares)
        build_map(run).save(run.path / MAP_FILE)
        folders[kind] = run.path
    return folders


def find_places() -> list[Place]:
    """The devices of the cluster that answers now.

    Raises :class:`MeasurementError` where there is none.
    """
    places = []
    for node in ray.nodes():
        resources: dict[str, float] = node["Resources"]
        gpus = int(resources.get("GPU", 0))
        if node["Alive"] and gpus:
            places += [Place(node["NodeID"], 1.0, 1)] * gpus
        elif node["Alive"] and resources.get("CPU", 0) >= 1:
            places.append(Place(node["NodeID"], resources["CPU"], 0))
    if not places:
        raise MeasurementError("the Ray cluster has no device: start its nodes first")
    return places


def on_place(place: Place, function: Any) -> Any:
    """The function as a Ray task that runs on that device alone."""
    strategy = NodeAffinitySchedulingStrategy(place.node, soft=False)
    return ray.remote(function).options(
        num_cpus=place.cpus,
        num_gpus=place.gpus,
        max_retries=TRIES,
        scheduling_strategy=strategy,
    )


def device_name(place: Place) -> str:
    return "cuda" if place.gpus else "cpu"


def read_environment_of(place: Place) -> Environment:
    """The environment of a device, read where it is."""
    device = open_device(device_name(place), isolated=True)
    device.close()
    return device.environment


def measure_share(place: Place, header: RunHeader, budget_s: float | None) -> Share:
    """Sweep some axes on a device, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunWriter.create(folder, header)
        measure(run, lambda: open_device(device_name(place), isolated=True), budget_s=budget_s)
        return [block for axis in run.axes for block in run.blocks(axis)], run.points


def collect(run: RunWriter, shares: Sequence[Share]) -> None:
    """Write what the devices measured into one run folder."""
    for blocks, points in shares:
        for block in blocks:
            run.append(block)
        run.points.kernels.update(points.kernels)
        run.points.kernel_us.update(points.kernel_us)
        run.points.failures.update(points.failures)
    run.fold()


def header_of(suite: str | Path, environment: Environment) -> RunHeader:
    loaded = load_suite(suite, environment.kind)
    return RunHeader(loaded.name, environment, loaded.axes)


def replace_axes(header: RunHeader, axes: tuple[Axis, ...]) -> RunHeader:
    return RunHeader(header.name, header.environment, axes)


def kind_of(environment: Environment) -> str:
    """A folder's name for equal devices: ``nvidia-h100-80gb-hbm3-sm90-torch-2.13.0``."""
    stack = [f"{name}-{version}" for name, version in environment.stack.items()]
    text = "-".join([environment.name, environment.arch, *stack[:1]])
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")

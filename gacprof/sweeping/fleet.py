"""Sweep a suite on all devices of a Ray cluster: equal devices share the axes of one map."""

import hashlib
import re
import tempfile
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gacprof.cliffmap.build import build_map
from gacprof.cliffmap.cliffmap import MAP_FILE
from gacprof.cliffmap.run_folder import PointRecords, RunHeader, RunWriter
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Block, Environment
from gacprof.devices.device import open_device
from gacprof.sweeping.engine import measure, require_budget
from gacprof.sweeping.suite import load_suite

TRIES = 3  # times that a share is measured anew when its node is lost


def sweep_fleet(
    suite: str | Path = "quick",
    *,
    address: str = "local",
    out: str | Path = "runs/fleet",
    budget_s: float | None = None,
) -> dict[str, Path]:
    """Measure many devices at once, on a Ray cluster.

    Parameters
    ----------
    suite
        What to measure: a shipped suite (quick, full, cpu, paper …) or a TOML file of your own.
    address
        The Ray cluster: auto, ray://HEAD:10001, or local for this machine alone.
    out
        The folder for the run folders, one for each kind of device: equal name, architecture and
        software.
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
    devices = find_devices()
    environments = ray.get([run_on(device, environment_of) for device in devices])
    kinds: dict[str, list[int]] = {}
    for number, environment in enumerate(environments):
        kinds.setdefault(kind_of(environment), []).append(number)
    folders = {}
    for kind, members in kinds.items():
        environment = environments[members[0]]
        loaded = load_suite(suite, environment.kind)
        header = RunHeader(loaded.name, environment, loaded.axes)
        run = RunWriter.create(Path(out) / kind, header)
        shares = []
        for place, number in enumerate(members):
            share = replace(header, axes=header.axes[place :: len(members)])
            shares.append(run_on(devices[number], measure_share, share, budget_s))
        for blocks, points in ray.get(shares):
            for block in blocks:
                run.append(block)
            run.points.kernels.update(points.kernels)
            run.points.kernel_us.update(points.kernel_us)
            run.points.failures.update(points.failures)
        run.fold()
        build_map(run).save(run.path / MAP_FILE)
        folders[kind] = run.path
    return folders


def find_devices() -> list[dict[str, Any]]:
    """Return what Ray is to give a task of each device: a GPU of a node, or all CPUs of a node
    without one. Raises :class:`MeasurementError` for a cluster that has none."""
    devices = []
    for node in [node for node in ray.nodes() if node["Alive"]]:
        resources: dict[str, float] = node["Resources"]
        gpus, cpus = int(resources.get("GPU", 0)), resources.get("CPU", 0)
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        if gpus:
            devices += [{"scheduling_strategy": strategy, "num_cpus": 1, "num_gpus": 1}] * gpus
        elif cpus >= 1:
            devices.append({"scheduling_strategy": strategy, "num_cpus": cpus, "num_gpus": 0})
    if not devices:
        raise MeasurementError("the Ray cluster has no device: start its nodes first")
    return devices


def run_on(device: dict[str, Any], function: Any, *arguments: Any) -> Any:
    """Call a function with a device's name and arguments; Ray retries when a node is lost."""
    name = "cuda" if device["num_gpus"] else "cpu"
    return ray.remote(function).options(max_retries=TRIES, **device).remote(name, *arguments)


def environment_of(device_name: str) -> Environment:
    """Return the environment of a device, read where it is."""
    device = open_device(device_name, isolated=True)
    device.close()
    return device.environment


def measure_share(
    device_name: str, header: RunHeader, budget_s: float | None
) -> tuple[list[Block], PointRecords]:
    """Sweep some axes on a device, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        run = RunWriter.create(folder, header)
        measure(run, lambda: open_device(device_name, isolated=True), budget_s=budget_s)
        return [*chain.from_iterable(map(run.blocks, run.axes))], run.points


def kind_of(environment: Environment) -> str:
    """Return a folder's name for devices of equal name, architecture and stack, which ends in a
    digest of the stack: ``nvidia-h100-80gb-hbm3-sm90-torch-2.13.0-1f0c9a77``."""
    stack = sorted(environment.stack.items())
    digest = hashlib.sha256(repr(stack).encode()).hexdigest()[:8]
    text = f"{environment.name} {environment.arch} torch {environment.stack['torch']} {digest}"
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")

"""A real Ray on this machine: several nodes, unlike devices; workers, nodes, drivers killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from simulated import findings, open_one, opener_on, suite

from gacprof.core.errors import MeasurementError
from gacprof.extras.fleet.driver import sweep_fleet
from gacprof.sweeping import read_blocks, run_sweep

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


def sweep(cluster, out, chosen, **how):
    from gacprof.extras.fleet.on_ray import RayCluster, connected

    with connected(cluster.address):
        return sweep_fleet(chosen, RayCluster("cpu"), partial(opener_on, **how), out)


def test_unlike_nodes_give_a_map_each_and_it_is_that_of_one_machine(cluster, tmp_path):
    done = sweep(cluster, tmp_path / "out", suite(5))
    assert sorted(len(devices) for devices in done.devices.values()) == [1, 2]
    run_sweep(suite(5), open_one(), tmp_path / "one")
    alone = findings(tmp_path / "one")
    for run in done.runs.values():
        assert (run.failed, run.unfinished) == (0, 0) and findings(run.folder) == alone


def test_a_killed_worker_is_replaced(cluster, tmp_path):
    killed = []

    def kill_once(members):
        if not killed and sum(m.blocks for m in members) > 20:
            killed.append(workers()[0])
            os.kill(killed[0], signal.SIGKILL)

    from gacprof.extras.fleet.on_ray import RayCluster, connected

    with connected(cluster.address):
        done = sweep_fleet(
            suite(5, 64, 72), RayCluster("cpu"), partial(opener_on, pause_s=0.001),
            tmp_path / "out", watch=kill_once,
        )  # fmt: skip
    assert killed and done.lost == 1 and "Ray worker died" in done.notes[0]
    assert all(run.unfinished == run.failed == 0 for run in done.runs.values())


def workers():
    """Ray's processes that hold a worker of ours, among this process's descendants."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and descends(int(entry.name)):
            try:
                title = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"ray::Worker" in title:
                found.append(int(entry.name))
    return found


def descends(pid):
    while pid > 1:
        if pid == os.getpid():
            return True
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        pid = int(text.rpartition(")")[2].split()[1])
    return False


def test_a_killed_driver_and_a_lost_node_cost_only_what_was_under_way(cluster, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, str(HERE / "drive.py"), cluster.address, str(out)]
    driver = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not any(file.stat().st_size > 30_000 for file in out.glob("*/journal.jsonl")):
        assert driver.poll() is None
        time.sleep(0.1)
    driver.kill()
    driver.wait()
    before = {folder: read_blocks(folder) for folder in out.iterdir() if folder.is_dir()}
    assert any(before.values())
    cluster.remove_node(cluster.own[0], allow_graceful=False)
    subprocess.run([*command, "--resume"], check=True, timeout=200, stdout=subprocess.DEVNULL)
    for folder, blocks in before.items():
        after = read_blocks(folder)
        assert after[: len(blocks)] == blocks and len(after) > len(blocks)
        assert [block.number for block in after] == list(range(len(after)))
    made = len((tmp_path / "out.log").read_text().splitlines())
    kept = sum(len(read_blocks(folder)) for folder in before)
    assert 0 <= made - kept <= 3 * 2 * 16, "two batches a worker are under way"


def test_layers_computed_as_tasks_give_the_same_bits(local, tmp_path):
    import torch
    from compressing_models import make_model

    import gacprof
    from gacprof.extras.fleet.on_ray import tasks_on

    dense = make_model(tmp_path / "dense")
    ids = torch.randint(0, 128, (12, 32), generator=torch.Generator().manual_seed(3))
    for name, address in (("here", None), ("ray", "local")):
        with tasks_on(address, "cpu") as tasks:
            assert bool(tasks.ahead) == (name == "ray")
            for method in ("kfac-svd", "palu"):
                gacprof.compress(
                    dense, tmp_path / f"{name}-{method}", method=method, ratio=0.3, calib=ids,
                    device="cpu", tasks=tasks,
                )  # fmt: skip
    for method in ("kfac-svd", "palu"):
        here, ray = (tmp_path / f"{name}-{method}" for name in ("here", "ray"))
        weights = sorted(here.glob("*.safetensors"))
        assert weights
        for file in weights:
            assert file.read_bytes() == (ray / file.name).read_bytes()


def test_an_error_in_a_task_is_the_users_own(local):
    from gacprof.core.errors import CompressionError
    from gacprof.extras.fleet.on_ray import RayTasks

    with pytest.raises(CompressionError, match="overflow"):
        RayTasks("cpu").submit(_failing)()


def _failing():
    from gacprof.core.errors import CompressionError

    raise CompressionError("they overflow")


def test_a_kind_of_device_that_there_is_not_is_refused(ray):
    from gacprof.extras.fleet.on_ray import RayCluster

    with pytest.raises(MeasurementError, match="is no kind of device"):
        RayCluster("tpu")


LISTENING = """
import os
from pathlib import Path
from gacprof.extras.fleet.on_ray import connected
with connected("local"):
    import ray
    assert ray.get(ray.remote(lambda: 41).remote()) == 41
    assert os.environ["RAY_AUTH_MODE"] == "token"
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        parents[stat.parent.name] = stat.read_text().rpartition(")")[2].split()[1]
    ours = {str(os.getpid())}
    for _ in range(4):
        ours |= {process for process, parent in parents.items() if parent in ours}
    sockets = set()
    for fd in [fd for p in ours for fd in Path(f"/proc/{p}/fd").iterdir()]:
        try:
            sockets.add(os.readlink(fd))
        except OSError:
            pass
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            cells = line.split()
            if cells[3] == "0A" and f"socket:[{cells[9]}]" in sockets:
                print(cells[1].rpartition(":")[0])
"""
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def test_a_local_ray_listens_on_the_loopback_address_alone(ray):
    done = subprocess.run(
        [sys.executable, "-c", LISTENING], capture_output=True, text=True, timeout=300
    )
    assert done.stdout, done.stderr[-2000:]
    listening = done.stdout.split()
    assert listening and set(listening) <= LOOPBACK, done.stderr

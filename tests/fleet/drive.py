"""A driver in a process of its own, for tests that kill it: drive.py ADDRESS OUT [--resume]."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from simulated import opener_on, suite

from gacprof.extras.fleet.driver import sweep_fleet
from gacprof.extras.fleet.on_ray import RayCluster, connected

LONG = suite(8, 64, 80, blocks=24, most_blocks=60, processes=2)

if __name__ == "__main__":
    address, out, *more = sys.argv[1:]
    log = str(Path(out).with_suffix(".log"))
    opener = partial(opener_on, pause_s=0.001, log=log)
    with connected(address):
        done = sweep_fleet(
            LONG, RayCluster("cpu"), opener, Path(out), resume="--resume" in more, wait_s=60.0
        )
    print(done.as_dict())

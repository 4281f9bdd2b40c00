"""How many device events the profiler loses over many short traces (pytorch/pytorch#192021).

    python tools/cupti_probe.py [--traces 40] [--idle 0.5]

Each trace launches as many kernels, after an idle. A sound CUPTI records all of them every time;
version 13.0 loses the first of a trace, more of them the longer the device has idled. To try
another CUPTI, preload it: LD_PRELOAD=…/libcupti.so.13 python tools/cupti_probe.py
"""

from __future__ import annotations

import argparse
import time

import torch

from gacprof.core.errors import MeasurementError
from gacprof.devices.environment import loaded, loaded_cupti
from gacprof.devices.kineto import recorded

KERNELS = 200


def kernels_recorded(x: torch.Tensor) -> int:
    """How many of a trace's kernels the profiler tells of."""

    def run() -> None:
        for _ in range(KERNELS):
            x.add_(1)
        torch.cuda.synchronize()

    try:
        return len(recorded(run))
    except MeasurementError as error:
        print(f"no trace: {error}")
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=int, default=40)
    parser.add_argument("--idle", type=float, default=0.5, help="seconds before every other trace")
    asked = parser.parse_args()
    x = torch.ones(1 << 10, device="cuda")
    lost = {False: 0, True: 0}
    for number in range(asked.traces):
        idle = number % 2 == 1
        if idle:
            time.sleep(asked.idle)
        missing = KERNELS - kernels_recorded(x)
        lost[idle] += missing > 0
        if missing:
            print(f"trace {number}: {missing} of {KERNELS} kernels lost, idle before: {idle}")
    print(f"CUPTI {loaded_cupti()} at {loaded('libcupti')}, torch {torch.__version__}")
    print(f"traces with losses: {lost[False]} without, {lost[True]} with an idle before")


if __name__ == "__main__":
    main()

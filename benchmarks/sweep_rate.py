"""Points per second at an equal A/A floor, beside what one would use instead.

    python benchmarks/sweep_rate.py                 # some minutes
    python benchmarks/sweep_rate.py --floor 0.05 --threads 1

One curve of ranks (48 dims, a quarter of them twice) of a factored layer, prefill of 256 tokens,
cold weights. Every method gets 2, 4, 8 … seconds until the 95 % quantile of |log ratio| between
replicates is within ``--floor``; printed are the points per second of that run. gacprof's time
holds the start of its processes. ``-`` means that the floor was not reached in ``--most`` seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

from noise import METHODS, floor_of, measured

from gacprof.devices.environment import cpu_name, native_bfloat16
from gacprof.sweeping.suite import Suite, parse_suite

FIRST_S = 2.0


def suite() -> Suite:
    table = {
        "operator": "linear",
        "axis": "N",
        "values": [{"from": 96, "to": 143}],
        "dims": {"M": 256, "K": 1024},
        "dtype": "bfloat16" if native_bfloat16() else "float32",
        "flags": {"cache": "cold"},
    }
    timing = {"reuse_mib": 32, "most_blocks": 100_000, "finest": 1e-6}
    return parse_suite({"name": "rate", "timing": timing, "sweep": [table]}, "sweep_rate")


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ask.add_argument("--floor", type=float, default=0.03)
    ask.add_argument("--threads", default="1,2")
    ask.add_argument("--most", type=float, default=32.0, help="seconds a method may take")
    ask.add_argument("--one", help=argparse.SUPPRESS)
    ask.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    given = ask.parse_args()
    if given.one:
        made = suite()
        floors = floor_of(measured(given.one, made, given.seconds), made.curves("cpu"))
        print(json.dumps(floors | {"points": len(made.points("cpu"))}))
        return
    print(f"{cpu_name()}, load {os.getloadavg()[0]:.2f}, floor {given.floor:.1%}")
    for threads in given.threads.split(","):
        for method in METHODS:
            print(f"{threads} threads  {method:24s} {_reached(method, threads, given)}", flush=True)


def _reached(method: str, threads: str, given: argparse.Namespace) -> str:
    seconds, floors = FIRST_S, {"plain": float("inf")}
    while seconds <= given.most:
        command = [sys.executable, __file__, "--one", method, "--seconds", str(seconds)]
        environment = os.environ | {"OMP_NUM_THREADS": threads}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            sys.exit(done.stderr)
        floors = json.loads(done.stdout.strip().splitlines()[-1])
        if floors["plain"] is not None and floors["plain"] <= given.floor:
            rate = floors["points"] / seconds
            return f"{rate:6.1f} points/s  floor {floors['plain']:.1%} after {seconds:g} s"
        seconds *= 2
    last = floors["plain"]
    return f"     - (floor {last:.1%} after {given.most:g} s)" if last is not None else "     -"


if __name__ == "__main__":
    main()

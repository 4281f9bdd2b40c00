"""How long the light verbs take, as whole processes, and that they import no torch.

    python benchmarks/start_up.py

Each verb runs in turns with ``python -c pass`` and ``python -c 'import torch'``, so that the
ratios hold whatever the machine is doing; the median of the runs is printed.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from gacprof.demo.models import write_demo_checkpoint
from gacprof.devices.environment import cpu_name


def seconds(command: list[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start


def commands(folder: Path) -> dict[str, list[str]]:
    gacprof = [sys.executable, "-m", "gacprof"]
    model = write_demo_checkpoint(folder / "model")
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        "gacprof --help": [*gacprof, "--help"],
        "gacprof diagnose (demo model, a100-published)": [
            *gacprof, "diagnose", str(model), "--map", "a100-published",
        ],
        "gacprof map show a100-published": [*gacprof, "map", "show", "a100-published"],
        "python -c 'import torch'": [sys.executable, "-c", "import torch"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", "--runs", type=int, default=11)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        chosen = commands(Path(folder))
        taken: dict[str, list[float]] = {name: [] for name in chosen}
        for _ in range(runs + 1):
            for name, command in chosen.items():
                taken[name].append(seconds(command))
    print(f"{cpu_name()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, {runs} runs\n")
    print("| command | median | of `import torch` |")
    print("|---|---|---|")
    torch = statistics.median(taken["python -c 'import torch'"][1:])
    for name, times in taken.items():
        median = statistics.median(times[1:])  # the first run fills the file cache
        print(f"| `{name}` | {median:.2f} s | {median / torch:.2f} |")


if __name__ == "__main__":
    main()

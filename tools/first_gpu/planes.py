"""Which kernel cuBLAS takes on a dense plane of (N, K), by name, without timing.

    python tools/first_gpu/planes.py [--seconds 60] [--out planes.json]

Every N and K from 4096 to 4160 in bfloat16 and float16; in fp8, whose products are refused off 16,
every sixteenth to 5120. One call a shape in one session of the tracer a plane, the planes in the
order of their worth; the file is written anew after each. ``us`` is the tracer's duration of that
one call, at whatever clock; null on a virtual GPU.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gacprof.core.points import Point
from gacprof.devices.cuda import CudaDevice
from gacprof.devices.tracing import traced_kernels
from gacprof.operators import canonical, get

HALVES = tuple(range(4096, 4161))
EIGHTS = tuple(range(4096, 5121, 16))
PLANES = (
    ("bfloat16", 1024),
    ("bfloat16", 1),
    ("float8_e4m3", 1024),
    ("float16", 1024),
    ("bfloat16", 16),
    ("float16", 1),
    ("float8_e4m3", 16),
    ("float16", 16),
    ("float8_e4m3", 1),
)
"""(type, M)."""


def points_of(dtype: str, m: int) -> tuple[tuple[int, ...], list[Point]]:
    """The sizes of a plane's N and of its K, and its points, row by row of N."""
    eight_bit = dtype == "float8_e4m3"
    sizes = EIGHTS if eight_bit else HALVES
    operator = "quantised" if eight_bit else "linear"
    shapes = [{"M": m, "N": n, "K": k} for n in sizes for k in sizes]
    return sizes, [canonical(Point(operator, shape, dtype)) for shape in shapes]


def plane(device: CudaDevice, dtype: str, m: int) -> dict[str, Any]:
    """The kernels of a plane: ``names`` and, by row and column, the numbers of those of a call."""
    sizes, points = points_of(dtype, m)
    calls: list[Callable[[], object]] = []
    for point in points:
        device.arenas.reserve(point, 0)
    for point in points:
        call = get(point.operator).call(point, device.torch_device)
        calls.append(device.arenas.bind(point, call, replicate=False))
    calls[0]()
    begin = time.perf_counter()
    kernels = traced_kernels(calls)
    seconds = time.perf_counter() - begin
    numbers: dict[str, int] = {}
    index = [[numbers.setdefault(run.name, len(numbers)) for run in runs] for runs in kernels]
    return {
        "dtype": dtype,
        "M": m,
        "sizes": sizes,
        "names": list(numbers),
        "kernels": index,
        "us": [
            None if device.virtual else round(sum(run.us for run in runs), 1) for runs in kernels
        ],
        "not_seen": sum(not runs for runs in kernels),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    began = time.monotonic()
    device = CudaDevice()
    record: dict[str, Any] = {"environment": vars(device.environment), "planes": []}
    with device.active():
        for dtype, m in PLANES:
            if time.monotonic() - began > options.seconds:
                print(f"no time left for {dtype} at M = {m}")
                continue
            found = plane(device, dtype, m)
            record["planes"].append(found)
            print(
                f"{dtype} M = {m}: {len(found['us'])} shapes, {len(found['names'])} kernels, "
                f"{found['not_seen']} not seen, {found['seconds']} s",
                flush=True,
            )
            if options.out:
                text = json.dumps(record, separators=(",", ":"))
                options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

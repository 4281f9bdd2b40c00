"""The process that Nsight Compute profiles: each point once, in an NVTX range of its id.

``python -m gacprof.devices.profiled points.json 0``, which
:mod:`gacprof.extras.evidence.collecting` runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gacprof.core.errors import first_line

WARM_UPS = 3
REFUSED = "gacprof: not run: "
"""Prefix of the line that is printed for a point that cannot be run, and is passed over."""


def run_once(listed: Path, index: int) -> None:
    """Run the points of a JSON list of [id, operator, dims, dtype, flags] on a CUDA device."""
    import torch

    from gacprof import operators

    torch.cuda.set_device(index)
    device = torch.device("cuda", index)
    for point_id, operator, dims, dtype, flags in json.loads(listed.read_text()):
        point = operators.point(operator, dims, dtype, flags)
        try:
            operators.set_precision(point)
            work = operators.get(operator).prepare(point, device)
            for _ in range(WARM_UPS):
                work()
            torch.cuda.synchronize()
        except Exception as error:  # an operator may raise anything
            print(f"{REFUSED}{point}: {first_line(error)}", flush=True)
            torch.cuda.empty_cache()
            continue
        torch.cuda.profiler.start()
        torch.cuda.nvtx.range_push(point_id)
        work()
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_pop()
        torch.cuda.profiler.stop()


if __name__ == "__main__":
    run_once(Path(sys.argv[1]), int(sys.argv[2]))

"""The Triton streams against plain sums and copies, by Triton's interpreter."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from gacprof import operators
from gacprof.core.errors import MeasurementError

INTERPRETED = """
import json, torch
from gacprof import operators
found = []
for name in ("row_sum", "row_copy"):
    for K in (1, 1000, 1024, 1031, 2500):
        for specialise in (True, False):
            flags = {"specialise": specialise}
            point = operators.point(name, {"rows": 3, "K": K}, "float16", flags)
            work = operators.get(name).prepare(point, torch.device("cpu"))
            source, out = work.operands[0], work()
            wanted = source if name == "row_copy" else source.float().sum(1)
            found.append([name, K, specialise, torch.allclose(out, wanted, atol=1e-2)])
print(json.dumps(found))
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_interpreted_kernels_give_what_torch_gives():
    """In a process of its own: TRITON_INTERPRET is read when Triton is imported."""
    told = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)
    assert len(found) == 2 * 5 * 2
    assert [case for case in found if not case[-1]] == []


def test_bytes_and_flops_follow_the_working_set():
    dims = {"rows": 1024, "K": 4000}
    total = operators.get("row_sum")
    point = operators.point("row_sum", dims, "float16")
    assert total.flops(point) == 1024 * 4000
    assert total.bytes_moved(point) == 2 * 1024 * 4000 + 4 * 1024
    copy = operators.point("row_copy", dims, "float16")
    assert operators.get("row_copy").bytes_moved(copy) == 2 * 2 * 1024 * 4000


def test_a_cpu_says_why_it_cannot(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(MeasurementError, match="needs a CUDA device"):
        point = operators.point("row_sum", {"rows": 2, "K": 4}, "float16")
        operators.get("row_sum").prepare(point, torch.device("cpu"))

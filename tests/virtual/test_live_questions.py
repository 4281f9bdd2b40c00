"""The questions for a real GPU, asked of a virtual one: they agree, also by a tracer that loses."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gacprof.kernels.dispatch import shipped_tables
from gacprof.virtual.build import find_torch
from gacprof.virtual.run import environment

REPOSITORY = Path(__file__).parent.parent.parent
LOSING = """
import runpy, sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/tools"]
import torch
from gacprof.devices import tracing

sessions = []
def lossy(calls, complete=tracing.session_events):
    kernels, kept = 0, []
    lost = LOST(len(sessions))
    for event in complete(calls):
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            kernels += 1
            if kernels <= lost:
                continue
        kept.append(event)
    sessions.append(len(calls))
    return kept
tracing.session_events = lossy
sys.argv = ["ask_live_gpu.py"]
runpy.run_module("ask_live_gpu", run_name="__main__")
"""


def asked(cuda_python: Path, gpu: str, lost: str) -> tuple[int, list[str]]:
    """Exit code and lines of the script, by a tracer that loses the first records of sessions."""
    release = find_torch(cuda_python).release
    if (gpu, release) not in shipped_tables():
        pytest.skip(f"no table of torch {release} ships")
    code = LOSING.replace("LOST", f"({lost})")
    command = [str(cuda_python), "-c", code, str(REPOSITORY)]
    variables = environment(gpu, cuda_python)
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    variables |= {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, env=variables, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) >= 5, done.stderr
    return done.returncode, lines[1:]


@pytest.mark.parametrize("gpu", ["h100", "h200", "a100"])
def test_a_virtual_gpu_answers_as_its_table(cuda_python: Path, gpu: str) -> None:
    status, lines = asked(cuda_python, gpu, "lambda session: 0")
    assert status == 0
    assert all(line.endswith("asked, 0 differ, 0 not seen") for line in lines)


@pytest.mark.parametrize("lost", ["lambda session: 2", "lambda session: 0 if session else 900"])
def test_lost_records_are_traced_again(cuda_python: Path, lost: str) -> None:
    status, lines = asked(cuda_python, "h100", lost)
    assert status == 0
    assert all(line.endswith("asked, 0 differ, 0 not seen") for line in lines)


def test_what_is_never_seen_differs_from_nothing(cuda_python: Path) -> None:
    status, lines = asked(cuda_python, "h100", "lambda session: 10**9")
    assert status == 0
    assert all("0 differ" in line for line in lines)
    assert not any(line.endswith(", 0 not seen") for line in lines if "choices" not in line)

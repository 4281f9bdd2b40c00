"""What the CUDA path calls of torch, NVML and Nsight's reports is there, in every release.

The table is made by tools/torch_contract.py from the wheels of each release; where the installed
one differs from its row, the test of that function fails by its name.
"""

import json
from pathlib import Path

import pynvml
import pytest
import torch
from simulated_gpu import SimulatedGpu
from simulated_gpu.gpu import RESET_CLEARS_WORKSPACES, SimulatedGraph
from torch_contract import in_folder, nvml_contract, torch_contract

from gacprof.devices.nvml import counters

TABLE = json.loads((Path(__file__).parents[1] / "fixtures" / "torch_contract.json").read_text())
TORCH, NVML = TABLE["torch"], TABLE["nvidia_ml_py"]

STUB, OPS, GRAPHS = (
    "torch/_C/__init__.pyi",
    "torch/_C/_VariableFunctions.pyi",
    "torch/cuda/graphs.py",
)
CALLED = {
    f"{GRAPHS} CUDAGraph.capture_begin": {"pool", "capture_error_mode"},
    "torch/cuda/streams.py Event.__new__": {"enable_timing", "external"},
    "torch/autograd/profiler.py profile.__init__": {"use_cpu", "use_device", "use_kineto"},
    f"{OPS} _scaled_mm": {"scale_a", "scale_b", "out_dtype", "use_fast_accum"},
    f"{OPS} _grouped_mm": {"offs"},
    f"{OPS} _fused_sdp_choice": {"scale", "enable_gqa"},
    f"{STUB} _cuda_endAllocateToPool": {"device", "mempool_id"},
}
"""Parameters that gacprof gives by name, or in this order."""
LATER = {
    "torch/cuda/streams.py Event.__new__": "2.8.0",
    f"{OPS} _grouped_mm": "2.8.0",
    f"{STUB} _cuda_endAllocateToPool": "2.8.0",
    "torch/_C/_autograd.pyi _KinetoEvent.activity_type": "2.12.0",
}
"""What gacprof does without in releases before: external events, one kind of point, the repair
of a capture that failed, and the kinds of events."""


def number(version):
    return [int(part) for part in version.split("+")[0].split(".")]


def value(since, version):
    """What held in that release: the latest change up to it."""
    return since[[v for v in since if number(v) <= number(version)][-1]]


def test_the_table_holds_every_minor_release_that_is_supported():
    assert [".".join(v.split(".")[:2]) for v in TORCH["releases"]] == [
        "2.10", "2.11", "2.12", "2.13", "2.14", "2.6", "2.7", "2.8", "2.9",
    ]  # fmt: skip


def test_the_installed_torch_is_as_its_release_in_the_table():
    here = torch_contract(in_folder(Path(torch.__file__).parents[1]))
    for fact, since in TORCH["since"].items():
        assert here[fact] == value(since, torch.__version__), fact


@pytest.mark.parametrize("fact", [fact for fact in TORCH["since"] if "clears" not in fact])
def test_every_release_has_what_is_called_and_takes_what_it_is_given(fact):
    for version in TORCH["releases"]:
        has = value(TORCH["since"][fact], version)
        if number(version) >= number(LATER.get(fact, "2.6.0")):
            assert has is not None, version
            assert fact not in CALLED or CALLED[fact] <= set(has), version


def test_the_simulated_gpu_takes_no_more_than_torch():
    gpu = SimulatedGpu()
    graph = SimulatedGraph(gpu)
    given = value(TORCH["since"][f"{GRAPHS} CUDAGraph.capture_begin"], "2.11.0")
    graph.capture_begin(**dict(zip(given, [(0, 1), "thread_local"], strict=True)))
    with pytest.raises(RuntimeError, match="capturing"):
        gpu.event(enable_timing=True).record()
    gpu.event(enable_timing=True, external=True).record()
    graph.capture_end()
    graph.replay()


def test_a_graphs_reset_takes_workspaces_along_in_the_releases_that_are_simulated():
    cleared = TORCH["since"]["reset clears workspaces"]
    since = next(version for version, message in cleared.items() if message)
    assert tuple(number(since)[:2]) == RESET_CLEARS_WORKSPACES


CAUSES = {
    "software thermal slowdown": "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "hardware thermal slowdown": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "hardware power brake": "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
    "software power cap": "NVML_FI_DEV_PERF_POLICY_POWER",
    "thermal slowdown": "NVML_FI_DEV_PERF_POLICY_THERMAL",
}


@pytest.mark.parametrize("version", NVML["releases"])
def test_n8_counters_have_the_numbers_of_the_drivers_own_bindings(version):
    """nvidia-ml-py 13.580.82 is made from the header of driver 580.82."""
    message = {name: value(NVML["since"][CAUSES[name]], version) for name in CAUSES}
    known = {name: number for name, number in message.items() if number is not None}
    assert counters(version.partition(".")[2]) == {n: name for name, n in known.items()}


def test_n8_the_installed_bindings_have_the_newest_numbers():
    newest = NVML["releases"][-1]
    made = nvml_contract(in_folder(Path(pynvml.__file__).parent))
    assert made == {name: value(since, newest) for name, since in NVML["since"].items()}

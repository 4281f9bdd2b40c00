"""Each fault of a GPU is found, said in words, and marks the numbers. NVML alone is faked."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from condition import look

GIB = 1 << 30


def marks(device="cuda:0"):
    """What numbers taken now suffer from."""
    return tuple(finding.words for finding in look(device) if finding.mark)


class FakeNvml:
    """A healthy H200; a test changes what it says. Calls are named as NVML names them."""

    NVML_CLOCK_SM = 1

    def __init__(self):
        self.processes = [SimpleNamespace(pid=os.getpid(), usedGpuMemory=GIB)]
        self.throttle, self.ecc, self.mig, self.mode, self.memory = 0x1, 0, 0, 0, 141 * GIB

    def __getattr__(self, name):
        return {
            "nvmlInit": lambda: None,
            "nvmlDeviceGetHandleByUUID": lambda uuid: {b"GPU-1234": "handle"}[uuid],
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: self.processes,
            "nvmlDeviceGetComputeMode": lambda handle: self.mode,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda handle: self.throttle,
            "nvmlDeviceGetTotalEccErrors": lambda handle, kind, counter: self.errors(kind, counter),
            "nvmlDeviceIsMigDeviceHandle": lambda handle: self.mig,
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=self.memory),
            "nvmlDeviceGetClockInfo": lambda handle, which: 1980,
            "nvmlDeviceGetMaxClockInfo": lambda handle, which: 1980,
        }[name]

    def errors(self, kind, counter):
        if isinstance(self.ecc, Exception):
            raise self.ecc
        assert (kind, counter) == (1, 0)
        return self.ecc


@pytest.fixture
def nvml(monkeypatch):
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    properties = SimpleNamespace(uuid="1234")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    return fake


def test_a_healthy_gpu_has_no_marks(nvml):
    assert marks() == ()
    assert [f.words for f in look("cuda:0")] == ["SM clock 1980 of at most 1980 MHz"]


def test_a_process_beside_ours_is_named_and_a_worker_of_ours_is_no_stranger(nvml):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:
        nvml.processes.append(SimpleNamespace(pid=worker.pid, usedGpuMemory=3 * GIB))
        assert marks() == ()
        worker.communicate(b"\n")
    nvml.processes[1:] = [SimpleNamespace(pid=os.getppid(), usedGpuMemory=3 * GIB)]
    assert marks() == (f"shared with 1 other compute processes: pid {os.getppid()} with 3072 MiB",)


def test_a_gpu_for_one_process_alone_is_told(nvml):
    nvml.mode = 3
    (finding, _) = look("cuda:0")
    assert "exclusive compute mode" in finding.words and not finding.mark


def test_one_process_unknown_here_may_be_ourselves_two_cannot(nvml):
    nvml.processes = [SimpleNamespace(pid=2**22 + 1, usedGpuMemory=None)]
    (finding, _) = look("cuda:0")
    assert "shared with 1" in finding.words and "may be this process" in finding.words
    assert not finding.mark
    nvml.processes.append(SimpleNamespace(pid=2**22 + 2, usedGpuMemory=None))
    assert len(marks()) == 1


@pytest.mark.parametrize(
    ("fault", "value", "words"),
    [
        ("throttle", 0x40, "hardware thermal slowdown"),
        ("ecc", 3, "3 uncorrected memory"),
        ("mig", 1, "a MIG slice"),
    ],
)
def test_a_fault_marks_the_numbers(nvml, fault, value, words):
    setattr(nvml, fault, value)
    (mark,) = marks()
    assert words in mark


def test_one_unreadable_value_does_not_hide_the_others(nvml):
    nvml.ecc, nvml.throttle = RuntimeError("Not Supported"), 0x4
    assert marks() == ("running below its clock: software power cap",)
    assert any(f.words == "ecc: not readable (Not Supported)" for f in look("cuda:0"))


def test_without_nvml_the_state_is_unknown_not_good(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    (mark,) = marks()
    assert mark.startswith("NVML cannot be read") and "unknown" in mark

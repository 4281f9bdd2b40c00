"""What of the GPU's path needs no GPU: telemetry and clock locking, faked at NVML."""

import os
import signal
import sys
from types import SimpleNamespace

import pytest

from gacprof import operators
from gacprof.core.errors import MeasurementError
from gacprof.core.points import Environment, Sample
from gacprof.devices.datasheet import ROOFS, rates
from gacprof.devices.nvml import READING_S, Telemetry, locked, open_nvml


class NvmlError(Exception):
    pass


def fake_nvml(held=1410, refuses=False):
    """NVML as far as locking and reading ask for it; ``did`` keeps what was changed."""
    did = []

    def lock(handle, low, high):
        if refuses:
            raise NvmlError("Insufficient Permissions")
        did.append(("lock", low, high))

    return SimpleNamespace(
        did=did,
        NVMLError=NvmlError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceSetGpuLockedClocks=lock,
        nvmlDeviceResetGpuLockedClocks=lambda handle: did.append(("reset",)),
        nvmlDeviceGetClockInfo=lambda handle, kind: {1: held, 2: 2619}[kind],
        nvmlDeviceGetTemperature=lambda handle, kind: 51,
        nvmlDeviceGetPowerUsage=lambda handle: 412_500,
        nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 0x4,
    )


def test_a_lock_is_verified_under_load_once_the_clock_has_climbed_and_undone():
    nvml, loads, heard = fake_nvml(), [], iter([345, 1200, 1410])
    nvml.nvmlDeviceGetClockInfo = lambda handle, kind: next(heard)
    end = pytest.raises(KeyboardInterrupt)  # however the sweep ends
    with end, locked(nvml, "gpu", 1410, lambda: loads.append(list(nvml.did))):
        assert nvml.did == [("lock", 1410, 1410)]
        raise KeyboardInterrupt
    assert loads[0] == [("lock", 1410, 1410)] and nvml.did[-1] == ("reset",)


@pytest.mark.parametrize(
    ("nvml", "message", "did"),
    [
        (fake_nvml(held=1200), "runs at 1200 MHz under load", [("lock", 1410, 1410), ("reset",)]),
        (fake_nvml(refuses=True), r"Insufficient Permissions.*needs root", []),
    ],
)
def test_a_lock_that_is_refused_or_does_not_hold_is_an_error_and_undone(nvml, message, did):
    refused = pytest.raises(MeasurementError, match=message)
    with refused, locked(nvml, "gpu", 1410, lambda: None):
        raise AssertionError("nothing is measured then")
    assert nvml.did == did


def test_a_lock_that_cannot_be_undone_is_told_with_what_undoes_it():
    nvml = fake_nvml()

    def refused(handle):
        raise NvmlError("GPU is lost")

    nvml.nvmlDeviceResetGpuLockedClocks = refused
    message = pytest.raises(MeasurementError, match=r"GPU is lost.*nvidia-smi --reset-gpu-clocks")
    with message, locked(nvml, "gpu", 1410, lambda: None):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_lock_is_undone_on_sigterm_and_when_the_terminal_closes(number):
    nvml, own = fake_nvml(), signal.getsignal(number)
    signal.signal(number, signal.SIG_DFL)  # a test run under nohup ignores SIGHUP
    try:
        with pytest.raises(SystemExit), locked(nvml, "gpu", 1410, lambda: None):
            os.kill(os.getpid(), number)
            signal.pause()
        assert nvml.did[-1] == ("reset",)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, own)


def test_under_nohup_a_closed_terminal_ends_nothing():
    nvml, own = fake_nvml(), signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with locked(nvml, "gpu", 1410, lambda: None):
            os.kill(os.getpid(), signal.SIGHUP)
            assert nvml.did == [("lock", 1410, 1410)]
    finally:
        signal.signal(signal.SIGHUP, own)


def telemetry(nvml):
    reader = Telemetry(0)
    reader.nvml, reader.handle = nvml, "gpu"
    return reader


def test_telemetry_reads_what_a_sample_keeps():
    reader = telemetry(fake_nvml())
    assert reader.reading() == {"mem_clock_mhz": 2619, "temperature_c": 51, "power_w": 412.5}
    assert (reader.sm_clock_mhz(), reader.throttle_reason()) == (1410, "software power cap")
    assert reader.slowed_ns() == {}  # where nothing is counted the moment tells
    assert reader.slowed_since({}, 1.0) == "software power cap"
    bits = iter([0xA8, 0x13])  # idle, application clocks and sync boost force nothing
    reader.nvml.nvmlDeviceGetCurrentClocksEventReasons = lambda handle: next(bits)
    forced = "hardware slowdown, software thermal slowdown, hardware power brake"
    assert (reader.throttle_reason(), reader.throttle_reason()) == (forced, "")
    asked = []
    reader.nvml.nvmlDeviceGetPowerUsage = lambda handle: asked.append(handle) or 400_000
    assert reader.reading()["power_w"] == 412.5 and not asked  # not again at every point
    reader._read_at -= READING_S
    assert reader.reading()["power_w"] == 400.0


def test_what_is_set_for_a_whole_sweep_is_told_as_far_as_it_can_be():
    nvml = fake_nvml()
    nvml.nvmlDeviceGetEnforcedPowerLimit = lambda handle: 700_000
    nvml.nvmlDeviceGetEccMode = lambda handle: [1, 1]
    known = {"power_limit_w": 700.0, "vbios": None, "ecc": True, "persistence": None}
    assert telemetry(nvml).fixed() == known


@pytest.mark.parametrize("listed", ["GPU-12ab", "MIG-12ab"])
@pytest.mark.parametrize("message", ["12ab", None])
def test_a_gpu_is_found_by_its_uuid_a_slice_of_one_too(monkeypatch, listed, message):
    import torch

    nvml = fake_nvml()

    def by_uuid(uuid):
        if uuid != listed.encode():
            raise NvmlError("Not Found")
        return "handle"

    nvml.nvmlInit, nvml.nvmlDeviceGetHandleByUUID = lambda: None, by_uuid
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    properties = SimpleNamespace(uuid=message or listed)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    assert open_nvml(0) == (nvml, "handle")


def test_no_permission_for_nvml_is_no_error_and_said():
    nvml = fake_nvml()

    def refused(*_):
        raise NvmlError("Insufficient Permissions")

    for name in [n for n in vars(nvml) if n.startswith("nvmlDeviceGet")]:
        setattr(nvml, name, refused)
    reader = telemetry(nvml)
    assert set(reader.reading().values()) == {None}
    assert (reader.sm_clock_mhz(), reader.throttle_reason()) == (None, "")
    assert reader.why_not == "Insufficient Permissions"
    none = Telemetry(10_000)
    assert none.reading() == {} and none.why_not


def test_the_roof_is_the_slower_of_arithmetic_and_memory():
    h200 = ROOFS["NVIDIA H200"]
    assert h200.least_us(int(989.4e6), 0, "float16") == pytest.approx(1.0)
    assert h200.least_us(int(989.4e6), 48_000_000, "float16") == pytest.approx(10.0)
    assert ROOFS["NVIDIA A100-SXM4-80GB"].least_us(1, 1, "float8_e4m3") is None
    point = operators.point("row_copy", {"rows": 4800, "K": 1000}, "float32")  # 38.4 MB: 8 µs
    found = rates(Sample(point, ("K",), (32.0,), "t"), Environment("cuda", "NVIDIA H200", "sm90"))
    assert (found["gb_s"], found["roof_share"]) == (pytest.approx(1200), pytest.approx(0.25))

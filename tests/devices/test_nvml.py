"""NVML's fields by driver, its limits and modes, and throttling."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gacprof.devices.nvml import Throttling, counter_fields, driver_version, nvml_facts


@pytest.mark.parametrize(
    ("driver", "first"), [("580.95.05", 269), ("590.10", 269), ("580.65.06", 251), ("575.51", 251)]
)
def test_nvml_fields_are_the_drivers(driver: str, first: int) -> None:
    assert counter_fields(driver) == [74, 75, first, first + 1, first + 2]


@pytest.mark.parametrize("driver", ["", "535.104.05"])
def test_an_older_driver_counts_policies_alone(driver: str) -> None:
    assert counter_fields(driver) == [74, 75]


class FakeNvml:
    """NVML of an H100 at 500 W without MIG mode, on which another process computes."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:  # noqa: N802
        return 500_000

    def nvmlDeviceGetMaxClockInfo(self, handle: int, clock: int) -> int:  # noqa: N802
        return {self.NVML_CLOCK_SM: 1980}[clock]

    def nvmlDeviceGetEccMode(self, handle: int) -> list[int]:  # noqa: N802
        return [1, 0]

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:  # noqa: N802
        raise self.NVMLError("not supported")

    def nvmlDeviceGetPersistenceMode(self, handle: int) -> int:  # noqa: N802
        return 1

    slowed_ns = 0

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.95.05"

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> int:  # noqa: N802
        if not uuid.startswith(b"MIG-"):
            raise self.NVMLError("not found")
        return 7

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[Any]:  # noqa: N802
        value = SimpleNamespace(ullVal=self.slowed_ns)
        return [SimpleNamespace(fieldId=field, nvmlReturn=0, value=value) for field in fields]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[SimpleNamespace]:  # noqa: N802
        return [SimpleNamespace(pid=os.getpid()), SimpleNamespace(pid=1)]


def test_limits_and_modes_of_a_gpu_are_those_that_nvml_says() -> None:
    assert nvml_facts(FakeNvml(), 0) == {
        "power_limit_w": 500,
        "max_sm_mhz": 1980,
        "ecc": 1,
        "persistence": 1,
        "other_processes": 1,
    }


def test_a_gpu_is_throttled_where_a_counter_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    """For 2 % of the time or more; here of a MIG slice, by the newest driver's fields."""
    library = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", library)
    uuid = SimpleNamespace(uuid="a")
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: uuid)
    throttling = Throttling(0)
    before = throttling.slowed_ns()
    assert list(before) == [74, 75, 269, 270, 271]
    library.slowed_ns = 10_000_000
    assert not throttling.slowed_since(before, seconds=1.0)
    library.slowed_ns = 30_000_000
    assert throttling.slowed_since(before, seconds=1.0)


def test_without_nvml_nothing_is_throttled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    throttling = Throttling(0)
    assert throttling.slowed_ns() == {} and not throttling.slowed_since({}, seconds=1.0)
    assert driver_version() == ""

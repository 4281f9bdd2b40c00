"""NVML's fields by driver, and its limits and modes."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from gacprof.devices.environment import counter_fields, nvml_facts


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

"""NVML of the simulated GPU, by the constants of its driver."""

from __future__ import annotations

from types import SimpleNamespace


class NVMLError(Exception):
    pass


POWER, THERMAL, CAUSES = 74, 75, 3
RENUMBERED = (580, 82)
"""The driver that moved the three counters of slowdowns by cause from field 251 to 269."""
SMOOTHED_W = 700_000
"""What a setting of power smoothing answers under the other number, in mW; it changes."""


def simulated_nvml(gpu):
    """The module ``pynvml``."""

    def fields(handle, wanted):
        new = tuple(int(part) for part in gpu.driver.split(".")[:2]) >= RENUMBERED
        counted, setting = (269, 251) if new else (251, 269)
        known = {POWER: gpu.slowed_ns, THERMAL: 0}
        known |= {counted + cause: 0 for cause in range(CAUSES)}
        known |= {setting + n: SMOOTHED_W * gpu.synchronisations * 100 for n in range(CAUSES)}
        return [
            SimpleNamespace(
                fieldId=field,
                nvmlReturn=0 if field in known else 3,
                value=SimpleNamespace(ullVal=known.get(field, 0)),
            )
            for field in wanted
        ]

    return SimpleNamespace(
        __spec__=None,
        NVMLError=NVMLError,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        NVML_TEMPERATURE_GPU=0,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: "gpu",
        nvmlDeviceGetCount=lambda: 1,
        nvmlSystemGetDriverVersion=lambda: gpu.driver,
        nvmlDeviceGetClockInfo=lambda handle, kind: {1: 1980, 2: 2619}[kind],
        nvmlDeviceGetTemperature=lambda handle, kind: 45,
        nvmlDeviceGetPowerUsage=lambda handle: 412_500,
        nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000,
        nvmlDeviceGetEccMode=lambda handle: [1, 1],
        nvmlDeviceGetPersistenceMode=lambda handle: 1,
        nvmlDeviceGetVbiosVersion=lambda handle: "96.00.74.00.0D",
        nvmlDeviceGetCurrentClocksEventReasons=lambda handle: 0,
        nvmlDeviceGetFieldValues=fields,
    )

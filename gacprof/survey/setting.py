"""Where a survey is made: the device, what runs the models, and how much time there is."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from gacprof.survey.shapes import LLAMA_3_8B, LLAMA_3_8B_EIGHTH, Shape
from gacprof.survey.state import NotYetError

if TYPE_CHECKING:
    from gacprof.cliffmap import CliffMap
    from gacprof.devices.device import Device

Tell = Callable[[str], None]
Advance = Callable[[float, float, object], None]

MAP, SWEEPS = "cliffmap.json", "sweeps"


@dataclass(frozen=True)
class Machine:
    """A device, and the name under which torch runs models on it.

    ``index`` is the CUDA device's number, None on a CPU; ``shape`` is what end to end means.
    It is swept in processes of its own where it is ``isolated``, as any but a recorded one is.
    """

    device: Device
    torch_device: str
    index: int | None
    shape: Shape
    isolated: bool = True

    @property
    def is_gpu(self) -> bool:
        return self.device.environment.kind == "cuda"

    @contextmanager
    def sweeper(self, processes: int) -> Iterator[Device]:
        """The device to sweep with."""
        if not self.isolated:
            yield self.device
            return
        from gacprof.devices.worker import sweeper

        with sweeper(self.torch_device, processes=processes) as device:
            yield device


def open_machine(name: str | None) -> Machine:
    """The machine of that device. Raises :class:`MeasurementError` for one that is not there."""
    from gacprof.devices.device import open_device

    device = open_device(name)
    if device.environment.kind == "cpu":
        return Machine(device, "cpu", None, LLAMA_3_8B_EIGHTH)
    index = int((name or "").partition(":")[2] or 0)
    return Machine(device, f"cuda:{index}", index, LLAMA_3_8B)


@dataclass
class Setting:
    """What the stages share. ``budget_s`` is this call's time, None for as long as it takes."""

    folder: Path
    machine: Machine
    suite: str
    budget_s: float | None = None
    tell: Tell = lambda line: None
    advance: Advance = lambda done, total, what: None
    began: float = field(default_factory=time.monotonic)
    share: float = 1.0
    """By when the running stage should end, as a share of the budget."""

    def left_s(self) -> float | None:
        """Seconds until the running stage should end; None without a budget, never negative."""
        if self.budget_s is None:
            return None
        return max(0.0, self.began + self.share * self.budget_s - time.monotonic())

    def overdue_s(self) -> float:
        """Seconds since the running stage should have ended; 0 before that."""
        if self.budget_s is None:
            return 0.0
        return max(0.0, time.monotonic() - self.began - self.share * self.budget_s)

    @property
    def out_of_time(self) -> bool:
        left = self.left_s()
        return left is not None and left <= 0

    def cliff_map(self) -> CliffMap:
        """The survey's map as it is now. Raises :class:`NotYetError` if none was built."""
        from gacprof.cliffmap import CliffMap

        if not (self.folder / MAP).is_file():
            raise NotYetError("there is no map yet: the sweep left nothing to build one from")
        return CliffMap.load(self.folder / MAP)

    @cached_property
    def sweep_folder(self) -> Path:
        return self.folder / SWEEPS

"""What a sweep over a fleet measures and how it runs, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.core.request import RUN, argument, hook, option
from gacprof.sweeping.request import Running, SweepRequest

if TYPE_CHECKING:
    from gacprof.extras.fleet.driver import Watch
    from gacprof.sweeping.suite import Suite


class FleetRequest(Running):
    """What :func:`gacprof.sweep_fleet` is asked. ``address`` is ``auto`` (the cluster that this
    machine belongs to), ``local`` (this machine alone) or ``ray://HOST:10001``."""

    suite: Suite | Mapping[str, Any] | str | Path = argument(kw_only=False, like=SweepRequest)
    out: str | Path | None = option(
        default=None, read=Path, group=RUN,
        help="Folder for the samples: one in it a kind of device. Default: one in runs/.",
    )  # fmt: skip
    address: str = option(
        default="auto",
        help="auto: this machine's cluster; local: this machine alone; ray://HOST:10001.",
    )  # fmt: skip
    devices: str = option(
        default="auto", help="cuda, cpu (each node), all. Default: GPUs, without any the CPUs."
    )
    wait_s: float = option(
        default=120.0, name="--wait", read=float, least=0, group=RUN,
        help="Seconds to wait for devices that do not come up.",
    )  # fmt: skip
    watch: Watch | None = hook(default=None)

"""What a sweep needs of a device: prepare a curve's slots, then call them in a given order.

A CPU, a CUDA GPU and a worker process are all a :class:`Device`, and a sweep treats them alike;
tests pass recorded times. :mod:`.opening` opens one by its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from gacprof.core.points import Environment, Point, Slot


class TimedCall(NamedTuple):
    """One call: of which slot (its place), how long (µs), and whether it was ``disturbed``: it
    waited for a core meanwhile, so that its time says little."""

    slot: int
    us: float
    disturbed: bool = False


@dataclass(frozen=True)
class BlockTimes:
    """The result of a block: calls in the order made.

    ``failed`` are slots that raised, with the reason. The rest is the device's state at the end
    of the block; None where it cannot be read. ``throttled`` says why the device ran below its
    clock during the block; empty if it did not.
    """

    calls: tuple[TimedCall, ...]
    failed: Mapping[int, str] = field(default_factory=dict)
    throttled: str = ""
    sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None


class Session(ABC):
    """The slots of one curve, operands allocated, ready to be called in any order."""

    failed: Mapping[int, str]
    """Slots that cannot be prepared, by their place, with the reason."""

    @abstractmethod
    def block(self, order: Sequence[int]) -> BlockTimes:
        """Call each of these slots once, in this order.

        After a pause unrecorded calls come first: compute threads and caches are cold then.
        """

    def kernels(self) -> Mapping[int, tuple[str, ...]]:
        """Names of the kernels that one call of a slot launches, in order; without slots where
        they are not known."""
        return {}

    def remarks(self) -> Mapping[int, str]:
        """What a reader should know of how a slot was timed; without slots that were timed as
        the device's ``timer`` says."""
        return {}

    def close(self) -> None:  # noqa: B027 - a session that holds nothing needs none
        """Release the operands."""


class Device(ABC):
    """A device to sweep."""

    timer: str
    """How time is taken: ``cpu-monotonic``, ``cuda-graph``, ``cuda-events``.
    Single slots may be taken otherwise: :meth:`Session.remarks`."""
    environment: Environment

    @abstractmethod
    def session(self, slots: Sequence[Slot], reuse_bytes: int = 0) -> Session:
        """Prepare a curve's slots. Weights of cold points have ``reuse_bytes`` between two uses
        of the same memory. A slot that cannot be prepared is in ``failed``; only what makes all
        slots impossible raises :class:`MeasurementError`. A slot that breaks the device is the
        last of ``failed``, the slots after it are not prepared, and :meth:`usable` is false: open
        the device anew and leave that slot out."""

    def blocks(self, wanted: Sequence[tuple[Session, Sequence[int]]]) -> list[BlockTimes]:
        """Blocks of several sessions, one right after the other: what lies between blocks is
        neither measured nor harmless, since compute threads fall asleep.

        All or nothing: raises where one of them does.
        """
        return [session.block(order) for session, order in wanted]

    def mixed(self, wanted: Sequence[tuple[Session, int]]) -> BlockTimes | None:
        """One slot of each of these sessions, called in this order: each finds the device as the
        call before left it, which was of another curve. Slots of the result are places in
        ``wanted``. None where a device does without: its calls leave nothing behind.
        """
        return None

    def learn(self, kernels: Mapping[Point, tuple[str, ...]]) -> None:  # noqa: B027 - none asks
        """Names of the kernels of points, as another process found them: these need no trace."""

    def burn_in(self) -> None:  # noqa: B027 - not every device has a clock
        """Keep the device busy once, until its clock has settled."""

    def renew(self) -> None:  # noqa: B027 - a device in this process stays as it is
        """Go on in a fresh process, if the device has one of its own; sessions are gone then."""

    def usable(self) -> bool:
        """Whether the device still works after a failure."""
        return True

    def close(self) -> None:  # noqa: B027 - not every device holds something
        """Release the device."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

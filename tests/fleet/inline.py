"""A cluster whose workers answer at once in the calling process, and die when they are told to."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gacprof.core.errors import MeasurementError
from gacprof.extras.fleet.cluster import GoneError, WorkerPlace


@dataclass
class Inline:
    """``dies(place, call)`` says of the n-th call of all whether its worker is lost with it."""

    names: list[str]
    dies: object = lambda place, number: False
    calls: int = 0
    started: list[str] = field(default_factory=list)
    stopped: int = 0
    replies: dict = field(default_factory=dict)
    methods: dict = field(default_factory=dict)
    grows: bool = True

    def places(self):
        return [WorkerPlace(name, name.partition("/")[0], "cpu") for name in self.names]

    def start(self, place, make):
        self.started.append(place.name)
        return place, make(), deque()

    def call(self, handle, method, *args):
        self.calls += 1
        reference = self.calls
        self.replies[reference] = handle, method, args
        self.methods[reference] = method
        return reference

    def ready(self, references, timeout_s):
        return list(references)

    def result(self, reference):
        (place, worker, dead), method, args = self.replies.pop(reference)
        if dead or self.dies(place, reference):
            dead.append(True)
            raise GoneError("killed")
        try:
            return getattr(worker, method)(*args)
        except MeasurementError as error:
            raise MeasurementError(str(error)) from None

    def stop(self, handle):
        self.stopped += 1
        handle[1].close()

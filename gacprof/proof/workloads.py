"""What a model is timed at: reading a prompt, and writing token after token with a cache."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from gacprof.measure.cpu import preemptions


@dataclass(frozen=True)
class Workload:
    """``prefill``: one forward pass over ``tokens``, last logits only. ``decode``: ``steps``
    forward passes of one token each with ``tokens`` in the KV cache at the start; what is timed
    is all of them, what is reported is one."""

    kind: Literal["prefill", "decode"]
    tokens: int
    batch: int
    steps: int = 1

    @property
    def name(self) -> str:
        return f"{self.kind} {self.tokens}"


class Clock:
    """Times a call on a device in microseconds: CUDA events, or the monotonic clock.

    ``preempted`` is how often, during the latest call on a CPU, the system took a core from us;
    ``disturbed`` counts the timings that had to be kept in spite of that.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.preempted = 0
        self.disturbed = 0

    def time(self, call: Callable[[], Any]) -> float:
        if self.device.type == "cpu":
            before, start = preemptions(), time.perf_counter_ns()
            call()
            taken = (time.perf_counter_ns() - start) / 1e3
            self.preempted = preemptions() - before
            return taken
        with torch.cuda.device(self.device):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) * 1e3


class Runner:
    """One model at one workload, on inputs that are the same for all models."""

    def __init__(self, model: nn.Module, workload: Workload, ids: torch.Tensor) -> None:
        self._model, self._workload, self._ids = model, workload, ids
        accepted = inspect.signature(model.forward).parameters
        self._last_only = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}

    def time(self, clock: Clock) -> float:
        """Microseconds of one prefill, or of one decode step on average."""
        with torch.inference_mode():
            if self._workload.kind == "prefill":
                return clock.time(self._prefill)
            primed = self._prefill()  # the cache grows as it is used: each time a new one
            return clock.time(lambda: self._decode(primed)) / self._workload.steps

    def _prefill(self) -> Any:
        return self._model(input_ids=self._ids, use_cache=True, **self._last_only)

    def _decode(self, output: Any) -> None:
        """Greedy, by hand: the token is chosen on the device, so nothing waits for the host."""
        for _ in range(self._workload.steps):
            output = self._model(
                input_ids=output.logits[:, -1:].argmax(-1),
                past_key_values=output.past_key_values,
                use_cache=True,
            )

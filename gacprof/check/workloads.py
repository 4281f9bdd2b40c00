"""What a model is timed at: reading a prompt, and writing tokens with a KV cache."""

from __future__ import annotations

import copy
import time
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import nn

from gacprof.check.models import synchronize


class Workload(ABC):
    """One model at one workload, on token ids [sequences, prompt] that all models get alike.

    ``steps`` are the forward passes of one run.
    """

    steps = 1

    def __init__(self, model: nn.Module, ids: torch.Tensor) -> None:
        self.model: Any = model
        self.ids = ids

    def prepare(self) -> None:  # noqa: B027 - a prefill needs nothing
        """Leave the state that each run starts from; not timed."""

    @abstractmethod
    def run(self) -> None:
        """The work that is timed."""

    def time_us(self) -> float:
        """Duration of one run on its device."""
        with torch.inference_mode():
            self.prepare()
            synchronize(self.ids.device)
            start = time.perf_counter_ns()
            self.run()
            synchronize(self.ids.device)
            return (time.perf_counter_ns() - start) / 1e3


class Prefill(Workload):
    """One forward pass over the prompt, with the logits of its last token."""

    def run(self) -> None:
        self.model(input_ids=self.ids, use_cache=True, logits_to_keep=1)


class Decode(Workload):
    """Greedy decoding of ``steps`` tokens after the prompt, each chosen on the device."""

    def __init__(self, model: nn.Module, ids: torch.Tensor, steps: int) -> None:
        super().__init__(model, ids)
        self.steps = steps
        with torch.inference_mode():
            output = self.model(input_ids=ids, use_cache=True)
        self.prompt_cache = output.past_key_values
        self.first_token = output.logits[:, -1:].argmax(-1)
        self.cache = self.prompt_cache

    def prepare(self) -> None:
        self.cache = copy.deepcopy(self.prompt_cache)

    def run(self) -> None:
        token = self.first_token
        for _ in range(self.steps):
            output = self.model(input_ids=token, past_key_values=self.cache, use_cache=True)
            token = output.logits[:, -1:].argmax(-1)

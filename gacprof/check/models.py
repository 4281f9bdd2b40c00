"""Models to check: loaded one by one or side by side, on one device, in one dtype."""

import copy
import time
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import StaticCache

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.load import load_model, widest_dtype
from gacprof.checkpoint.scan import inventory_of
from gacprof.core.dtypes import dtype_name
from gacprof.core.errors import CheckpointError, MeasurementError
from gacprof.devices.cuda_graph import captured
from gacprof.devices.device import first_line
from gacprof.devices.tracing import traced_kernels

SEED = 0
CONFIDENCE = 0.95  # level of the intervals that are reported

Checkpoint = str | Path | Inventory  # a folder or weights file of any layout, or its inventory


def torch_device(name: str | None) -> torch.device:
    """Return the device of that name; by default the accelerator, where there is one."""
    if name is None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return accelerator or torch.device("cpu")
    try:
        # torch.device takes names of devices that are not there
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise MeasurementError(f"no device '{name}' here: {first_line(error)}") from None
    return torch.device(name)


def common_dtype(checkpoints: Sequence[Checkpoint]) -> str:
    """Return the widest type that the checkpoints store and models are computed in."""
    stored = map(widest_dtype, map(inventory_of, checkpoints))
    return dtype_name(reduce(torch.promote_types, stored))


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was asked."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def vocabulary(model: nn.Module) -> int:
    """Return the number of token ids that a model knows."""
    config: Any = model.config
    return int(config.get_text_config().vocab_size)


def random_ids(tokens_known: int, shape: tuple[int, int]) -> torch.Tensor:
    """Return token ids [sequences, tokens] below ``tokens_known``, the same on every run."""
    # Drawn on the CPU: each device's generator gives other numbers
    return torch.randint(tokens_known, shape, generator=torch.Generator().manual_seed(SEED))


def loaded(checkpoint: Checkpoint, dtype: str, device: torch.device) -> nn.Module:
    """Load a model that writes a text token by token on a device, in eval mode."""
    model: Any = load_model(checkpoint, dtype=dtype, device=device)
    if not model.can_generate() or model.config.is_encoder_decoder:
        raise CheckpointError(
            f"{inventory_of(checkpoint).path} is no decoder: {type(model).__name__}"
        )
    return model


def short_names(checkpoints: Sequence[Checkpoint]) -> tuple[str, ...]:
    """Return each path's last part, numbered where two are equal."""
    names = [Path(inventory_of(c).path).resolve().name for c in checkpoints]
    return tuple(
        f"{name} ({names[: i + 1].count(name)})" if names.count(name) > 1 else name
        for i, name in enumerate(names)
    )


class Workload:
    """A model and token ids [sequences, prompt]; ``steps`` are the forward passes of one run."""

    steps = 1

    def __init__(self, model: nn.Module, ids: torch.Tensor) -> None:
        self.model: Any = model
        self.ids = ids

    def prepare(self) -> None:
        """Leave the state that each run starts from; not timed. A prefill needs nothing."""

    def run(self) -> None:
        """Return the work that is timed."""
        raise NotImplementedError

    def time_us(self) -> float:
        """Return the duration of one run on its device."""
        with torch.inference_mode():
            self.prepare()
            synchronize(self.ids.device)
            start = time.perf_counter_ns()
            self.run()
            synchronize(self.ids.device)
            return (time.perf_counter_ns() - start) / 1e3

    def kernels_us(self) -> float | None:
        """Trace one run for its kernels' time; None on a CPU and where no trace saw them all."""
        if self.ids.device.type != "cuda":
            return None
        [kernels] = traced_kernels([self.time_us])
        # Without copies: they restore the cache before the run
        return sum(k.us for k in kernels if not k.name.startswith("Memcpy")) if kernels else None


class Prefill(Workload):
    """One forward pass over the prompt, with the logits of its last token."""

    def run(self) -> None:
        self.model(input_ids=self.ids, use_cache=True, logits_to_keep=1)


class Decode(Workload):
    """Greedy decoding of ``steps`` tokens after the prompt, each chosen on the device."""

    def __init__(
        self, model: nn.Module, ids: torch.Tensor, steps: int, cache: StaticCache | None = None
    ) -> None:
        super().__init__(model, ids)
        self.steps = steps
        with torch.inference_mode():
            # Not timed: a run is of the decoded tokens alone
            output = self.model(
                input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            self.first_token = output.logits.argmax(-1)
            self.cache = output.past_key_values
            self.prompt_cache = copy.deepcopy(self.cache)

    def prepare(self) -> None:
        # Decoding appends to the cache in place
        self.cache = copy.deepcopy(self.prompt_cache)

    def run(self) -> None:
        token = self.first_token
        for _ in range(self.steps):
            output = self.model(input_ids=token, past_key_values=self.cache, use_cache=True)
            token = output.logits[:, -1:].argmax(-1)


class StaticDecode(Decode):
    """Greedy decoding as engines do it: cache, token and position stay where they are in memory,
    so that a CUDA graph can hold a step. Until it is captured the host launches its kernels.

    Attention reads all of the cache, behind a mask: where head_dim is no multiple of 8, PyTorch has
    no fused kernel for that, as engines do.
    """

    def __init__(self, model: nn.Module, ids: torch.Tensor, steps: int) -> None:
        config: Any = model.config
        cache = StaticCache(config=config, max_cache_len=ids.shape[1] + steps)
        super().__init__(model, ids, steps, cache)
        with torch.inference_mode():
            self.token = self.first_token.clone()
            self.first_position = torch.full_like(ids[:1, :1], ids.shape[1])
            self.position = self.first_position.clone()
        self.take_step: Callable[[], None] = self.step

    def prepare(self) -> None:
        """Write the prompt's state over that of the latest run, which stays in its place. What a
        layer keeps otherwise (states of linear attention) goes on: the work is the same."""
        self.token.copy_(self.first_token)
        self.position.copy_(self.first_position)
        for layer, prompt_layer in zip(self.cache.layers, self.prompt_cache.layers, strict=True):
            for name, value in vars(prompt_layer).items():
                if isinstance(value, torch.Tensor):
                    getattr(layer, name).copy_(value)
                elif isinstance(value, int):
                    setattr(layer, name, value)

    def step(self) -> None:
        """Decode one token from the last one, and leave it and its position for the next step."""
        output = self.model(
            input_ids=self.token,
            position_ids=self.position,
            cache_position=self.position[0],  # transformers 4: else it waits for the device
            past_key_values=self.cache,
            use_cache=True,
        )
        self.token.copy_(output.logits[:, -1:].argmax(-1))
        self.position.add_(1)

    def capture(self) -> None:
        """Have the device replay a step from now on. Raises where a step cannot be captured."""
        length = self.ids.shape[1] + self.steps
        for layer in self.cache.layers:
            # The host chooses other kernels once a window is full, and waits in these
            if getattr(layer, "max_cache_len", length) < length:
                raise MeasurementError("a sliding window is shorter than prompt and decoded tokens")
        with torch.inference_mode():
            self.take_step = captured(self.step, self.prepare, self.ids.device)

    def run(self) -> None:
        for _ in range(self.steps):
            self.take_step()

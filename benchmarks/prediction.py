"""What a map predicts of a whole model, beside what the model takes, and where the rest goes.

    python benchmarks/prediction.py            # about 5 minutes

The demo's model dense, as compressed and realigned by a plan; prefill of 256 tokens and a decode
step. The compressed one is swept for ``--seconds`` to plan by; then all three in one sweep of twice
that. All models take turns for ``--rounds`` rounds, half before and half after that sweep, since a
machine's level moves. In each round three things are timed one after the other: the whole step, the
step with hooks around each linear layer (*in the model*), and those layers alone on the inputs that
they had, back to back (*alone*). What the map predicts (*predicted*) is the sum of these products.

A map's latencies are at the level of a fit's lower quartile: what a call takes where little
disturbs it. So the layers' times are lower quartiles over the rounds, layer by layer, summed;
*disturbed* is how much longer the sum of their medians is. The whole step is a median.

- predicted beside alone is what the map is off by, the machine's level between the sweep and the
  rounds included;
- alone beside in the model is what their neighbours cost them, at the same level;
- the rest of the step is attention, norms, activations, the cache and Python: no dim of a weight
  changes it, and no map of products predicts it.

The second table is free of the machine's level: each model beside the dense one. The third is of
where an input lies: a sweep gives all calls one input, which stays in cache; a model's was just
written by the layer before, or has moved out.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

import gacprof
from gacprof.demo.models import write_demo_checkpoint
from gacprof.devices.environment import cpu_name, native_bfloat16
from gacprof.devices.threads import short_waits
from gacprof.evaluation.workloads import BenchWorkload, Clock, Runner, runner
from gacprof.sweeping.for_checkpoint import suite_for

PREFILL = 256


class LinearClock:
    """The time of each call of a model's linear layers, in order, while it is on."""

    def __init__(self, model: nn.Module) -> None:
        self.us: list[float] = []
        self._start = 0
        self._model = model

    def __enter__(self) -> LinearClock:
        self.us = []
        self._hooks = []
        for module in self._model.modules():
            if isinstance(module, nn.Linear):
                self._hooks.append(module.register_forward_pre_hook(self._begin))
                self._hooks.append(module.register_forward_hook(self._end))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _begin(self, *_: object) -> None:
        self._start = time.perf_counter_ns()

    def _end(self, *_: object) -> None:
        self.us.append((time.perf_counter_ns() - self._start) / 1e3)


def made(folder: Path) -> dict[str, Path]:
    """The compressed checkpoint and the dense one that it stands for."""
    model = write_demo_checkpoint(folder / "compressed")
    gacprof.realign(model, "fuse", folder / "dense")
    return {"dense": folder / "dense", "compressed": model}


def swept(checkpoints: Iterable[Path], out: Path, seconds: float, dtype: str) -> str:
    """The path of the map of all these checkpoints' own shapes, from one sweep."""
    suites = [suite_for(gacprof.scan(path), (1, PREFILL), dtype=dtype) for path in checkpoints]
    together = suites[0].model_copy(
        update={
            "sweep": [table for suite in suites for table in suite.sweep],
            "timing": max((suite.timing for suite in suites), key=lambda t: t.reuse_mib),
        }
    )
    gacprof.sweep(together, device="cpu", out=out, budget_s=seconds)
    gacprof.build_map(out).save(out / "cliffmap.json")
    return str(out / "cliffmap.json")


def predicted(checkpoint: Path, map_path: str, tokens: int, dtype: str) -> float:
    """µs of all linear layers. A sweep's own shapes are all in its map, if its time sufficed."""
    found = gacprof.diagnose(checkpoint, map_path, tokens={tokens: 1.0}, dtype=dtype)
    missing = [weight.name for weight in found.weights if weight.latency_us is None]
    if missing:
        raise SystemExit(f"{len(missing)} products were not swept ({missing[0]}): more --seconds")
    return sum(weight.latency_us or 0.0 for weight in found.weights)


Key = tuple[str, str]
"""Model and kind of step."""


@dataclass(frozen=True)
class Measured:
    """µs: of the whole step, of the linear layers in it and of these alone; and how much longer
    the latter's medians are than their lower quartiles, as a fraction."""

    whole: float
    inside: float
    alone: float
    disturbed: float


class Rounds:
    """Rounds in which all models take turns; whatever is asked of them, at any time."""

    def __init__(self, models: dict[str, nn.Module]) -> None:
        self._clock, self._models = Clock(torch.device("cpu")), models
        ids = torch.randint(0, 100, (1, PREFILL), generator=torch.Generator().manual_seed(0))
        workloads = [BenchWorkload(kind, PREFILL, 1) for kind in ("prefill", "decode")]
        self._runners: dict[Key, Runner] = {
            (name, w.kind): runner(model, w, ids)
            for name, model in models.items()
            for w in workloads
        }
        self._layers = {
            key: Layers(models[key[0]], partial(r.time, self._clock))
            for key, r in self._runners.items()
        }
        self._whole: dict[Key, list[float]] = {key: [] for key in self._runners}
        self._inside: dict[Key, list[list[float]]] = {key: [] for key in self._runners}
        self._alone: dict[Key, list[list[float]]] = {key: [] for key in self._runners}

    def add(self, rounds: int) -> None:
        keys = list(self._runners)
        for _ in range(rounds):
            random.shuffle(keys)
            for key in keys:
                self._runners[key].time(self._clock)
                self._whole[key].append(self._runners[key].time(self._clock).us)
                with LinearClock(self._models[key[0]]) as hooked:
                    self._runners[key].time(self._clock)
                self._inside[key].append(hooked.us)
                self._layers[key].times()
                self._alone[key].append(self._layers[key].times())

    def measured(self) -> dict[Key, Measured]:
        return {
            key: Measured(
                statistics.median(self._whole[key]),
                summed(self._inside[key], 0.25),
                summed(self._alone[key], 0.25),
                summed(self._alone[key], 0.5) / summed(self._alone[key], 0.25) - 1,
            )
            for key in self._runners
        }


def summed(times: list[list[float]], quantile: float) -> float:
    """Of [rounds, layers]: each layer's quantile over the rounds, summed."""
    return float(np.quantile(np.array(times), quantile, axis=0).sum())


class Layers:
    """A model's linear layers with the inputs that they are given in a step."""

    def __init__(self, model: nn.Module, step: Callable[[], object]) -> None:
        self._calls: list[tuple[nn.Module, torch.Tensor]] = []
        step()  # the first decode step reads a prompt
        layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
        hooks = [m.register_forward_pre_hook(self._keep) for m in layers]
        step()
        for hook in hooks:
            hook.remove()

    def _keep(self, layer: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        self._calls.append((layer, given[0].detach().clone()))

    def times(self) -> list[float]:
        """µs of each, one after another."""
        us = []
        with torch.inference_mode():
            for layer, given in self._calls:
                start = time.perf_counter_ns()
                layer(given)
                us.append((time.perf_counter_ns() - start) / 1e3)
        return us


INPUTS = ("in cache", "moved out", "just written")
WEIGHTS_OF = ((107, 1024), (1024, 107), (2816, 107), (107, 2816), (2816, 1024), (1024, 2816))


def by_input(rounds: int, dtype: torch.dtype) -> dict[tuple[int, int], dict[str, float]]:
    """By weight (out, in): µs with an input of 256 tokens in each of these states, lower quartiles.
    Weights are cold, and what was not just written has lain for 100 MB of other calls."""
    memory = torch.randn(64 << 20).to(dtype)

    def view(*shape: int) -> torch.Tensor:
        size = shape[0] * shape[1]
        first = random.randrange(0, memory.numel() - size) // 64 * 64
        return memory[first : first + size].view(shape)

    times: dict[tuple[tuple[int, int], str], list[float]] = {
        (shape, state): [] for shape in WEIGHTS_OF for state in INPUTS
    }
    order = list(times)
    for _ in range(rounds):
        random.shuffle(order)
        for shape, state in order:
            w = view(*shape)
            x = view(PREFILL, shape[1])
            if state == "in cache":
                x = memory[: x.numel()].view(x.shape)
                x.sum()
            elif state == "just written":
                x = x * 1.0
            with torch.inference_mode():
                start = time.perf_counter_ns()
                nn.functional.linear(x, w)
                times[shape, state].append((time.perf_counter_ns() - start) / 1e3)
    return {
        shape: {state: float(np.quantile(times[shape, state], 0.25)) for state in INPUTS}
        for shape in WEIGHTS_OF
    }


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--seconds", type=float, default=45.0, help="of the first sweep")
    ask.add_argument("--rounds", type=int, default=60)
    given = ask.parse_args()
    seconds = given.seconds
    short_waits()
    dtype = "bfloat16" if native_bfloat16() else "float32"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        checkpoints = made(folder)
        first = swept([checkpoints["compressed"]], folder / "first", seconds, dtype)
        plan = gacprof.plan(checkpoints["compressed"], first)
        gacprof.realign(checkpoints["compressed"], plan, folder / "realigned")
        checkpoints["realigned"] = folder / "realigned"
        rounds = Rounds(
            {n: gacprof.load_model(path, dtype=dtype).eval() for n, path in checkpoints.items()}
        )
        rounds.add(given.rounds // 2)
        all_three = swept(checkpoints.values(), folder / "all", 2 * seconds, dtype)
        rounds.add(given.rounds - given.rounds // 2)
        found = rounds.measured()
        told = {
            (name, kind): predicted(
                checkpoints[name], all_three, PREFILL if kind == "prefill" else 1, dtype
            )
            for name, kind in found
        }
        states = by_input(4 * given.rounds, getattr(torch, dtype))
    print(f"{cpu_name()}, {dtype}, a sweep of {2 * seconds:g} s, {given.rounds} rounds\n")
    print(
        "| model | step | whole | in the model | alone | predicted | predicted / alone "
        "| alone / in the model | disturbed |\n|---|---|---|---|---|---|---|---|---|"
    )
    order = sorted(found, key=lambda key: key[::-1])
    for key in order:
        m, us = found[key], told[key]
        print(
            f"| {key[0]} | {key[1]} | {_ms(m.whole)} | {_ms(m.inside)} | {_ms(m.alone)} | "
            f"{_ms(us)} | {us / m.alone - 1:+.1%} | {m.alone / m.inside - 1:+.1%} | "
            f"{m.disturbed:+.1%} |"
        )
    print(
        "\n| beside dense | step | whole | in the model | alone | predicted |\n"
        "|---|---|---|---|---|---|"
    )
    for name, kind in (key for key in order if key[0] != "dense"):
        m, dense = found[name, kind], found["dense", kind]
        print(
            f"| {name} | {kind} | {m.whole / dense.whole - 1:+.1%} | "
            f"{m.inside / dense.inside - 1:+.1%} | {m.alone / dense.alone - 1:+.1%} | "
            f"{told[name, kind] / told['dense', kind] - 1:+.1%} |"
        )
    print(f"\n| weight | input {' | '.join(INPUTS)} |\n|---|---|---|---|")
    for (n, k), us_of in states.items():
        beside = " | ".join(f"{us_of[state] / us_of[INPUTS[0]] - 1:+.1%}" for state in INPUTS[1:])
        print(f"| {n} × {k} | {us_of[INPUTS[0]]:.0f} µs | {beside} |")


def _ms(us: float) -> str:
    return f"{us / 1e3:.2f} ms"


if __name__ == "__main__":
    main()

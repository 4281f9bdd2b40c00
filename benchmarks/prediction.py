"""What a map foretells of a whole model, beside what the model takes, and where the rest goes.

    python benchmarks/prediction.py            # about 4 minutes

The demo's model dense, as compressed and realigned by a plan; prefill of 256 tokens and a decode
step. Each checkpoint's own shapes are swept for ``--seconds``; the map's sum over the matrix
products (*predicted*) stands beside the time of the same products inside the running model (*in
the model*, by hooks around each linear layer) and the whole step (*measured*). What is neither is
attention, norms, activations, the cache and Python: no dim of a weight changes it, and no map of
products foretells it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import gacprof
from gacprof.demo.model import write_demo_checkpoint
from gacprof.devices.environment import cpu_name, native_bfloat16
from gacprof.devices.threads import short_waits
from gacprof.evaluation.workloads import BenchWorkload, Clock, Runner, runner
from gacprof.sweeping.for_checkpoint import suite_for

PREFILL = 256
ROUNDS = 40


class LinearClock:
    """The time spent in a model's linear layers, summed while it is on."""

    def __init__(self, model: nn.Module) -> None:
        self.us = 0.0
        self._start = 0
        self._model = model

    def __enter__(self) -> LinearClock:
        self.us = 0.0
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
        self.us += (time.perf_counter_ns() - self._start) / 1e3


def made(folder: Path) -> dict[str, Path]:
    """The three checkpoints; the plan is by the compressed one's own sweep."""
    model = write_demo_checkpoint(folder / "compressed")
    gacprof.fuse(model, folder / "dense")
    return {"dense": folder / "dense", "compressed": model}


def swept(name: str, checkpoint: Path, folder: Path, seconds: float, dtype: str) -> str:
    """The path of the map of a checkpoint's own shapes."""
    suite = suite_for(gacprof.scan(checkpoint), (1, PREFILL), dtype=dtype)
    out = folder / f"run-{name}"
    gacprof.sweep(suite, device="cpu", out=out, budget_s=seconds)
    gacprof.build_map(out).save(out / "cliffmap.json")
    return str(out / "cliffmap.json")


def predicted(checkpoint: Path, map_path: str, tokens: int, dtype: str) -> float | None:
    found = gacprof.diagnose(checkpoint, map_path, tokens={tokens: 1.0}, dtype=dtype)
    return found.totals()["predicted_us"]


def measured(models: dict[str, nn.Module]) -> dict[tuple[str, str], tuple[float, float]]:
    """(whole, in linear layers) of each model and workload: medians of interleaved rounds, µs."""
    clock = Clock(torch.device("cpu"))
    ids = torch.randint(0, 100, (1, PREFILL), generator=torch.Generator().manual_seed(0))
    workloads = [BenchWorkload(kind, PREFILL, 1) for kind in ("prefill", "decode")]
    runners: dict[tuple[str, str], Runner] = {
        (name, w.kind): runner(model, w, ids) for name, model in models.items() for w in workloads
    }
    times: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in runners}
    keys = list(runners)
    for _ in range(ROUNDS):
        random.shuffle(keys)
        for key in keys:
            runners[key].time(clock)
            whole = runners[key].time(clock).us
            with LinearClock(models[key[0]]) as inside:
                runners[key].time(clock)
            times[key].append((whole, inside.us))
    return {
        key: (statistics.median(w for w, _ in of), statistics.median(p for _, p in of))
        for key, of in times.items()
    }


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--seconds", type=float, default=45.0, help="of each checkpoint's sweep")
    seconds = ask.parse_args().seconds
    short_waits()
    dtype = "bfloat16" if native_bfloat16() else "float32"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        checkpoints = made(folder)
        maps = {
            "compressed": swept("compressed", checkpoints["compressed"], folder, seconds, dtype)
        }
        plan = gacprof.plan(checkpoints["compressed"], maps["compressed"])
        gacprof.realign(checkpoints["compressed"], plan, folder / "realigned")
        checkpoints["realigned"] = folder / "realigned"
        for name in ("dense", "realigned"):
            maps[name] = swept(name, checkpoints[name], folder, seconds, dtype)
        models = {
            name: gacprof.load_model(path, dtype=dtype).eval() for name, path in checkpoints.items()
        }
        found = measured(models)
        print(f"{cpu_name()}, {dtype}, sweeps of {seconds:g} s, {ROUNDS} rounds\n")
        print("| model | step | measured | in linear layers | share | predicted | error |")
        print("|---|---|---|---|---|---|---|")
        for (name, kind), (whole, inside) in sorted(found.items(), key=lambda f: f[0][::-1]):
            tokens = PREFILL if kind == "prefill" else 1
            told = predicted(checkpoints[name], maps[name], tokens, dtype)
            error = "–" if told is None else f"{told / inside - 1:+.1%}"
            shown = "–" if told is None else f"{told / 1e3:.2f} ms"
            print(
                f"| {name} | {kind} | {whole / 1e3:.2f} ms | {inside / 1e3:.2f} ms | "
                f"{inside / whole:.0%} | {shown} | {error} |"
            )


if __name__ == "__main__":
    main()

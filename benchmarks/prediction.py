"""What is predicted of whole models, beside what they take: does the predicted interval hold?

    python benchmarks/prediction.py --out runs/prediction            # about 15 minutes

Ten models of random weights, of SmolLM2-135M's shapes with fewer layers: the uncompressed one, and
for each of three ways to choose ranks (uniform at 15 and 30 % removed, as SVD-LLM's; different
ones at 15 %, many weights left dense, as ASVD's) the own ranks, these rounded down to multiples of
8, and the fastest plan with no more parameters that keeps 95 % of the factors' energy. One sweep
over all their shapes makes the map. A short bench of each own model is all that is known of whole
steps; a long one of it with the others is what the predictions are held against. Latency does not
need trained weights.

The last line counts the predicted intervals that hold the measured change. Where one does not, and
the bench's own interval has a part in common with it, whether it held is open.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gacprof
from gacprof.checkpoint import scan
from gacprof.checkpoint.inventory import Gemm
from gacprof.cliffmap.estimate import Interval
from gacprof.core.files import write_json
from gacprof.core.formatting import interval
from gacprof.devices.environment import cpu_name, native_bfloat16
from gacprof.devices.threads import short_waits
from gacprof.diagnosing.predict import Predictor
from gacprof.diagnosing.whole import benched
from gacprof.evaluation.predictions import held
from gacprof.evaluation.summary import BenchResult
from gacprof.resizing.writers import save_tensors
from gacprof.sweeping.for_checkpoint import suite_for

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, VOCABULARY = 576, 1536, 9, 3, 4096
PREFILL = 256
SHAPES = (
    ("self_attn.q_proj", HIDDEN, HIDDEN), ("self_attn.k_proj", 192, HIDDEN),
    ("self_attn.v_proj", 192, HIDDEN), ("self_attn.o_proj", HIDDEN, HIDDEN),
    ("mlp.gate_proj", INTERMEDIATE, HIDDEN), ("mlp.up_proj", INTERMEDIATE, HIDDEN),
    ("mlp.down_proj", HIDDEN, INTERMEDIATE),
)  # fmt: skip
"""(name, out features, in features) of a layer's projections."""

Ranks = Mapping[str, int]
"""By module name; one that is not there is dense."""


def modules(layers: int) -> Iterator[tuple[str, int, int]]:
    for i in range(layers):
        for name, wide, deep in SHAPES:
            yield f"model.layers.{i}.{name}", wide, deep


def uniform(layers: int, kept: float) -> Ranks:
    return {n: int(w * d * kept / (w + d)) for n, w, d in modules(layers)}


def different(layers: int, kept: float) -> Ranks:
    """Shares of ±40 % around the mean; what is not smaller as a pair is dense."""
    draw, found = random.Random(0), {}
    for name, wide, deep in modules(layers):
        share = kept * draw.uniform(0.6, 1.4)
        if share < 1:
            found[name] = max(8, int(wide * deep * share / (wide + deep)))
    return found


def write(folder: Path, layers: int, ranks: Ranks) -> Path:
    """The model in ASVD's layout, random weights."""
    draw, tensors = np.random.default_rng(0), dict[str, torch.Tensor]()

    def add(name: str, *shape: int) -> None:
        values = draw.standard_normal(shape, dtype=np.float32) / np.float32(np.sqrt(shape[-1]))
        tensors[f"{name}.weight"] = torch.from_numpy(values)

    add("model.embed_tokens", VOCABULARY, HIDDEN)
    add("lm_head", VOCABULARY, HIDDEN)
    norms = [f"model.layers.{i}.{n}_layernorm" for i in range(layers)
             for n in ("input", "post_attention")]  # fmt: skip
    tensors |= {f"{name}.weight": torch.ones(HIDDEN) for name in ("model.norm", *norms)}
    for name, wide, deep in modules(layers):
        if name in ranks:
            add(f"{name}.ALinear", wide, ranks[name])
            add(f"{name}.BLinear", ranks[name], deep)
        else:
            add(name, wide, deep)
    folder.mkdir(parents=True)
    save_tensors(folder / "model.safetensors", tensors, {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": layers,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
        "head_dim": HIDDEN // HEADS, "vocab_size": VOCABULARY, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "float32",
    }  # fmt: skip
    write_json(folder / "config.json", config | ({"truncation_ranks": ranks} if ranks else {}))
    return folder


def swept(folders: list[Path], out: Path, seconds: float, dtype: str) -> str:
    """The path of the map of all these models' shapes, of one sweep."""
    suites = [suite_for(scan(folder), (1, PREFILL), dtype=dtype) for folder in folders]
    together = suites[0].model_copy(
        update={
            "sweep": [table for suite in suites for table in suite.sweep],
            "timing": max((suite.timing for suite in suites), key=lambda t: t.reuse_mib),
        }
    )
    gacprof.sweep(together, device="cpu", out=out, budget_s=seconds)
    gacprof.build_map(out).save(out / "cliffmap.json")
    return str(out / "cliffmap.json")


@dataclass(frozen=True)
class Row:
    """One model against its own ranks at one workload: the products alone, the predicted change of
    the whole step, the measured one (low, ratio, high)."""

    model: str
    workload: str
    products: float | None
    predicted: Interval | None
    measured: tuple[float, float, float]

    @property
    def held(self) -> str:
        known = self.predicted
        return "" if known is None else held((known.low, known.value, known.high), self.measured)

    def __str__(self) -> str:
        low, middle, high = (ratio - 1 for ratio in self.measured)
        known = self.predicted
        shown = "unknown" if known is None else interval(known.low, known.value, known.high)
        products = "unknown" if self.products is None else f"{self.products:+.1%}"
        return (
            f"| {self.model} | {self.workload} | {products} | {shown} | "
            f"{interval(low, middle, high)} | {self.held} |"
        )


def rows_of(
    own: Path, others: list[Path], cliff_map: str, short: Path, timed: BenchResult
) -> Iterator[Row]:
    inventory, source = scan(own), gacprof.CliffMap.load(cliff_map)
    for tokens in (1, PREFILL):
        at = Predictor(source, inventory, {tokens: 1.0}, timed.dtype)
        whole = benched(short, [inventory], at)
        names = [module.name for module in inventory.modules if module.role != "head"]
        before = _products(own, names)
        for folder, name in zip(others, timed.models[1:], strict=True):
            after = _products(folder, names)
            workload = f"{'decode' if tokens == 1 else 'prefill'} {PREFILL}"
            timing = timed.of(name, workload)
            ratio = timing.ratio
            if timing.verdict == "identical":
                continue
            us = [at.gemms(each).latency_us for each in (before, after)]
            products = us[1] / us[0] - 1 if us[0] and us[1] else None
            assert ratio is not None
            family = own.name.removesuffix("-own")
            shown = f"{family}, {folder.name.removeprefix(f'{family}-')}"
            yield Row(shown, workload, products, whole.change(at, before, after), ratio)


def _products(folder: Path, names: list[str]) -> list[Gemm]:
    return [g for m in scan(folder).modules if m.name in names for g in m.gemms]


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ask.add_argument("--out", type=Path, required=True, help="A new folder.")
    ask.add_argument("--layers", type=int, default=10)
    ask.add_argument("--seconds", type=float, default=240.0, help="of the sweep")
    ask.add_argument("--cap", type=float, default=120.0, help="seconds of each long bench")
    given = ask.parse_args()
    short_waits()
    dtype, out = "bfloat16" if native_bfloat16() else "float32", given.out
    families = {
        "uniform-15": uniform(given.layers, 0.85), "uniform-30": uniform(given.layers, 0.7),
        "different-15": different(given.layers, 0.85),
    }  # fmt: skip
    dense = write(out / "dense", given.layers, {})
    own = {name: write(out / f"{name}-own", given.layers, r) for name, r in families.items()}
    rounded = {
        name: write(
            out / f"{name}-rounded", given.layers, {m: max(8, n // 8 * 8) for m, n in r.items()}
        )
        for name, r in families.items()
    }
    folders = [dense, *own.values(), *rounded.values()]
    cliff_map = swept(folders, out / "sweep", given.seconds, dtype)
    how: dict[str, Any] = {"tokens": (PREFILL,), "decode_steps": 8, "dtype": dtype, "device": "cpu"}
    rows: list[Row] = []
    for name, folder in own.items():
        short = out / f"{name}-short.json"
        timed = gacprof.bench([folder], rounds=24, time_cap_s=given.cap / 4, **how)
        short.write_text(json.dumps(timed.as_dict()))
        plan = gacprof.plan(
            folder, cliff_map, tokens={1: 1.0, PREFILL: 1.0}, dtype=dtype, bench=short,
            objective="latency", quality_floor=0.95, budget_parameters=scan(folder).parameters,
        )  # fmt: skip
        planned = out / f"{name}-planned"
        gacprof.realign(folder, plan, planned)
        others = [dense, rounded[name], planned]
        timed = gacprof.bench([folder, *others], rounds=96, time_cap_s=given.cap, **how)
        (out / f"{name}-bench.json").write_text(json.dumps(timed.as_dict()))
        rows += rows_of(folder, others, cliff_map, short, timed)
    print(f"{cpu_name()}, {dtype}, {given.layers} layers, a sweep of {given.seconds:g} s\n")
    print("| against own ranks | step | products | predicted | measured | |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(row)
    shown = [row.held for row in rows if row.held]
    count = {word: shown.count(word) for word in dict.fromkeys(shown)}
    print(f"\n{len(shown)} predictions: {', '.join(f'{n} × {word}' for word, n in count.items())}")


if __name__ == "__main__":
    main()

"""Is a realigned model faster where it is served? SmolLM2-135M in transformers, vLLM, llama.cpp.

Three models: dense; *ragged*, its 30 MLP widths pruned to odd ones; *realigned*, the ragged one
with widths that a map of this machine calls safe (or multiples of 64, if asked for), at no more
parameters. Each is exported for each engine and benched there (``gacprof.bench_engine``): models
interleaved, with a hidden A/A twin.

    python benchmarks/engines.py --prepare      # what is not timed: fetch, prune, export
    python benchmarks/engines.py                # sweep, plan, bench; the table, in 10 minutes
    python benchmarks/engines.py --check        # 32 greedy tokens, the same in all engines?

Needs gacprof[engines], accelerate and vLLM's environment (tools/vllm_cpu_env.py). Every step leaves
a file in ``--out`` and is not done twice; remove ``bench-*.json`` to measure again, and
``cliffmap.json`` and ``realigned*`` too to sweep again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from exported_smollm2 import dense_model, ragged_model

import gacprof
from gacprof.core.errors import GacprofError
from gacprof.core.files import write_json
from gacprof.extras.serve.engines.engine import ENGINES, EngineProcess

MODELS = ("ragged", "realigned", "dense")
"""The first is the reference of every ratio."""
DTYPE = "bfloat16"
"""Computed in by transformers and vLLM, and mapped. llama.cpp takes what its file holds."""
TOKENS = (128, 512)
DECODE_STEPS = 8
SECONDS = {"transformers": 75.0, "vllm": 75.0, "llama.cpp": 125.0}
"""Of measuring: twelve rounds at least on two cores. llama.cpp's wheel is compiled for AVX2."""
WINDOW = 0.05
"""Of the sweep and of the plan: 30 widths are near each other's candidates anyway."""
PROMPT = "The capital of France is"
GREEDY = 32
FORMATS = {"transformers": "transformers", "vllm": "vllm-native", "llama.cpp": "gguf"}
GGUF_TYPE = "f16"


def realigned(out: Path, rule: str, seconds: float) -> Path:
    """At no more parameters than the ragged model has: by a map of this machine (``map``), or to
    multiples of 64 (``64``, and where the sweep was too short for a plan)."""
    folder, source = out / "realigned", out / "ragged"
    if folder.exists():
        return folder
    sizes: gacprof.Plan | dict[str, int] | None = _by_map(out, seconds) if rule == "map" else None
    (out / "rule.txt").write_text("a map of this machine" if sizes else "multiples of 64")
    gacprof.realign(source, sizes or _by_64(source), folder)
    return folder


def _by_map(out: Path, seconds: float) -> gacprof.Plan | None:
    source, tokens = out / "ragged", [max(TOKENS)]
    try:
        if not (out / "cliffmap.json").exists():
            gacprof.sweep(
                model=source, tokens=tokens, dtype=DTYPE, window=WINDOW, out=out / "sweep",
                budget_s=seconds, resume=(out / "sweep").exists(),
            )  # fmt: skip
            gacprof.build_map(out / "sweep").save(out / "cliffmap.json")
        made = gacprof.plan(
            source, out / "cliffmap.json", tokens=tokens, dtype=DTYPE, objective="gac",
            window=WINDOW, budget_parameters=gacprof.scan(source).parameters,
        )  # fmt: skip
    except GacprofError as error:
        print(f"no plan by the map, so multiples of 64: {error}", file=sys.stderr)
        return None
    made.save(out / "plan.json")
    return made


def _by_64(source: Path) -> dict[str, int]:
    """Nearest multiples, those that grew most lowered again until nothing is gained in all."""
    now = {dim.name: dim.size for dim in gacprof.scan(source).dims}
    sizes = {name: (size + 32) // 64 * 64 for name, size in now.items()}
    while sum(sizes.values()) > sum(now.values()):
        grown = max(sizes, key=lambda name: sizes[name] - now[name])
        sizes[grown] -= 64
    return sizes


def exported(out: Path, model: str, engine: str, type: str = GGUF_TYPE) -> Path:
    """What the engine loads, written if it is not there. vLLM and transformers take the dense
    model as it is."""
    if model == "dense" and engine != "llama.cpp":
        return out / "dense"
    to = FORMATS[engine]
    more = {"type": type} if to == "gguf" else {}
    folder = out / "-".join([model, to, *more.values()])
    if not folder.exists():
        gacprof.export(out / model, to, folder, check="tensors", **more)
    return folder


def check(out: Path, python: Path | None, engines: Sequence[str]) -> None:
    """The likeliest tokens after a prompt, all in float32."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(out / "dense")
    ids, dtypes = tokenizer(PROMPT)["input_ids"], {"llama.cpp": None}
    for model in MODELS:
        first: list[int] = []
        for engine in engines:
            kind = ENGINES[engine]
            interpreter = kind.python(python if kind.own_python else None)
            file = kind.model(exported(out, model, engine, "f32"))
            with EngineProcess(kind, interpreter, len(os.sched_getaffinity(0))) as process:
                process.open(file, len(ids) + GREEDY + 8, dtypes.get(engine, "float32"), True)
                tokens = process.ask("greedy", ids=ids, count=GREEDY)
            first = first or tokens
            same = next((i for i in range(GREEDY) if tokens[i] != first[i]), GREEDY)
            text = tokenizer.decode(tokens).replace("\n", " ")
            print(f"{model:10} {engine:13} {same} of {GREEDY} as the first: {text}", flush=True)


def measure(out: Path, engine: str, python: Path | None, seconds: float) -> None:
    file = out / f"bench-{engine}.json"
    if file.exists():
        return
    found = gacprof.bench_engine(
        [exported(out, model, engine) for model in MODELS], engine,
        python=python if ENGINES[engine].own_python else None, tokens=TOKENS,
        decode_steps=DECODE_STEPS, dtype=None if engine == "llama.cpp" else DTYPE,
        trust_remote_code=True, time_cap_s=seconds,
    )  # fmt: skip
    write_json(file, found.as_dict())


def table(out: Path, engines: Sequence[str]) -> str:
    shown = ("prefill 512", "decode 128")
    lines = [
        "| engine | model | parameters | "
        + " | ".join(f"{name}, tokens/s | against ragged" for name in shown)
        + " |",
        "|---" * (3 + 2 * len(shown)) + "|",
    ]
    notes = []
    for engine in engines:
        file = out / f"bench-{engine}.json"
        if not file.exists():
            lines.append(f"| {engine} | not measured |" + " |" * (1 + 2 * len(shown)))
            continue
        found = json.loads(file.read_text())
        for i in (2, 0, 1):
            rows = [t for t in found["timings"] if t["model"] == found["models"][i]]
            cells = [
                cell for name in shown for t in rows if t["workload"] == name for cell in _cells(t)
            ]
            name, parameters = MODELS[i], found["parameters"][i]
            lines.append(
                f"| {found['engine']} | {name} | {parameters:,} | " + " | ".join(cells) + " |"
            )
        spreads = ", ".join(f"{r['workload']} {r['spread']:.1%}" for r in found["replicates"])
        kind = f"{GGUF_TYPE} file" if engine == "llama.cpp" else found["dtype"]
        notes.append(
            f"- {found['engine']}: {kind}, {found['rounds']} rounds, A/A spread {spreads}"
            + "".join(f"; {note}" for note in found["notes"])
        )
        machine = found["environment"]["name"]
    if notes:
        notes.insert(
            0, f"One run on {machine}; intervals 95 %, of ratios for all verdicts at once."
        )
    return "\n".join([*lines, "", *notes, *_predicted(out)])


def _cells(timing: dict[str, Any]) -> tuple[str, str]:
    low, middle, high = timing["tokens_per_s"]
    digits = 0 if middle >= 100 else 1
    rate = f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"
    if timing["ratio"] is None:
        return rate, "–"
    # A ratio of times, turned into one of rates.
    high, middle, low = (1 / ratio - 1 for ratio in timing["ratio"])
    return rate, f"{timing['verdict']}: {middle:+.1%} ({low:+.1%} to {high:+.1%})"


def _predicted(out: Path) -> list[str]:
    """How the new widths were chosen, and what a map of torch's products predicted of them."""
    lines = [f"- The new widths are by {(out / 'rule.txt').read_text()}."]
    if (out / "plan.json").exists():
        made = gacprof.Plan.load(out / "plan.json")
        before, after = made.predicted_before_us, made.predicted_after_us
        if before and after:
            lines[0] = lines[0].removesuffix(".") + (
                f", which predicted {after / before - 1:+.1%} for the time of the MLPs' products "
                f"in torch, ragged to realigned, at {max(TOKENS)} tokens."
            )
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/engines"))
    parser.add_argument("--engine-python", type=Path, help="the Python of vLLM's environment")
    parser.add_argument("--engines", default=",".join(FORMATS))
    parser.add_argument("--seconds", type=float, help="of measuring, each engine")
    parser.add_argument("--rule", choices=("map", "64"), default="map", help="of the new widths")
    parser.add_argument("--sweep", type=float, default=100.0, help="seconds of the sweep")
    parser.add_argument("--prepare", action="store_true", help="do what is not timed")
    parser.add_argument("--check", action="store_true", help="compare greedy tokens")
    given = parser.parse_args()
    engines = given.engines.split(",")
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        ragged_model(dense_model(given.out), given.out / "ragged", 1)
        for model, engine in product(("ragged", "dense"), engines):
            exported(given.out, model, engine)
        if given.prepare:
            return 0
        realigned(given.out, given.rule, given.sweep)
        if given.check:
            check(given.out, given.engine_python, engines)
            return 0
        for engine in engines:
            measure(given.out, engine, given.engine_python, given.seconds or SECONDS[engine])
        print(table(given.out, engines))
    except GacprofError as error:
        print(f"engines.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

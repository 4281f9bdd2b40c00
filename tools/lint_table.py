"""Write reports/lint-models.md: 20 published models, judged on ranks, GPUs and quantisations.

python tools/lint_table.py reports/lint-models.md
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gacprof.lint.deployment import deploy
from gacprof.lint.judge import OUTCOMES, overall

MODELS = Path(__file__).with_name("lint_models.toml")
GPUS = ("h100", "b200")
QUANTISATIONS = ("bf16", "fp8-block", "nvfp4")
DEGREES = (1, 2, 4, 8)
LETTERS = dict(zip(OUTCOMES, "·?pfwR", strict=True))
HEAD = """# 20 models, by `gacprof lint`

What vLLM 0.33 does with the products of published models on 1, 2, 4 and 8 tensor-parallel ranks, a
letter each, without expert parallelism: `·` all ok, `p` pads, `f` falls back to another kernel than
the format is made for, `w` loads but wrong, `R` refused (or the weights are beyond the memory), `?`
unknown. All linear layers but the embedding and head are taken as quantised; published checkpoints
often leave some out.

Made by `python tools/lint_table.py` from the configs' published values (`tools/lint_models.toml`).
Nothing was run.
"""


def table() -> Iterator[str]:
    """The page, line by line."""
    yield HEAD
    columns = [f"{gpu.upper()} {quantisation}" for gpu in GPUS for quantisation in QUANTISATIONS]
    yield f"| model | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for name, config in tomllib.loads(MODELS.read_text(encoding="utf-8")).items():
        cells = [f"`{letters(config, gpu, form)}`" for gpu in GPUS for form in QUANTISATIONS]
        yield f"| {name.replace('_', '.')} | {' | '.join(cells)} |"


def letters(config: Mapping[str, Any], gpu: str, quantisation: str) -> str:
    """The outcome on each number of ranks, a letter each."""
    text = ""
    for tp in DEGREES:
        deployment = deploy(config, gpu=gpu, tp=tp, quantisation=quantisation)
        text += LETTERS[overall(deployment.judgements())]
    return text


if __name__ == "__main__":
    page = "\n".join(table()) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(page, encoding="utf-8")
    else:
        print(page, end="")

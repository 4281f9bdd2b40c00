"""Write docs/lint-models.md: 20 published models, judged on ranks, GPUs and quantisations.

python tools/lint_table.py docs/lint-models.md
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from gacprof.demands.configs import config_of
from gacprof.demands.table import OUTCOMES
from gacprof.linting import LintRequest
from gacprof.linting.judging import case_of, overall

MODELS = Path(__file__).with_name("lint_models.toml")
GPUS, QUANTS, DEGREES = ("h100", "b200"), ("bf16", "fp8-block", "nvfp4"), (1, 2, 4, 8)
LETTERS = dict(zip(OUTCOMES, "·?pfwR", strict=True))
HEAD = """# 20 models, by `gacprof lint`

What vLLM 0.32 does with the products of published models on 1, 2, 4 and 8 tensor-parallel ranks, a
letter each, without expert parallelism: `·` all ok, `p` pads, `f` falls back to a slower kernel,
`w` loads but wrong, `R` refused, `?` unknown. All linear layers but embedding and head are taken as
quantised; published checkpoints often leave some out. Whether weights fit memory is not asked.

Made by `python tools/lint_table.py` from the configs' published values (`tools/lint_models.toml`).
Nothing was run; [lint.md](lint.md) says what the verdicts rest on.
"""


def table() -> Iterator[str]:
    """The page, line by line."""
    yield HEAD
    columns = [f"{gpu.upper()} {quant}" for gpu in GPUS for quant in QUANTS]
    yield f"| model | {' | '.join(columns)} |"
    yield f"|---|{'---|' * len(columns)}"
    for name, values in tomllib.loads(MODELS.read_text(encoding="utf-8")).items():
        cells = [f"`{letters(values, gpu, quant)}`" for gpu in GPUS for quant in QUANTS]
        yield f"| {name.replace('_', '.')} | {' | '.join(cells)} |"


def letters(values: dict[str, object], gpu: str, quant: str) -> str:
    config = config_of(values)
    request = LintRequest(values, gpu=gpu, quant=quant)
    case = case_of(request, config)
    return "".join(LETTERS[overall(case.judge(degree))] for degree in DEGREES)


if __name__ == "__main__":
    text = "\n".join(table()) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text, encoding="utf-8")
    else:
        print(text, end="")

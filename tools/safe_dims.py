"""``docs/safe-dims.html``: sizes that rules and engines' demands call safe, as a table to filter.

    python tools/safe_dims.py docs/safe-dims.html

Nothing is measured: see docs/rules.md. A test keeps the page current.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from html import escape
from itertools import product
from pathlib import Path
from typing import Any

from gacprof import operators
from gacprof.core.errors import MapError
from gacprof.core.files import write_text
from gacprof.demands.configs import config_of
from gacprof.devices.datasheet import sheets
from gacprof.linting import LintRequest
from gacprof.linting.judging import case_of, overall
from gacprof.rules import Target, gemm, serve, target

TORCH = ("2.9.1", "2.11.0")
TOKENS = 1024
REMOVED = (0.2, 0.3, 0.5)
"""Shares of a weight's parameters, or of a width, that a compressor takes away."""
ENGINES = ("vllm", "sglang")
DEGREES = (1, 2, 4, 8)
STEPS = {"bf16": 64, "fp8-block": 128}
"""Steps in which a rank's widths are tried: 128 bytes, safe by rules; an FP8 block."""
TRIES = 4
"""Widths tried below the requested one before an engine is said to take none."""
TEMPLATE = Path(__file__).with_suffix(".html")


@dataclass(frozen=True)
class Model:
    """Sizes as in the model's own config.json: hidden, the width of its MLP or of one expert, heads
    of queries and of keys and values, head_dim."""

    name: str
    hidden: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: bool = False

    @property
    def config(self) -> dict[str, Any]:
        """What ``gacprof lint`` reads, but for the width."""
        sizes = {
            "hidden_size": self.hidden, "num_attention_heads": self.heads, "vocab_size": 128256,
            "num_key_value_heads": self.kv_heads, "head_dim": self.head_dim, "num_hidden_layers": 1,
        }  # fmt: skip
        experts = {"model_type": "qwen3_moe", "num_experts": 128, "num_experts_per_tok": 8}
        return sizes | (experts if self.experts else {"model_type": "llama"})

    @property
    def weights(self) -> dict[str, tuple[int, int]]:
        """(out, in) by role."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q": (q, self.hidden), "k, v": (kv, self.hidden), "o": (self.hidden, q),
            "gate, up": (self.width, self.hidden), "down": (self.hidden, self.width),
        }  # fmt: skip


MODELS = (
    Model("Llama-3-8B", 4096, 14336, 32, 8, 128),
    Model("Llama-3-70B", 8192, 28672, 64, 8, 128),
    Model("Qwen3-8B", 4096, 12288, 32, 8, 128),
    Model("Qwen3-30B-A3B, an expert", 2048, 768, 32, 4, 128, experts=True),
)


@cache
def tier(gpu: Target, dtype: str, n: int, k: int) -> int:
    """The tier of a product, 99 where nothing serves it."""
    operator = "quantised" if dtype == "float8_e4m3" else "linear"
    point = operators.point(operator, {"M": TOKENS, "N": n, "K": k}, dtype)
    try:
        return serve(point, gpu).tier
    except MapError:
        return 99


def safe_rank(gpu: Target, dtype: str, shape: tuple[int, int], wanted: int) -> int:
    """The largest safe rank up to ``wanted`` for both products of a pair."""
    out, into = shape
    return next(
        r
        for r in range(wanted, 0, -1)
        if gemm.is_sure(dtype, r) and tier(gpu, dtype, r, into) == tier(gpu, dtype, out, r) == 1
    )


def safe_width(gpu: Target, dtype: str, model: Model, wanted: int) -> int:
    """The largest safe width up to ``wanted``, as N and as K."""
    h = model.hidden
    return next(
        w
        for w in range(wanted, 0, -1)
        if gemm.is_sure(dtype, w) and tier(gpu, dtype, w, h) == tier(gpu, dtype, h, w) == 1
    )


def head_dims(gpu: Target, model: Model) -> list[int]:
    """The head_dims from 32 to 256 of the best tier in causal prefill, in bfloat16."""
    dims = {"heads": model.heads, "kv_heads": model.kv_heads, "q_len": TOKENS}
    found = []
    for d in range(32, 257):
        point = operators.point("attention", dims | {"head_dim": d}, "bfloat16", {"causal": True})
        served = serve(point, gpu)
        if served.tier == 1 and not served.open:
            found.append(d)
    return found


def engine_width(gpu: str, engine: str, quant: str, ranks: int, model: Model, wanted: int) -> str:
    """The largest width up to ``wanted`` that the engine takes without padding or a slower kernel,
    in bf16 safe by rules on each rank too; or what the engine does with those that were tried."""
    key = "moe_intermediate_size" if model.experts else "intermediate_size"
    step, outcome = STEPS[quant] * ranks, "none"
    for width in range(wanted // step * step, 0, -step)[:TRIES]:
        values = model.config | {key: width}
        request, config = (
            LintRequest(values, engine=engine, gpu=gpu, quant=quant),
            config_of(values),
        )
        outcome = overall(case_of(request, config).judge(ranks))
        if outcome == "ok" and (quant != "bf16" or is_safe(known(gpu), model, width // ranks)):
            return str(width)
    return outcome.replace("_", " ")


def is_safe(gpu: Target, model: Model, width: int) -> bool:
    """Whether a rank's width is safe by rules as N and as K, in bfloat16."""
    return safe_width(gpu, "bfloat16", model, width) == width


@cache
def known(gpu: str, release: str = TORCH[-1]) -> Target:
    return target(gpu, release)


Row = tuple[str, ...]


def alike(gpus: dict[str, str], cells: Callable[[str], Row]) -> Iterator[Row]:
    """A row for GPUs with equal cells; of those named in a key the value is asked."""
    found: dict[Row, list[str]] = defaultdict(list)
    for names, asked in gpus.items():
        found[cells(asked)].append(names)
    return ((*row, ", ".join(names)) for row, names in found.items())


def rank_cells(model: Model, dtype: str, role: str, gpu: str) -> Row:
    out, into = model.weights[role]
    even = out * into / (out + into)
    found = (safe_rank(known(gpu), dtype, (out, into), int((1 - r) * even)) for r in REMOVED)
    return model.name, f"rank of {role}", dtype, "PyTorch", "1", *map(str, found)


def width_cells(model: Model, quant: str, engine: str, ranks: int, gpu: str) -> Row:
    wanted = (int((1 - share) * model.width) for share in REMOVED)
    found = (engine_width(gpu, engine, quant, ranks, model, width) for width in wanted)
    return model.name, "width", quant, engine, str(ranks), *found


def head_dim_cells(release: str, gpu: str) -> Row:
    found = head_dims(known(gpu, release), MODELS[0])
    return release, ", ".join(map(str, found))


def size_rows() -> Iterator[Row]:
    """Model, dim, dtype, engine, ranks, a size for each share removed, and GPUs."""
    archs: dict[str, list[str]] = defaultdict(list)
    for gpu in sheets():
        archs[known(gpu).arch].append(gpu)
    one_each = {", ".join(gpus): gpus[0] for gpus in archs.values()}
    for model in MODELS:
        for dtype in ("bfloat16", "float8_e4m3"):
            have = {gpu: gpu for gpu in sheets() if dtype in known(gpu).chip.tiers}
            for role in model.weights:
                yield from alike(have, partial(rank_cells, model, dtype, role))
        for served in product(STEPS, ENGINES, DEGREES):
            yield from alike(one_each, partial(width_cells, model, *served))


def head_dim_rows() -> Iterator[Row]:
    """PyTorch release, the head_dims of the best tier, and GPUs."""
    for release in TORCH:
        yield from alike({gpu: gpu for gpu in sheets()}, partial(head_dim_cells, release))


def page() -> str:
    """The page: its tables hold all data, the script only hides rows and copies cells."""
    removed = [f"−{100 * share:.0f} %" for share in REMOVED]
    columns = ["model", "dim", "dtype", "engine", "ranks", *removed, "GPU"]
    heads = table("heads", ["PyTorch", "safe head_dim", "GPU"], head_dim_rows())
    text = TEMPLATE.read_text(encoding="utf-8").replace("@@HEADS@@", heads)
    return text.replace("@@SIZES@@", table("sizes", columns, size_rows()))


def table(name: str, columns: Sequence[str], rows: Iterator[Row]) -> str:
    head = "".join(f"<th scope=col>{escape(column)}</th>" for column in columns)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<table id="{name}"><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>'


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), page())

"""``docs/safe-dims.md``: sizes that the rules call safe, for some models on every known GPU.

    python tools/safe_dims.py docs/safe-dims.md

Nothing is measured: see docs/rules.md. A test keeps the page current.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gacprof import operators
from gacprof.core.errors import MapError
from gacprof.core.files import write_text
from gacprof.devices.datasheet import sheets
from gacprof.rules import Target, gemm, serve, target

TORCH = ("2.9.1", "2.11.0")
TOKENS = 1024
REMOVED = (0.2, 0.3, 0.5)
"""Shares of a weight's parameters, or of a width, that a compressor takes away."""


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
    Model("Qwen3-30B-A3B (one of 128 experts)", 2048, 768, 32, 4, 128),
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


def safe_rank(gpu: Target, dtype: str, shape: tuple[int, int], wish: int) -> int:
    """The largest safe rank up to ``wish`` for both products of a pair."""
    out, into = shape
    return next(
        r
        for r in range(wish, 0, -1)
        if gemm.is_sure(dtype, r) and tier(gpu, dtype, r, into) == tier(gpu, dtype, out, r) == 1
    )


def safe_width(gpu: Target, dtype: str, model: Model, wish: int) -> int:
    """The largest safe width up to ``wish``, as N and as K."""
    h = model.hidden
    return next(
        w
        for w in range(wish, 0, -1)
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


def alike(answers: Mapping[str, tuple[str, ...]]) -> dict[tuple[str, ...], list[str]]:
    """GPUs by what they were answered."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for gpu, answer in answers.items():
        found[answer].append(gpu)
    return found


def sizes_of(gpu: Target, dtype: str, model: Model) -> tuple[str, ...]:
    """One cell a row of the model's table."""
    cells = []
    for out, into in model.weights.values():
        even = out * into / (out + into)
        ranks = (safe_rank(gpu, dtype, (out, into), int((1 - r) * even)) for r in REMOVED)
        cells.append(" / ".join(map(str, ranks)))
    wishes = (int((1 - r) * model.width) for r in REMOVED)
    cells.append(" / ".join(str(safe_width(gpu, dtype, model, wish)) for wish in wishes))
    return tuple(cells)


def page() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    gpus = {key: target(key, TORCH[-1]) for key in sheets()}
    yield "# Safe sizes for GPUs that are not at hand"
    yield ""
    yield (
        "**By rules, not measured.** Made by `python tools/safe_dims.py docs/safe-dims.md`; what "
        "the rules rest on, and how far they held where they could be checked, is in "
        "[rules.md](rules.md)."
    )
    yield ""
    yield "## head_dim"
    yield ""
    yield (
        f"Of the best tier from 32 to 256, causal prefill of {TOKENS} tokens in bfloat16 with "
        "grouped queries, by the PyTorch release: its templates, and the backend that SDPA takes. "
        "Where that is cuDNN, other multiples of 8 are undecided. All these models have 128."
    )
    yield ""
    yield from _table(("GPUs", *(f"torch {release}" for release in TORCH)), _head_dim_rows())
    for model in MODELS:
        yield ""
        yield f"## {model.name}"
        yield ""
        yield (
            f"hidden {model.hidden}, width {model.width}. Where "
            + ", ".join(f"{share:.0%}" for share in REMOVED)
            + " is to be taken away: the largest safe size that does."
        )
        for dtype in ("bfloat16", "float8_e4m3"):
            have = {key: gpu for key, gpu in gpus.items() if dtype in gpu.chip.tiers}
            groups = alike({key: sizes_of(gpu, dtype, model) for key, gpu in have.items()})
            rows = [*(f"rank of {role}" for role in model.weights), "width"]
            columns = (dtype, *(", ".join(keys) for keys in groups.values()))
            yield ""
            cells = zip(rows, *groups, strict=True)
            yield from _table(columns, [tuple(row) for row in cells])


def _head_dim_rows() -> list[tuple[str, ...]]:
    def answer(key: str) -> tuple[str, ...]:
        found = (head_dims(target(key, release), MODELS[0]) for release in TORCH)
        return tuple(", ".join(map(str, dims)) for dims in found)

    groups = alike({key: answer(key) for key in sheets()})
    return [(", ".join(keys), *cells) for cells, keys in groups.items()]


def _table(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


if __name__ == "__main__":
    write_text(Path(sys.argv[1]), page())

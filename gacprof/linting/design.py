"""For someone who designs a model: shapes near the requested sizes that all targets serve well.

A target is a GPU with a degree of tensor parallelism and a quantisation. Shapes are judged by the
same evaluator as configs; those that are good on all targets come first, the nearest before others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product as combinations
from math import gcd
from typing import Any

from gacprof.core.errors import LintError
from gacprof.core.files import Record
from gacprof.demands.configs import config_of
from gacprof.demands.table import OUTCOMES, Outcome
from gacprof.linting.judging import LintCase, case_of, held, parameters
from gacprof.linting.request import LintRequest

WORDS = {
    "hidden": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
    "kv": "num_key_value_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim",
    "vocab": "vocab_size", "ffn": "intermediate_size", "experts": "num_experts",
    "expert_ffn": "moe_intermediate_size", "shared_ffn": "shared_expert_intermediate_size",
    "top_k": "num_experts_per_tok",
}  # fmt: skip
NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
STEP = 64
"""Widths that are tried are multiples of it: tensor cores, and half a block of FP8."""
MOST = 150
"""Shapes that are judged at most, the nearest first."""
SHOWN = 10
"""Good shapes after which no further are looked for."""


@dataclass(frozen=True)
class Shape(Record):
    """One shape: its config's fields, the worst outcome over all targets, which targets are not
    ok or misaligned, what padding adds at most, the distance from the request, and the worst tier.
    """

    config: Mapping[str, int]
    outcome: Outcome
    not_ok: tuple[str, ...]
    padded_share: float
    parameters: float | None
    distance: float
    tier: int = 1


def amount(text: str) -> float:
    """``8B`` or ``700M`` as a number of parameters. Raises :class:`LintError`."""
    found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)([KMBT])", text.strip().upper())
    if not found:
        raise LintError(f"'{text}' is no number of parameters: write 8B or 700M")
    return float(found[1]) * {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}[found[2]]


def requested_sizes(text: str) -> dict[str, int]:
    """``hidden=4096,layers=32,…`` as a config's fields. Raises :class:`LintError`."""
    made: dict[str, int] = {}
    for word in text.split(","):
        name, _, value = word.strip().partition("=")
        if name not in WORDS or not re.fullmatch(r"[1-9]\d{0,8}", value):
            raise LintError(
                f"--design is not understood at '{word.strip()}': there are {', '.join(WORDS)}"
            )
        made[WORDS[name]] = int(value)
    gone = [short for short, key in WORDS.items() if key in NEEDED and key not in made]
    if gone:
        raise LintError(f"--design needs {', '.join(gone)} too")
    if ("num_experts" in made) != ("moe_intermediate_size" in made):
        raise LintError("--design: experts and expert_ffn go together")
    heads, kv_heads = made["num_attention_heads"], made.get("num_key_value_heads", 1)
    if heads % kv_heads:
        raise LintError(
            f"--design: {kv_heads} heads of keys and values do not divide {heads} heads"
        )
    if made["hidden_size"] % heads and "head_dim" not in made:
        raise LintError(f"--design: {heads} heads do not divide hidden: give head_dim, or others")
    return made


def design(
    requested: Mapping[str, int],
    gpus: Sequence[str] = ("h100",),
    degrees: Sequence[int] = (1, 2, 4, 8),
    quants: Sequence[str] = ("bf16",),
    params: float | None = None,
    engine: str = "vllm",
) -> list[Shape]:
    """The nearest shapes to requested sizes, best first: good on the most targets, then nearest.

    ``params`` is how many parameters the model is to have; the width of the MLP follows from it.
    """
    asked = {**requested, "model_type": "qwen3_moe" if "num_experts" in requested else "llama"}
    targets: list[tuple[str, LintCase]] = []
    for gpu, quant in combinations(gpus, quants):
        request = LintRequest(asked, engine=engine, gpu=gpu, quant=quant)
        case = case_of(request, config_of(asked))
        for tp in degrees:
            on = replace(case, request=replace(request, tp=tp))
            targets.append((f"{gpu} tp{tp} {quant}", on))
    start = _filled(asked, params)
    shapes: list[Shape] = []
    for distance, fields in sorted(_near(start, params), key=lambda one: one[0])[:MOST]:
        shapes.append(_judged(fields, distance, targets))
        if sum(not shape.not_ok for shape in shapes) == SHOWN:
            break
    return sorted(
        shapes, key=lambda s: (len(s.not_ok), OUTCOMES.index(s.outcome), s.tier, s.distance)
    )


def _filled(asked: Mapping[str, Any], params: float | None) -> dict[str, Any]:
    """The request with head_dim, heads of keys and values and the MLP's width filled in."""
    made = dict(asked)
    made.setdefault("head_dim", max(32, made["hidden_size"] // made["num_attention_heads"]))
    made.setdefault("num_key_value_heads", gcd(8, made["num_attention_heads"]))
    field = "moe_intermediate_size" if "num_experts" in made else "intermediate_size"
    if field not in made and params is None:
        like_swiglu = made["hidden_size"] * 8 / 3  # as many weights as an MLP of 4 · hidden
        made[field] = max(STEP, round(like_swiglu / STEP) * STEP)
    if params is not None:
        made[field] = STEP
        least, more = parameters(config_of(made)), parameters(config_of({**made, field: 2 * STEP}))
        if least is None or more is None or params < least:
            raise LintError(
                f"--params {params:.3g} leaves nothing for the MLP: give fewer layers or hidden"
            )
        made[field] = max(STEP, round((params - least) / (more - least) * STEP + STEP))
    return made


WIDTHS = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size")


def _near(start: Mapping[str, Any], params: float | None) -> Iterator[tuple[float, dict[str, Any]]]:
    """(distance, shape) around the start. Moved are the hidden size, head_dim, heads of keys and
    values, the vocabulary, the layers where the parameters are given, and the widths."""
    heads, hidden, vocab = (start[f] for f in ("num_attention_heads", "hidden_size", "vocab_size"))
    more_layers = (-2, 2) if params else ()
    fixed = {
        "hidden_size": {hidden, hidden - 256, hidden + 256,
                        *(round(hidden / m) * m for m in (256, 512))},
        "head_dim": {start["head_dim"], 128},
        "num_key_value_heads": {start["num_key_value_heads"],
                                *(n for n in (4, 8) if heads % n == 0)},
        "vocab_size": {vocab, *(-(-vocab // m) * m for m in (64, 512))},
        "num_hidden_layers": {start["num_hidden_layers"] + n for n in (0, *more_layers)},
    }  # fmt: skip
    for values in combinations(*map(sorted, fixed.values())):
        outer = dict(zip(fixed, values, strict=True))
        if outer["hidden_size"] < STEP or outer["num_hidden_layers"] < 1:
            continue
        try:
            moved = _filled({**start, **outer}, params)
        except LintError:
            continue
        widths = [field for field in WIDTHS if field in moved]
        for sizes in combinations(*(_around(moved[field]) for field in widths)):
            made = {**moved, **dict(zip(widths, sizes, strict=True))}
            yield _distance(made, start, params), made


def _around(size: int) -> list[int]:
    """The nearest multiples of ever larger powers of two below and above a size."""
    found: set[int] = set()
    for unit in (64, 128, 256, 512, 1024):
        found |= {size // unit * unit, -(-size // unit) * unit}
    return sorted(n for n in found if n > 0)


def _distance(made: Mapping[str, Any], start: Mapping[str, Any], params: float | None) -> float:
    """How far sizes were moved in all, as shares; a miss of the parameters counts four times."""
    moved = sum(abs(v - start[key]) / start[key] for key, v in made.items() if isinstance(v, int))
    count = parameters(config_of(made)) if params else None
    return moved + (4 * abs(count / params - 1) if count and params else 0.0)


def _judged(
    fields: Mapping[str, Any], distance: float, targets: Iterable[tuple[str, LintCase]]
) -> Shape:
    config = config_of(fields)
    worst: Outcome = "ok"
    not_ok, most, worse = [], 0.0, 1
    for name, target in targets:
        case = replace(target, config=config)
        plain, padded, _ = held(case.judged)
        most = max(most, padded / plain - 1 if plain else 0.0)
        tier = case.worst_tier or 1
        worse = max(worse, tier)
        if case.rank > (0, 1):
            misaligned = f"tier {tier}, misaligned"
            not_ok.append(f"{name}: {misaligned if case.outcome == 'ok' else case.outcome}")
        worst = max(worst, case.outcome, key=OUTCOMES.index)
    sizes = {key: value for key, value in fields.items() if isinstance(value, int)}
    return Shape(
        sizes, worst, tuple(not_ok), round(most, 4), parameters(config), round(distance, 4), worse
    )

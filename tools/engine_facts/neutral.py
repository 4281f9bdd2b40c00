"""Which keys of a config bear no size: twice of them changes no weight of transformers' class."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gacprof.checkpoint.coverage import NEUTRAL
from gacprof.checkpoint.from_config import TABLES

TYPES = Path(__file__).with_name("mainstream.txt").read_text(encoding="utf-8").split()
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
FEW = 4
NO_PRODUCT = re.compile(
    r"conv|position|wpe|tid2eid|decay|router|mlp\.gate\.weight|classifier|vision|visual|newline"
)
"""Weights of two axes that no product reads: convolutions, tables, routers, other towers."""
Shapes = set[tuple[int, ...]]


def report() -> None:
    """Print each key's answer, and where ``neutral.toml`` says something else."""
    changing: dict[str, list[str]] = {}
    same: dict[str, list[str]] = {}
    for model_type in TYPES:
        print(model_type, end=" ", flush=True, file=sys.stderr)
        for key, words in answers(model_type):
            (changing if words else same).setdefault(key, []).append(f"{model_type}: {words}")
    tables = [TABLES["fields"], *(row.get("fields", {}) for row in TABLES["families"].values())]
    read = {key for table in tables for keys in table.values() for key in keys}
    listed = set(NEUTRAL["keys"])
    pattern = re.compile("|".join(NEUTRAL["patterns"]))
    print("\n\nneutral:", *sorted(same.keys() - changing.keys() - read))
    print("\nlisted, in no mainstream type:", *sorted(listed - same.keys() - changing.keys()))
    print(
        "\nnot listed:",
        *sorted(k for k in same.keys() - changing.keys() - read - listed if not pattern.search(k)),
    )
    for key in sorted(changing.keys() - read):
        where = "listed" if key in listed else "by a pattern" if pattern.search(key) else "a hole"
        print(
            f"\n{key} ({where}), same in {len(same.get(key, []))}", *changing[key][:4], sep="\n  "
        )


def answers(model_type: str) -> Iterator[tuple[str, str]]:
    """By key of a type's text part that holds a whole number: the first weights that twice of it
    makes anew, empty where it makes none. What the class refuses is left out."""
    warnings.filterwarnings("ignore")
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    from transformers import AutoConfig

    config = AutoConfig.for_model(model_type)
    values = config.get_text_config().to_dict()
    few = {key: FEW for key in LAYERS if key in values}
    base: dict[str, int] = {}
    shapes: Shapes = set()
    for base in (
        few,
        {},
        few | {"head_dim": 64},
        few | {"num_key_value_heads": 8, "head_dim": 128},
    ):
        try:
            shapes = weight_shapes(model_type, base)
            break
        except Exception as error:
            print(f"[{model_type}: {str(error)[:60]}]", file=sys.stderr)
    for key, value in values.items():
        if type(value) is int and value >= 0 and key not in LAYERS and shapes:
            try:
                new = weight_shapes(model_type, {**base, key: max(2 * value, 2)}) - shapes
            except Exception:
                continue
            yield key, str(sorted(new)[:2] or "")


def weight_shapes(model_type: str, changes: Mapping[str, Any]) -> Shapes:
    """The distinct shapes of a type's weights, built on the meta device with some keys changed."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    config = AutoConfig.for_model(model_type)
    text = config.get_text_config()
    if text is not config:
        part = {"model_type": text.model_type, **changes}
        config = AutoConfig.for_model(model_type, text_config=part)
    else:
        config = AutoConfig.for_model(model_type, **changes)
    multimodal = AutoModelForImageTextToText._model_mapping  # type: ignore[attr-defined]
    auto = AutoModelForImageTextToText if type(config) in multimodal else AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
    weights = model.state_dict().items()
    named = ((name, tuple(weight.shape[-2:])) for name, weight in weights if weight.dim() > 1)
    return {shape for name, shape in named if not NO_PRODUCT.search(name)}

"""What bears a size and was accounted for by nobody: a closed world's gaps.

No answer is *ok* over a gap. A key of a config is accounted for where it was read, or is known to
bear no size; a matrix where it belongs to a product, or to what is known to be none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gacprof.checkpoint.from_config import ConfigSizes
from gacprof.core.files import shipped_table

NEUTRAL_FILE = Path(__file__).with_name("neutral.toml")
NEUTRAL = shipped_table(NEUTRAL_FILE, dict[str, list[str]])
NEUTRAL_PATTERN = re.compile("|".join(NEUTRAL["patterns"]))
NOT_READ = frozenset(NEUTRAL["keys"] + NEUTRAL["tables"] + NEUTRAL["towers"])
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")
LAYER_KINDS = ("layer_types", "layers_block_type")


@dataclass(frozen=True)
class Gap:
    """Something that may bear a size, by its ``name``, and ``why`` no answer rests on it.

    A gap is *refused* where an engine surely does, *unknown* where it ends an ok, and else a note.
    """

    kind: Literal["key", "class", "tower", "tensor", "product", "storage"]
    name: str
    why: str
    grade: Literal["refused", "unknown", "note"] = "unknown"


def key_gaps(sizes: ConfigSizes) -> Iterator[Gap]:
    """The keys of a config's text part that may bear a size, once its products were made.

    A key is accounted for where ``sizes`` read it or ``neutral.toml`` lists it.
    """
    layers = sizes.get("layers")
    for key, value in sizes.values.items():
        was_read = key in sizes.values.read and not isinstance(value, Mapping)
        if was_read or key in NOT_READ or NEUTRAL_PATTERN.search(key):
            continue
        what = size_in(value, layers)
        if what:
            yield Gap("key", key, f"{what} may change sizes, and nobody reads it")
    for key in ACTIVATIONS:
        activation = sizes.values.get(key)
        if activation and activation not in NEUTRAL["activations"]:
            yield Gap("key", key, f"the activation {activation!r} was not looked at")
    for key in LAYER_KINDS:
        kinds = {str(kind) for kind in sizes.values.get(key) or ()}
        for kind in sorted(kinds - set(NEUTRAL["layer_kinds"])):
            yield Gap("key", key, f"no products are known of layers of the kind {kind!r}")


def size_in(value: Any, layers: int) -> str:
    """Say what a value holds that may be a size; empty where it can hold none."""
    if type(value) is int and value > 1:
        return f"the number {value}"
    if isinstance(value, Mapping) and any(size_in(inner, layers) for inner in value.values()):
        return f"a table of {len(value)}"
    if isinstance(value, list) and any(size_in(inner, layers) for inner in value):
        by_layer = ", one a layer" if len(value) == layers else ""
        return f"a list of {len(value)}{by_layer}"
    return ""

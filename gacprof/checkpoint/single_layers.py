"""Read what a config states of single layers: the blocks of a Puzzle model, a table of layers."""

from collections.abc import Mapping
from typing import Any

from gacprof.checkpoint.layouts.configs import leaves, quotient, two_thirds, whole_number

FIELDS = ("num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size")
"""What a config may state layer by layer, in its table or list of layers; the width last."""
TABLES_OF_LAYERS = ("per_layer_config", "block_configs")
PUZZLE: dict[tuple[str, ...], Any] = {
    ("attention", "no_op"): bool,
    ("attention", "n_heads_in_group"): int,
    ("ffn", "no_op"): bool,
    ("ffn", "intermediate_size"): int,
    ("ffn", "ffn_mult"): int | float,
    ("ffn", "hidden_act"): str,
}
"""What is known of a layer of a Puzzle model (Nemotron-NAS): plain attention, a dense MLP."""
MAX_MULTIPLIER = 1 << 31


def read_layers(values: dict[str, Any], is_native: bool) -> list[dict[str, Any]]:
    """Read what a config states of single layers: its widths become a list under their own name.

    Returns the fields of each kind of attention but the first, which are written into ``values``.
    The table of layers stays among the values, to be refused or named, where it states anything
    else of a layer, and where no engine's class reads it (not ``is_native``).
    """
    layers = _single_layers(values)
    if not layers or not set().union(*layers) <= set(FIELDS):
        return []
    if is_native:
        for table in TABLES_OF_LAYERS:
            values.pop(table, None)
    widths = [layer.pop("intermediate_size") for layer in layers if "intermediate_size" in layer]
    if widths:
        values["intermediate_size"] = widths if len(set(map(str, widths))) > 1 else widths[0]
    first, *others = {str(layer): layer for layer in layers if layer}.values() or ({},)
    values |= first
    return others


def _single_layers(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of each layer, where a config states some layer by layer."""
    blocks, by_layer = values.get("block_configs"), values.get("per_layer_config")
    if isinstance(blocks, list):
        layers = [_puzzle_layer(block, values) for block in blocks]
        return layers if all(all(layer.values()) for layer in layers) else []
    if not isinstance(by_layer, Mapping):
        return []
    base = {field: values.get(field) for field in FIELDS}
    layers = [base | dict(fields) for fields in by_layer.values() if isinstance(fields, Mapping)]
    are_all = len(layers) == values.get("num_hidden_layers")
    return layers if are_all else [base, *layers]


def _puzzle_layer(block: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a layer that a block describes, without parts left out; 0 where it
    doesn't say one, or says more than is known."""
    stated = {path: value for path, value in leaves(block).items() if value}
    if not all(isinstance(value, PUZZLE.get(path, ())) for path, value in stated.items()):
        return {"block_configs": 0}
    layer: dict[str, Any] = {}
    if ("attention", "no_op") not in stated:
        heads = whole_number(values.get("num_attention_heads"), "num_attention_heads")
        group = stated.get(("attention", "n_heads_in_group"), 0)
        layer["num_key_value_heads"] = group and quotient(heads, group)
    if ("ffn", "no_op") not in stated:
        layer["intermediate_size"] = stated.get(("ffn", "intermediate_size"), 0)
        times = stated.get(("ffn", "ffn_mult"), 0)
        if 0 < times < MAX_MULTIPLIER:
            hidden = whole_number(values.get("hidden_size"), "hidden_size")
            layer["intermediate_size"] = two_thirds(times * hidden)
    return layer

"""Build an inventory from a config.json alone: the products of each kind of layer, once.

``families.toml`` says what a size is called, what a family means by silence, and which linear
layers a kind of layer has. A size that the config doesn't say is 0; it is never assumed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any

from gacprof.checkpoint.inventory import AttentionHeads, Inventory, Module
from gacprof.checkpoint.layouts.configs import (
    auto_adjusted,
    leaves,
    part_of,
    quotient,
    stated_size,
    two_thirds,
    whole_number,
)
from gacprof.checkpoint.layouts.names import layer_of
from gacprof.core.dtypes import dtype_name
from gacprof.core.errors import ConfigError
from gacprof.core.files import row_of_word, shipped_table
from gacprof.core.sizes import Gemm

FAMILIES = Path(__file__).with_name("families.toml")
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
MAMBA_CHANNELS_PER_STEP = 16  # the rank of the time step where none is stated (Mamba-1, Jamba)
TOWERS = ("vision_config", "visual", "vision_tower_config", "vit_config")
Family = Mapping[str, Any]  # a row of families.toml: what configs of some model types mean
TABLES = shipped_table(FAMILIES, dict[str, Any])
FAMILY_OF = row_of_word({name: row["types"] for name, row in TABLES["families"].items()})


class ReadKeys(dict[str, Any]):
    """A config's values, and the keys that were asked for."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)


class ConfigSizes:
    """The sizes that a config names, by plain names whatever its family calls them.

    ``values`` are those of the text part, and remember which keys were read; ``whole`` is the
    config as it is; ``sizes`` has every size, 0 where nothing says one; ``missing`` collects the
    config's names of sizes that a product needs. Raises :class:`ConfigError` for what is no size,
    and for a config of a compressed model.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.whole: Mapping[str, Any] = config.get("thinker_config", config)
        _, text = part_of(self.whole)
        values: dict[str, Any] = {}
        stated = {**self.whole, **text}
        for name, prefix in TABLES["parts"].items():
            if isinstance(stated.get(name), Mapping):
                values |= {f"{prefix}{key}": value for key, value in stated[name].items()}
        values |= stated
        self.model_type = str(values.get("model_type") or self.whole.get("model_type", ""))
        name = FAMILY_OF.get(self.model_type.removesuffix("_text").replace("-", "_"), "")
        family: Family = TABLES["families"].get(name, {})
        self.is_known_type = bool(family)
        kinds = read_layers(values, "by_layer" in family)
        self.values = ReadKeys(values)
        self.missing: list[str] = []
        named = [key for key in values if key in TABLES["compressed"]["fields"]]
        words = "|".join(TABLES["compressed"]["classes"])
        named += re.findall(words, str(self.values.get("architectures")).lower())
        if named:
            raise ConfigError(
                f"the config is of a compressed model ({', '.join(named)}): 'gacprof diagnose "
                "FOLDER' judges the sizes of its weights"
            )
        self.fields = TABLES["fields"] | family.get("fields", {})
        stated = {name: stated_size(self.values, fields) for name, fields in self.fields.items()}
        towers = [self.whole[name] for name in TOWERS if isinstance(self.whole.get(name), Mapping)]
        stated["vision_heads"] = stated_size([*towers, {}][0], self.fields["vision_heads"])
        if not family:
            for size, row in TABLES["by_sizes"].items():
                if stated[size]:
                    family = {**family, **row}
        self.family = family
        self.sizes = self._completed(stated)
        self.other_attentions = [self._heads_of(kind) for kind in kinds]
        if kinds:
            self.sizes["global_head_dim"] = self.other_attentions[0]["head_dim"]
        elif self.sizes["global_head_dim"]:
            self.other_attentions = [{n: self.sizes[size] for n, size in TABLES["second"].items()}]

    def _heads_of(self, kind: Mapping[str, Any]) -> dict[str, int]:
        """Return the heads of a further kind of attention layers: as stated, or as the first's."""
        names = ("heads", "kv_heads", "head_dim")
        heads = {name: stated_size(kind, self.fields[name]) or self.sizes[name] for name in names}
        return {"value_dim": self.sizes["v_head_dim"] or heads["head_dim"], **heads}

    def _completed(self, stated: Mapping[str, int]) -> dict[str, int]:
        """Return all sizes: as stated, as the family means them, or as they follow from others."""
        sizes, family, values = dict(stated), self.family, self.values
        hidden, heads = sizes["hidden_size"], sizes["heads"]
        if values.get("multi_query") is True and not values.get("new_decoder_architecture"):
            sizes["kv_heads"] = 1  # Falcon
        means: Any = family.get("kv_heads", 0)  # a number, or the name of a size
        sizes["kv_heads"] = sizes["kv_heads"] or sizes.get(means, means)
        sizes["head_dim"] = sizes["head_dim"] or family.get("head_dim", quotient(hidden, heads))
        sizes["times_kv"] = sizes["kv_heads"] * family.get("global_kv_times", 1)
        sizes["mamba_expanded"] = sizes["mamba_expand"] * hidden
        sizes["mamba_steps"] = -(-hidden // MAMBA_CHANNELS_PER_STEP)
        for name, others in TABLES["silent"].items():
            sizes[name] = next(filter(None, map(sizes.get, others)), 0)
        sizes["o_a_columns"] = quotient(heads * sizes["head_dim"], sizes["o_groups"])
        lacks_gate = values.get("attn_output_gate") is False
        sizes["q_parts"] = 1 if lacks_gate else family.get("q_parts", 1)
        if not sizes["intermediate_size"]:  # vision towers with one say broken ratios beside it
            ratio = stated_size(values, ["mlp_ratio", "expansion_ratio"])
            sizes["intermediate_size"] = (ratio or family.get("mlp_ratio", 0)) * hidden
        width = auto_adjusted(values, sizes["intermediate_size"])
        sizes["intermediate_size"] = width // family.get("width_parts", 1)
        of_heads = quotient(sizes["mamba_d_ssm"] or sizes["mamba_expanded"], sizes["mamba_heads"])
        sizes["mamba_head_dim"] = sizes["mamba_head_dim"] or of_heads
        for name in ("expert_width", "shared_width", "mlp_width"):
            sizes[name] = prod(sizes.get(factor, 0) for factor in family.get(name, ["nothing"]))
        sizes["mlp_width"] = sizes["mlp_width"] or sizes["intermediate_size"]
        return sizes

    def with_sizes(self, sizes: Mapping[str, int]) -> "ConfigSizes":
        """Return a copy with other sizes, such as the heads of another kind of attention."""
        other = copy(self)
        other.sizes = {**self.sizes, **sizes}
        return other

    def get(self, name: str) -> int:
        """Return a size by its plain name; 0 where neither the config nor its family says it."""
        return self.sizes.get(name, 0)

    def field(self, name: str) -> str:
        """Return the config's own name of a size."""
        if name.endswith("_width"):
            return self.field(self.family.get(name, ["intermediate_size"])[-1])
        fields = self.fields.get(name, [])
        stated = [field for field in fields if self.values.get(field) is not None]
        return (*stated, *fields, name)[0]

    def side(self, name: str) -> int:
        """Return the length of a product's side; 0 where a size is missing, which is noted."""
        terms = TABLES["sides"].get(name, [[name]])
        unknown = [size for size in chain.from_iterable(terms) if not self.get(size)]
        self.missing += map(self.field, unknown)
        return 0 if unknown else sum(prod(map(self.get, term)) for term in terms)

    @property
    def dtype(self) -> str:
        """The type of its weights, 16 bit where it says none."""
        return dtype_name(self.values.get("dtype") or self.values.get("torch_dtype") or "bfloat16")

    def has_block(self, block: str) -> bool:
        """Return whether the config lists layers with this kind of block, or no kinds at all."""
        listed = self.values.get("layer_types") or self.values.get("layers_block_type")
        kinds = set(map(str, listed)) if isinstance(listed, list) else set()
        of_block = TABLES["layer_kinds"].get(block, kinds)
        return not kinds or bool(kinds.intersection(of_block) - set(TABLES["lacks"].get(block, ())))

    @property
    def mixer(self) -> str:
        """The kind of attention: grouped, mla, v4, mamba or mamba1."""
        return self.family.get("mixer") or ("mla" if self.sizes["kv_lora_rank"] else "grouped")

    def attention_suffix(self, layer: int) -> str:
        """Return what stands behind the names of products of a further kind of attention layers."""
        second = self.family.get("global_attention", "global")
        return ("", f" ({second})")[layer] if layer < 2 else f" (kind {layer + 1})"

    @property
    def has_experts(self) -> bool:
        """Whether a layer routes tokens to experts, as far as the config says."""
        return bool(self.sizes["expert_width"] or self.family.get("experts_only"))


def inventory_of_sizes(sizes: ConfigSizes) -> Inventory:
    """Build the inventory from a config's sizes: one layer of each kind, without tensors and dims.
    Adds the names of sizes that a product needs and the config doesn't say to ``sizes.missing``."""
    attentions = []
    if sizes.get("heads") and sizes.mixer == "grouped":
        for layer, heads in enumerate([{}, *sizes.other_attentions]):
            kind = sizes.with_sizes(heads)
            if kind.get("head_dim"):
                counts = map(kind.get, ("heads", "kv_heads", "head_dim"))
                attentions.append(AttentionHeads(layer, *counts))
    return Inventory(
        tensors={},
        config=sizes.whole,
        container="config",
        path="config.json",
        layout="config",
        modules=tuple(_modules(sizes)),
        dims=(),
        attentions=tuple(attentions),
    )


def _modules(sizes: ConfigSizes) -> Iterator[Module]:
    """Return the linear layers of each kind of block."""
    for block in filter(sizes.has_block, _blocks(sizes)):
        kinds = sizes.other_attentions if block == "grouped" else []
        for layer, heads in enumerate([{}, *kinds]):
            yield from _of_block(sizes.with_sizes(heads), block, f"model.layers.{layer}.")
    for layer, width in enumerate(mlp_widths(sizes)):
        yield from _of_block(
            sizes.with_sizes({"mlp_width": width}), "mlp", f"model.layers.{layer}."
        )
    yield from _of_block(sizes, "vocab")


def _of_block(sizes: ConfigSizes, block: str, prefix: str = "") -> Iterator[Module]:
    """Return the linear layers of a kind of block that a model of these sizes has."""
    for row in TABLES["modules"][block]:
        is_there = all(map(sizes.get, row.get("needs", ())))
        if row["role"].endswith("gate"):
            is_there &= sizes.family.get("is_gated", True)
        if is_there and not any(map(sizes.get, row.get("lacks", ()))):
            name, role = prefix + row["name"], row["role"]
            n, k = sizes.side(row["N"]), sizes.side(row["K"])
            kind: Any = "embedding" if role == "embedding" else "dense"
            gemms = (Gemm(f"{name}.weight", n, k),)
            yield Module(name, role, layer_of(name), kind, k, n, sizes.dtype, gemms)


def _blocks(sizes: ConfigSizes) -> Iterable[str]:
    """Return the kinds of blocks that a model may have, by their names in ``families.toml``."""
    blocks = [sizes.mixer, "indexer", "delta_net", "mamba", "per_layer_input"]
    blocks += sizes.family.get("blocks", ())
    if any(field.startswith(("mamba_d_", "ssm_")) for field in sizes.values):
        blocks.append("mamba1")
    if sizes.has_experts and (sizes.get("expert_width") or sizes.get("experts")):
        blocks.append("experts")
    return dict.fromkeys([*blocks, "shared"])


def mlp_widths(sizes: ConfigSizes) -> list[int]:
    """Return the distinct widths of dense MLPs, ascending; [0] where there is an unknown one."""
    family, values, width = sizes.family, sizes.values, sizes.get("mlp_width")
    listed = values.get("intermediate_size")
    if isinstance(listed, list):
        return sorted({whole_number(width, "intermediate_size") for width in listed})
    if family.get("experts_only") or sizes.mixer.startswith("mamba"):
        return []
    if not width and "expert_width" not in family and not sizes.get("mamba_heads"):
        return [0]
    if not sizes.has_experts or family.get("dense_too"):
        is_there = True
    elif family.get("dense_if_listed"):
        is_there = values.get("mlp_only_layers") or sizes.get("decoder_sparse_step") > 1
    else:
        in_pattern = "-" in str(values.get("hybrid_override_pattern") or "-")
        are_all_sparse = values.get("first_k_dense_replace") == 0
        is_there = (
            in_pattern and not are_all_sparse and values.get("interleave_moe_layer_step") != 1
        )
    return [width] if width and is_there else []


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
    """Return a layer's fields by its block; 0 where it says none, or more than is known."""
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

"""What bears a size and was accounted for by nobody: a closed world's gaps.

No answer is *ok* over a gap. A key of a config is accounted for where it was read, or is known to
bear no size; a matrix where it belongs to a product, or to what is known to be none.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, Literal

from gacprof.checkpoint.from_config import TABLES, ConfigSizes, inventory_of_sizes
from gacprof.checkpoint.inventory import Inventory, Module
from gacprof.checkpoint.layouts.configs import leaves, part_of, stated_size
from gacprof.checkpoint.layouts.names import (
    SHARED,
    WORDS,
    parent_of,
    role_of,
    template_of,
    tower_of,
)
from gacprof.core.errors import ConfigError
from gacprof.core.files import row_of_word, shipped_table
from gacprof.core.formatting import counted, one_line

TEXT_PARTS = ("thinker_config", *WORDS["parts"]["text"])  # whose values are read, one by one
MAX_LETTERS = 80  # of a name out of a config or a checkpoint
NEUTRAL_FILE = Path(__file__).with_name("neutral.toml")
NEUTRAL = shipped_table(NEUTRAL_FILE, dict[str, list[str]])
NEUTRAL_PATTERN = re.compile("|".join(NEUTRAL["patterns"]))
NO_PRODUCT = re.compile("|".join(NEUTRAL["no_products"]))
NOT_READ = frozenset(chain(NEUTRAL["keys"], NEUTRAL["tables"], NEUTRAL["towers"], TEXT_PARTS))
REPEATS = dict(row.split(" = ") for row in NEUTRAL["repeats"])
QUANTISED = re.compile("fp?4|fp?8|f8|int[48]|nf4|mx")  # DeepSeek-V4's expert_dtype
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")
ROPE_TABLES = ("rope_scaling", "rope_parameters")
LAYERS_WORD = re.compile(r"(?:\.layers|\.blocks|\.h)?\.\d")
MTP_LAYERS = ["num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"]
LAYER_KINDS = ("layer_types", "layers_block_type")
FUSED: Mapping[str, list[str]] = TABLES["fused"]
BIASED = row_of_word(TABLES["biases"])
MAIN_ROLES = {"q", "k", "v", "o", "gate", "up", "down"}
Shape = tuple[int, int]
Grade = Literal["refused", "wrong", "unknown", "note"]
Kind = Literal[
    "key",
    "contradiction",
    "activation",
    "class",
    "tower",
    "tensor",
    "size",
    "product",
    "storage",
]


@dataclass(frozen=True)
class Gap:
    """Something that may bear a size, by its ``name``, and in a sentence ``why`` it ends an ok.

    A gap is *refused* (or *wrong*) where an engine surely does so, *unknown* where it ends an ok,
    and else a note.
    """

    kind: Literal[
        "key",
        "contradiction",
        "activation",
        "class",
        "tower",
        "tensor",
        "size",
        "product",
        "storage",
    ]
    name: str
    why: str
    grade: Grade = "unknown"


def key_gaps(sizes: ConfigSizes) -> Iterator[Gap]:
    """The keys of a config's text part that may bear a size, once its products were made.

    A key is accounted for where ``sizes`` read it or ``neutral.toml`` lists it.
    """
    for key, value in sizes.values.items():
        was_read = key in sizes.values.read and not isinstance(value, Mapping)
        repeats = key in REPEATS and sizes.get(REPEATS[key]) == value
        if was_read or repeats or key in NOT_READ or NEUTRAL_PATTERN.search(key):
            continue
        what = size_in(value, sizes.get("layers"))
        if key.endswith("dtype") and QUANTISED.search(str(value)):
            what = f"the type {shown(value)}"
        if what:
            yield Gap("key", key, f"{shown(key)}, {what}, may change sizes, and nobody reads it")
    if not sizes.is_known_type:
        kind = shown(sizes.model_type or "none")
        why = f"nobody read what the model type {kind} means by its keys"
        yield Gap("key", "model_type", why)
    yield from contradictions(sizes)
    yield from word_gaps(sizes.values)


def contradictions(sizes: ConfigSizes) -> Iterator[Gap]:
    """Numbers of a config that contradict each other, as tools leave them that change one alone."""
    heads = sizes.get("mamba_heads") * sizes.get("mamba_head_dim")
    width = sizes.get("mamba_d_ssm") or sizes.get("mamba_expand") * sizes.get("hidden_size")
    if heads and width and heads != width:  # the models' own configs refuse it
        why = f"Mamba's heads are {heads} wide, and by the config's other keys {width}"
        yield Gap("contradiction", "mamba_head_dim", why, "refused")
    experts, chosen = sizes.get("experts"), sizes.get("experts_per_token")
    groups = stated_size(sizes.values, ["n_group", "num_expert_group"])
    if experts and chosen > experts:
        why = f"a token goes to {chosen} of {experts} experts"
        yield Gap("contradiction", "num_experts_per_tok", why, "refused")
    if groups and experts % groups:  # vLLM then routes without groups, SGLang asserts
        why = f"{experts} experts are no multiple of {groups} groups (n_group)"
        yield Gap("contradiction", "n_group", why)
    taken = stated_size(sizes.values, ["topk_group"])
    if taken > groups > 0 or (groups and chosen > taken * (experts // groups)):
        why = f"{chosen} experts are chosen of {taken} groups (topk_group), and there are {groups}"
        yield Gap("contradiction", "topk_group", why)
    layers = sizes.get("layers")
    for key in (*LAYER_KINDS, "mlp_layer_types", "moe_layer_freq"):
        listed = sizes.values.get(key)
        if isinstance(listed, list) and layers and len(listed) != layers:
            why = f"{key} lists {len(listed)} layers, and num_hidden_layers is {layers}"
            grade: Grade = "refused" if key == "layer_types" else "unknown"
            yield Gap("contradiction", key, why, grade)
    for key in ("intermediate_size", "moe_intermediate_size"):
        widths = part_of(sizes.whole)[1].get(key)
        if isinstance(widths, list) and "by_layer" not in sizes.family:
            why = f"{key} is a list of {len(widths)}, which few classes take"
            yield Gap("contradiction", key, why)


def word_gaps(values: Mapping[str, Any]) -> Iterator[Gap]:
    """Activations, kinds of rotary embedding and kinds of layers that nobody looked at."""
    for key in ACTIVATIONS:
        for word in unlisted(values.get(key), "activations"):
            yield Gap("activation", key, f"the {key} {word} was not looked at")
    for key in ROPE_TABLES:
        words = leaves({key: values.get(key)})  # Gemma 3 has a table for each kind of layer
        kinds = [word for path, word in words.items() if path[-1] in ("rope_type", "type")]
        for word in unlisted(kinds, "rope_types"):
            yield Gap("activation", key, f"{key} of the type {word} was not looked at")
    letters = list(str(values.get("hybrid_override_pattern") or ""))
    for word in unlisted(letters, "layer_letters"):
        why = f"hybrid_override_pattern has layers {word}, which nobody looked at"
        yield Gap("key", "hybrid_override_pattern", why)
    for key in LAYER_KINDS:
        for word in unlisted(values.get(key), "layer_kinds"):
            yield Gap("key", key, f"no products are known of layers of the kind {word}")


def unlisted(value: Any, row: str) -> list[str]:
    """The words of a value that a row of ``neutral.toml`` does not list."""
    words = value if isinstance(value, list) else [value]
    return sorted({shown(word) for word in words if word} - set(NEUTRAL[row]))


def shown(name: Any) -> str:
    """A stranger's name in one line that isn't long."""
    return one_line(str(name)[:MAX_LETTERS])


def size_in(value: Any, layers: int) -> str:
    """Say what a value holds that may be a size; empty where it can hold none."""
    if type(value) is int and value > 1:
        return f"the number {value}"
    if isinstance(value, str) and re.search(r"\d\s*,\s*\d", value):
        return "a text of numbers"
    if isinstance(value, Mapping) and any(size_in(inner, layers) for inner in value.values()):
        return f"a table of {len(value)}"
    if isinstance(value, list) and any(size_in(inner, layers) for inner in value):
        by_layer = ", one a layer" if len(value) == layers else ""
        return f"a list of {len(value)}{by_layer}"
    return ""


@dataclass
class Fit:
    """How the matrices of a checkpoint fit the products that its config describes.

    ``foreign`` has the shapes of matrices that belong to no product, by the template of their
    names, ``differing`` of those whose role the config describes with other sizes, by role.
    ``missing`` are the products that no tensor has.
    """

    foreign: dict[str, list[Shape]] = field(default_factory=dict)
    differing: dict[str, list[Shape]] = field(default_factory=dict)
    missing: list[Module] = field(default_factory=list)


def in_words(gaps: Sequence[Gap]) -> str:
    """Name the first of each kind of gap, and say how many more there are; notes are left out."""
    by_kind: dict[str, list[Gap]] = {}
    for gap in gaps:
        if gap.grade != "note":
            by_kind.setdefault(gap.kind, []).append(gap)
    parts = []
    for same in by_kind.values():
        more = f" (and {len(same) - 1} more of this kind)" if len(same) > 1 else ""
        parts.append(same[0].why + more)
    return "; ".join(parts)


def unrecognised(inventory: Inventory) -> list[Gap]:
    """The matrices of a checkpoint that no product is known of, and the products of its config that
    no tensor has: factors under names of their own, say. Sizes may differ from the config's."""
    described = inventory
    with contextlib.suppress(ConfigError):
        described = inventory_of_sizes(ConfigSizes(inventory.config))
    if not described.modules:
        described = inventory  # no config says what there should be
    resized = {template_of(module.name) for module in inventory.modules if module.dims}
    gaps = list(tensor_gaps(described, inventory))
    return [gap for gap in gaps if gap.kind != "size" and gap.name not in resized]


def tensor_gaps(described: Inventory, stored: Inventory) -> Iterator[Gap]:
    """What of a checkpoint's matrices and of its config's products has no counterpart."""
    found = fit(described, stored)
    for template, shapes in found.foreign.items():
        why = f"no product of its config is {shown(template)} {_listed(shapes)}"
        yield Gap("tensor", template, why)
    for role, shapes in found.differing.items():
        stated = ", ".join(dict.fromkeys(map(_in_words, _parts(described.modules, role))))
        yield Gap("size", role, f"{role} is {_listed(shapes)}, and by the config {stated}")
    for module in found.missing:
        yield Gap("product", module.role, f"no tensor is {_in_words(module)}")


def layer_gaps(sizes: ConfigSizes, stored: Inventory) -> Iterator[Gap]:
    """Layers that a config counts and no tensor has, or the reverse; names that no class of text
    models has, as merged adapters and cut towers leave them."""
    layers = range(sizes.get("layers"))
    guessing = stated_size(sizes.values, MTP_LAYERS)  # DeepSeek's stand behind the others
    found: dict[int, str] = {}
    for module in stored.modules:
        if module.layer is not None and not tower_of(module.name):
            found.setdefault(module.layer, module.name)
    absent = sorted(set(layers) - found.keys())
    beyond = sorted(found.keys() - set(range(len(layers) + guessing)))
    if found and layers and (absent or beyond):
        words = f"no tensor of {counted(len(absent), 'layer')}" if absent else "more layers"
        why = f"num_hidden_layers is {len(layers)}, and there is {words}: {(absent or beyond)[0]}"
        yield Gap("tensor", "num_hidden_layers", why)
    starts = {LAYERS_WORD.split(name)[0] for name in found.values()}
    if not any(name in sizes.whole for name in NEUTRAL["towers"]):
        for start in sorted(starts - set(NEUTRAL["prefixes"])):
            why = f"names of layers begin with '{shown(start)}', as in no model of text alone"
            yield Gap("tensor", "prefix", why)
    has_head = any(module.role == "head" for module in stored.modules)
    if sizes.values.get("tie_word_embeddings") is False and not has_head:
        yield Gap("product", "lm_head", "no tensor is the head, which is not tied to the embedding")


def bias_gaps(sizes: ConfigSizes, stored: Inventory) -> Iterator[Gap]:
    """Roles with biases that the model's class lacks, as FLAP adds some, or without its own.

    Of a class that switches them (a key with *bias*) nothing is known, nor of packed weights, to
    which tools add zeros.
    """
    switches = [value for key, value in sizes.values.items() if "bias" in key]
    if True in switches or not sizes.is_known_type or stored.layout == "quantised":
        return
    biased: set[str] = set()
    roles: set[str] = set()
    for module in stored.modules:
        if module.layer is not None and not tower_of(module.name):
            parts = FUSED.get(module.role, [module.role])
            roles.update(parts)
            biased.update(parts if module.biases else ())
    expected = set(BIASED.get(sizes.model_type.removesuffix("_text"), "").split())
    for role in sorted((roles & MAIN_ROLES) & (biased ^ expected)):
        has, lacks = ("has", "hasn't") if role in biased else ("has no", "has")
        why = f"{role} {has} biases, and {shown(sizes.model_type)} {lacks} them"
        yield Gap("tensor", f"{role} bias", why)


def fit(described: Inventory, stored: Inventory) -> Fit:
    """Compare the products that a config describes with the matrices of a checkpoint.

    A matrix is compared with the products of its own role where the config describes that role,
    so that equal shapes of others hide nothing; else, in either orientation, with all of them.
    """
    modules = [m for m in described.modules if m.kind != "embedding" and all(_size(m))]
    all_shapes = _shapes(modules)
    all_shapes = {(k, n): products for (n, k), products in all_shapes.items()} | all_shapes
    found = Fit()
    covered: set[int] = set()
    by_role: dict[str, tuple[list[Module], dict[Shape, list[Module]]]] = {}
    for name, role, shape in _matrices(stored):
        if role not in by_role:
            parts = _parts(modules, role)
            by_role[role] = parts, _shapes(parts) if parts else all_shapes
        parts, shapes = by_role[role]
        products = shapes.get(shape, [])
        # of a role that differs no product is named as missing as well
        covered.update(map(id, products or parts))
        if parts and not products:
            found.differing.setdefault(role, []).append(shape)
        elif not products:
            found.foreign.setdefault(template_of(name), []).append(shape)
    # the head may be the embedding
    found.missing = [m for m in modules if id(m) not in covered and m.role != "head"]
    return found


def _parts(modules: Iterable[Module], role: str) -> list[Module]:
    """The products that a matrix of this role may hold."""
    return [module for module in modules if module.role in FUSED.get(role, [role])]


def _matrices(stored: Inventory) -> Iterator[tuple[str, str, Shape]]:
    """The name, role and shape of each matrix that may be a product's; of factors the dense one."""
    known: set[str] = set()
    for module in stored.modules:
        known.update(module.weights)
        if module.kind != "embedding" and not NO_PRODUCT.search(module.name):
            role = module.role
            if SHARED.search(module.name):
                role = f"shared_{role}"
            yield module.name, role, _size(module)
    for tensor, info in stored.tensors.items():
        name = tensor.removesuffix(".weight").removesuffix("_blocks")
        if tensor in known or NO_PRODUCT.search(name):
            continue
        if info.dtype == "uint8" and len(info.shape) > 1:  # two values of 4 bits each (bnb, MXFP4)
            yield name, role_of(name), (2 * prod(info.shape[-3:]), 1)
        elif len(info.shape) in (2, 3):
            n, k = info.shape[-2:]
            yield name, role_of(name), (n, k)


def _shapes(modules: Sequence[Module]) -> dict[Shape, list[Module]]:
    """The products by their shapes, alone and fused with those that follow in the same block.

    Of a packed weight only the number of its elements may be known: it stands for N, with K 1.
    """
    shapes: dict[Shape, list[Module]] = {}
    for start, first in enumerate(modules):
        n, k = 0, first.in_features
        block = parent_of(first.name)
        for stop, last in enumerate(modules[start:], start + 1):
            if last.in_features != k or parent_of(last.name) != block:
                break
            n += last.out_features
            for shape in ((n, k), (n * k, 1)):
                shapes.setdefault(shape, []).extend(modules[start:stop])
    return shapes


def _size(module: Module) -> Shape:
    return module.out_features, module.in_features


def _in_words(module: Module) -> str:
    return f"{module.role} {module.out_features} × {module.in_features}"


def _listed(shapes: Sequence[Shape]) -> str:
    """The first of some shapes, and how many more there are."""
    others = f" and {len(shapes) - 1} more" if len(shapes) > 1 else ""
    return f"{list(shapes[0])}{others}"

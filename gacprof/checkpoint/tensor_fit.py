"""Compare the matrices of a checkpoint with the products that its config describes.

Every matrix belongs to a product or to what is known to be none, and every product has a tensor.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import prod

from gacprof.checkpoint.coverage import NEUTRAL, Gap, in_words, shown
from gacprof.checkpoint.from_config import TABLES, ConfigSizes, inventory_of_sizes
from gacprof.checkpoint.inventory import Inventory, Module
from gacprof.checkpoint.layouts.configs import stated_size
from gacprof.checkpoint.layouts.names import (
    SHARED,
    layer_of,
    parent_of,
    role_of,
    template_of,
    tower_of,
)
from gacprof.checkpoint.storage import GROUPED, Storage, storage_of_config
from gacprof.core.errors import ConfigError
from gacprof.core.files import row_of_word
from gacprof.core.formatting import counted

NO_PRODUCT = re.compile("|".join(NEUTRAL["no_products"]))
LAYERS_WORD = re.compile(r"(?:\.layers|\.blocks|\.h)?\.\d")
MTP_LAYERS = ["num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"]
FUSED: Mapping[str, list[str]] = TABLES["fused"]
BIASED = row_of_word(TABLES["biases"])
MAIN_ROLES = {"q", "k", "v", "o", "gate", "up", "down"}
SCALES = re.compile(r"scale|qzeros|absmax|_blocks$|SCB$")
PACKED = re.compile(r"\.(qweight|weight_packed)$")
OF_ONE_LAYER = re.compile(r"\.\d|^re:.*[\d\[]")  # an entry of an ignore list
EMBEDDINGS = re.compile(r"emb|wte")
Shape = tuple[int, int]


@dataclass
class Fit:
    """A comparison of a checkpoint's matrices with the products that its config describes.

    ``foreign`` has the shapes of matrices that belong to no product, by the template of their
    names, ``differing`` of those whose role the config describes with other sizes, by role.
    ``missing`` are the products that no tensor has.
    """

    foreign: dict[str, list[Shape]] = field(default_factory=dict)
    differing: dict[str, list[Shape]] = field(default_factory=dict)
    missing: list[Module] = field(default_factory=list)


def unrecognised(inventory: Inventory) -> list[Gap]:
    """Return the matrices of a checkpoint that belong to no known product, and the products of its
    config that no tensor has: factors under names of their own, say. Sizes may differ from the
    config's."""
    described = inventory
    with contextlib.suppress(ConfigError):
        described = inventory_of_sizes(ConfigSizes(inventory.config))
    if not described.modules:
        described = inventory  # no config says what there should be
    resized = {template_of(module.name) for module in inventory.modules if module.dims}
    gaps = [*tensor_gaps(described, inventory), *factor_gaps(inventory)]
    return [gap for gap in gaps if gap.kind != "size" and gap.name not in resized]


def factor_gaps(inventory: Inventory) -> Iterator[Gap]:
    """Return products in several matrices that no layout names: factors of an unknown tool."""
    parts: dict[str, list[str]] = {}
    for module in inventory.modules:
        product = parent_of(module.name)
        if module.role == "other" and not module.dims and role_of(product) != "other":
            parts.setdefault(product, []).append(module.name)
    for product, names in parts.items():
        if len(names) > 1:
            yield Gap("factors", template_of(product), f"{shown(product)} is {' and '.join(names)}")


def factors_hint(inventory: Inventory) -> str:
    """Say what was not recognised and how to name it, to end a message with; else nothing."""
    gaps = in_words(unrecognised(inventory))
    return f". Not recognised: {gaps}: name factor pairs by --factors" if gaps else ""


def stored_gaps(
    sizes: ConfigSizes, storage: Storage, described: Inventory, stored: Inventory
) -> Iterator[Gap]:
    """Return what of a checkpoint's tensors its config describes otherwise."""
    yield from storage_gaps(sizes, storage, stored)
    yield from tensor_gaps(described, stored)
    yield from layer_gaps(sizes, storage, stored)
    yield from part_gaps(sizes, described, stored)
    yield from bias_gaps(sizes, stored)


def tensor_gaps(described: Inventory, stored: Inventory) -> Iterator[Gap]:
    """Return what of a checkpoint's matrices and of its config's products has no counterpart."""
    fitting = fit(described, stored)
    for template, shapes in fitting.foreign.items():
        why = f"no product of its config is {shown(template)} {_listed(shapes)}"
        yield Gap("tensor", template, why)
    for role, shapes in fitting.differing.items():
        stated = ", ".join(dict.fromkeys(map(_in_words, _parts(described.modules, role))))
        yield Gap("size", role, f"{role} is {_listed(shapes)}, and by the config {stated}")
    for module in fitting.missing:
        yield Gap("product", module.role, f"no tensor is {_in_words(module)}")


def layer_gaps(sizes: ConfigSizes, storage: Storage, stored: Inventory) -> Iterator[Gap]:
    """Return layers that a config counts and no tensor has, or the reverse; names that no class of
    text models has, as merged adapters and cut towers leave them; and layers that are almost like
    another."""
    layers = sizes.get("layers")
    guessing = stated_size(sizes.values, MTP_LAYERS)  # DeepSeek's stand behind the others
    first_names: dict[int, str] = {}
    for module in stored.modules:
        if module.layer is not None and not tower_of(module.name):
            first_names.setdefault(module.layer, module.name)
    absent = sorted(set(range(layers)) - first_names.keys())
    beyond = sorted(first_names.keys() - set(range(layers + guessing)))
    if first_names and layers and (absent or beyond):
        words = f"no tensor of {counted(len(absent), 'layer')}" if absent else "more layers"
        why = f"num_hidden_layers is {layers}, and there is {words}: {(absent or beyond)[0]}"
        yield Gap("tensor", "num_hidden_layers", why)
    starts = {LAYERS_WORD.split(name)[0] for name in first_names.values()}
    if not any(name in sizes.whole for name in NEUTRAL["towers"]):
        for start in sorted(starts - set(NEUTRAL["prefixes"])):
            why = f"names of layers begin with '{shown(start)}', as in no model of text alone"
            yield Gap("tensor", "prefix", why)
    if not stated_size(sizes.values, ["num_kv_shared_layers"]):  # Gemma 3n and 4
        yield from odd_layers(sizes, storage, stored)


def odd_layers(sizes: ConfigSizes, storage: Storage, stored: Inventory) -> Iterator[Gap]:
    """Return layers that lack what another one has, or call one tensor by another name.

    Layers of two kinds are stated to be so, or differ by more than one name each way, experts of
    all numbers being one name; a damaged layer differs from a whole one of its kind by less. Where
    an ignore list names single layers, their scales may differ.
    """
    has_plain_layers = any(OF_ONE_LAYER.search(entry) for entry in storage.ignored)
    layers, stated = sizes.get("layers"), sizes.values.get("layer_types")
    names_of: dict[int, set[str]] = {}
    for name, info in stored.tensors.items():
        layer = layer_of(name)
        is_side = name.endswith(".bias") or (SCALES.search(name) and not has_plain_layers)
        bears_size = is_side or (len(info.shape) > 1 and not NO_PRODUCT.search(name))
        if layer is not None and layer < layers and bears_size and not tower_of(name):
            names_of.setdefault(layer, set()).add(PACKED.sub(".weight", template_of(name)))
    kinds = {frozenset(names): layer for layer, names in names_of.items()}
    is_stated = isinstance(stated, list) and len(stated) == layers
    for first, second in combinations(kinds, 2):
        if is_stated and stated[kinds[first]] != stated[kinds[second]]:
            continue
        if min(len(first - second), len(second - first)) <= 1:
            differing = ", ".join(sorted(map(shown, first ^ second))[:2])
            why = f"layers {kinds[first]} and {kinds[second]} are alike but for {differing}"
            yield Gap("tensor", f"layer {kinds[second]}", why)
            return


def part_gaps(sizes: ConfigSizes, described: Inventory, stored: Inventory) -> Iterator[Gap]:
    """Return products that no tensor is named as, and experts of another number than the
    config's."""
    expected = {module.role for module in described.modules} & MAIN_ROLES
    experts: Counter[tuple[int | None, str]] = Counter()
    for module in stored.modules:
        expected -= set(FUSED.get(module.role, [module.role]))
        if module.role.startswith("expert_") and module.role != "expert_router":
            weight = stored.tensors[module.weights[0]]
            stacked = weight.numel // (module.out_features * module.in_features)
            if len(weight.shape) > 2:  # of packed weights there are fewer elements
                stacked = weight.shape[0]
            experts[module.layer, module.role] += max(1, stacked)
    for role in sorted(expected):
        yield Gap("product", role, f"no tensor has a name of {role}")
    if not any(EMBEDDINGS.search(name) for name in stored.tensors):
        yield Gap("product", "embedding", "no tensor is the embedding")
    has_head = any(module.role == "head" for module in stored.modules)
    if sizes.values.get("tie_word_embeddings") is False and not has_head:
        yield Gap("product", "lm_head", "no tensor is the head, which is not tied to the embedding")
    stated = sizes.get("experts")
    allowed = {stated, stated + stated_size(sizes.values, ["zero_expert_num"])}
    for number in sorted(set(experts.values()) - allowed):
        why = f"a layer has {number} experts, and the config says {stated}"
        yield Gap("product", "experts", why)


def storage_gaps(sizes: ConfigSizes, storage: Storage, stored: Inventory) -> Iterator[Gap]:
    """Return weights in another form than the config says: factor pairs, or scales of no named
    format."""
    factored = [module.name for module in stored.modules if module.kind in ("factored", "grouped")]
    if factored:
        why = f"{len(factored)} layers are factor pairs, which engines don't load"
        # the checkpoint's own code may multiply them
        yield Gap(
            "storage", factored[0], why, "unknown" if "auto_map" in sizes.whole else "refused"
        )
    if storage.form != storage_of_config(sizes.values).form:
        return  # another format was asked for
    has_scales = any(map(SCALES.search, stored.tensors))
    if storage.form == "none" and has_scales:
        yield Gap("storage", "scales", "weights have scales, and the config names no format")
    if storage.form != "none" and storage.stored and not has_scales:
        why = f"no tensor has a scale, and the config says {storage.form}"
        yield Gap("storage", storage.form, why)
    for module in stored.modules:
        weight = stored.tensors.get(f"{module.name}.qweight")
        scales = stored.tensors.get(f"{module.name}.scales")
        if weight is None or scales is None or storage.form not in GROUPED:
            continue
        form = "awq" if weight.shape[0] == module.in_features else "gptq"
        group = storage.group if storage.group > 0 else module.in_features
        if (form, -(-module.in_features // group)) != (storage.form, scales.shape[0]):
            why = f"{module.name} is packed for {form} with {scales.shape[0]} groups"
            yield Gap("storage", module.name, f"{why}, and the config says {storage.form} {group}")
            break


def bias_gaps(sizes: ConfigSizes, stored: Inventory) -> Iterator[Gap]:
    """Return roles with biases that the model's class lacks (FLAP adds some), or without those it
    has.

    Nothing is known of a class that switches them (a key with *bias*), nor of packed weights, to
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
    fitting = Fit()
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
            fitting.differing.setdefault(role, []).append(shape)
        elif not products:
            fitting.foreign.setdefault(template_of(name), []).append(shape)
    # the head may be the embedding
    fitting.missing = [m for m in modules if id(m) not in covered and m.role != "head"]
    return fitting


def _parts(modules: Iterable[Module], role: str) -> list[Module]:
    """Return the products that a matrix of this role may hold."""
    return [module for module in modules if module.role in FUSED.get(role, [role])]


def _matrices(stored: Inventory) -> Iterator[tuple[str, str, Shape]]:
    """Return the name, role and shape of each matrix that may be a product's; of factors the dense
    one."""
    of_modules: set[str] = set()
    for module in stored.modules:
        of_modules.update(module.weights)
        if module.kind != "embedding" and not NO_PRODUCT.search(module.name):
            role = module.role
            if SHARED.search(module.name):
                role = f"shared_{role}"
            yield module.name, role, _size(module)
    for tensor, info in stored.tensors.items():
        name = tensor.removesuffix(".weight").removesuffix("_blocks")
        if tensor in of_modules or NO_PRODUCT.search(name):
            continue
        if info.dtype == "uint8" and len(info.shape) > 1:  # two values of 4 bits each (bnb, MXFP4)
            yield name, role_of(name), (2 * prod(info.shape[-3:]), 1)
        elif len(info.shape) in (2, 3):
            n, k = info.shape[-2:]
            yield name, role_of(name), (n, k)


def _shapes(modules: Sequence[Module]) -> dict[Shape, list[Module]]:
    """Return the products by their shapes, alone and fused with those that follow in the same
    block.

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
    """Write the first of some shapes, and how many more there are."""
    others = f" and {len(shapes) - 1} more" if len(shapes) > 1 else ""
    return f"{list(shapes[0])}{others}"

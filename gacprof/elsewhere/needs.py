"""What a step of a model runs on one rank: products, attention, routed experts; and how often.

Attention is that of one sequence: a step of one token decodes after :data:`CONTEXT` others, a
longer one is a prefill of so many. Which rows of the tables are its times stands in
:data:`QUERIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.products import LocalProducts
from gacprof.core.errors import MapError
from gacprof.core.files import Record
from gacprof.demands import model as demanded
from gacprof.demands.configs import Config, config_of
from gacprof.demands.evaluate import scheme_of
from gacprof.demands.products import ModelProduct, Ranks, Size, Sizes
from gacprof.demands.quantisation import of_config
from gacprof.elsewhere.data import Query
from gacprof.elsewhere.levels import NAMES, table_dtype

CONTEXT = 1024
"""Tokens that a decode step attends to."""
SCHEMES = {
    "none": "bfloat16", "fp8_tensor": "fp8", "fp8_channel": "fp8", "fp8_block": "fp8_block",
    "nvfp4": "nvfp4", "mxfp4": "w4a16_mxfp4", "int8_w8a8": "sq", "int8_w8a16": "int8_wo",
    "int4": "int4_wo", "awq": "int4_wo", "gptq": "int4_wo",
}  # fmt: skip
"""A config's quantisation → the tables' data type."""

Kind = Literal["product", "attention", "latent attention", "experts"]


@dataclass(frozen=True)
class Need(Record):
    """One part of a step, ``count`` times, in ``dtype``, a name of the tables. ``shape`` is N and K
    of a product; heads, kv_heads and head_dim of attention; hidden, width, experts and topk of
    experts, each as one rank holds it. ``one_row``: a product that runs at one row, however many
    tokens there are. ``fields``: the config's field that alone sizes an axis, by axis."""

    name: str
    kind: Kind
    shape: Mapping[str, int]
    count: float
    dtype: str
    one_row: bool = False
    fields: Mapping[str, str] = field(default_factory=dict)


NOT_SHARED = "ranks cannot share it out"
HEAD, EXPERTS = "lm_head", "routed experts"
"""Parts by the name that a config's and a checkpoint's step give them alike."""

Found = tuple[list[Need], list[str]]
"""Needs, and what has none with the reason."""


def needs_of_config(config: Config, tp: int = 1, dtype: str | None = None) -> Found:
    """The parts of a config, products as engines fuse them, on one of ``tp`` ranks.

    Raises :class:`MapError` for a quantisation that no table has, unless a ``dtype`` is given.
    """
    linear = table_dtype(dtype) if dtype else _scheme(config)
    found, left_out = _other_products(config, tp, linear, asked=bool(dtype))
    needs: list[Need] = []
    for product in demanded.products(config, _ranks(tp)):
        if product.kind in ("count", "expert") or product.role == "embedding":
            continue
        if product.kind == "vocab":
            n = -(-(product.n.whole or 0) // tp)
            if n and product.k.value:
                shape = {"N": n, "K": product.k.value}
                named = {axis: by for axis, by in _fields(config, product).items() if axis == "K"}
                needs.append(Need(HEAD, "product", shape, 1, "bfloat16", True, named))
            else:
                left_out.append(f"{HEAD}: {_lacking(product, tp, product.n, product.k)}")
        elif product.n.value and product.k.value and product.layers is not None:
            count = product.layers * (product.copies or 1)
            shape = {"N": product.n.value, "K": product.k.value}
            used = linear if dtype else _stored(config, product, linear)
            named = _fields(config, product)
            needs.append(Need(product.name, "product", shape, count, used, fields=named))
        else:
            left_out.append(f"{product.name}: {_lacking(product, tp, product.n, product.k)}")
    return [need for need in (*needs, *found) if need.count], left_out


def needs_of_weights(inventory: Inventory, tp: int = 1, dtype: str | None = None) -> Found:
    """The parts of a checkpoint, one product a weight, equal ones of a role together; attention and
    experts by its config."""
    ranks, counts = LocalProducts(inventory, tp), dict[tuple[str, int, int, str, bool], int]()
    left_out: dict[str, str] = {}
    for module in inventory.modules:
        if module.role.startswith("expert_"):
            continue
        for i, gemm in enumerate(module.gemms):
            local, is_head = ranks.local(gemm), module.role == "head"
            name = HEAD if is_head else module.role
            name = name if len(module.gemms) == 1 else f"{name} factor {i + 1}"
            if local is None:
                left_out[name] = f"{name}: {tp} {NOT_SHARED}"
                continue
            own = ranks.dtype_of(gemm.weight)
            used = table_dtype(dtype) if dtype and not is_head else NAMES.get(own, own)
            key = name, *local, used, is_head
            counts[key] = counts.get(key, 0) + 1
    needs = [
        Need(name, "product", {"N": n, "K": k}, count, used, is_head)
        for (name, n, k, used, is_head), count in counts.items()
    ]
    config = config_of(inventory.config)
    linear = table_dtype(dtype) if dtype else SCHEMES.get(_kind(config), "")
    others, also = _other_products(config, tp, linear, asked=bool(dtype))
    return [*needs, *others], [*left_out.values(), *also]


def _fields(config: Config, product: ModelProduct) -> dict[str, str]:
    """The config's field that sizes each axis of a dense product, where it is one: the width on the
    side that ranks share, the hidden size on the other."""
    shared, other = ("K", "N") if product.split == "row" else ("N", "K")
    size = product.n if other == "N" else product.k
    found = {shared: product.fields[0]} if len(product.fields) == 1 else {}
    if size.value is not None and size.value == config.get("hidden_size"):
        found[other] = config.spelling("hidden_size")
    return found


def _stored(config: Config, product: ModelProduct, linear: str) -> str:
    """The data type of a product as the checkpoint stores it: bf16 where it is unquantised."""
    scheme = of_config(config.whole)
    return SCHEMES.get(scheme_of(product, scheme).kind, linear) if scheme else linear


def _other_products(config: Config, tp: int, linear: str, asked: bool) -> Found:
    """Attention, in bf16, and routed experts; of these the data type is that ``asked`` for or
    the config's."""
    sizes, needs, left_out = Sizes(config, _ranks(tp)), list[Need](), list[str]()
    for product in demanded.products(config, _ranks(tp)):
        of = {"o": _attention, "mla.o": _latent, "moe.w2": _experts}.get(product.name)
        if of is None:
            continue
        made = of(sizes, product, tp, linear if asked else _stored(config, product, linear))
        if isinstance(made, Need):
            needs.append(made)
        else:
            left_out.append(made)
    if not any(need.kind.endswith("attention") for need in needs) and not left_out:
        left_out.append("attention: the config does not say its heads")
    return needs, left_out


def _attention(at: Sizes, product: ModelProduct, tp: int, linear: str) -> Need | str:
    heads, kv_heads, head_dim = (at.get(name) for name in ("heads", "kv_heads", "head_dim"))
    if not heads or not kv_heads:
        gone = ["heads"] * (not heads) + ["kv_heads"] * (not kv_heads)
        return f"attention: the config lacks {', '.join(map(at.config.spelling, gone))}"
    if not head_dim or product.layers is None or heads % tp:
        return f"attention: {_lacking(product, tp, product.k)}"
    if heads % kv_heads:
        return f"attention: {heads} heads are no multiple of {kv_heads} of keys and values"
    shape = {"heads": heads // tp, "kv_heads": max(1, kv_heads // tp), "head_dim": head_dim}
    window = at.config.values.get("sliding_window")
    if isinstance(window, int) and at.config.values.get("use_sliding_window") is not False:
        shape["window"] = window
    return Need("attention", "attention", shape, product.layers, "bfloat16")


def _latent(at: Sizes, product: ModelProduct, tp: int, linear: str) -> Need | str:
    heads = at.get("heads")
    if not heads or product.layers is None or heads % tp:
        return f"latent attention: {_lacking(product, tp, product.k)}"
    shape = {"heads": heads // tp}
    return Need("latent attention", "latent attention", shape, product.layers, "bfloat16")


def _experts(at: Sizes, product: ModelProduct, tp: int, linear: str) -> Need | str:
    experts, topk = (at.config.get(name) for name in ("experts", "experts_per_token"))
    hidden, width = product.n.value, product.k.value
    if not experts or not topk or not hidden or not width or product.layers is None:
        gone = "" if topk or not width else "the config lacks how many experts a token takes"
        return f"{EXPERTS}: {gone or _lacking(product, tp, product.n, product.k)}"
    if not product.gated:
        return f"{EXPERTS}: those without a gate are not read from the tables"
    shape = {"hidden": hidden, "width": width, "experts": experts, "topk": topk}
    return Need(EXPERTS, "experts", shape, product.layers, linear)


def _lacking(product: ModelProduct, tp: int, *sizes: Size) -> str:
    gone = ", ".join(field for size in sizes for field in size.missing)
    if gone:
        return f"the config lacks {gone}"
    if product.layers is None:
        return "the config does not say in how many layers"
    if any(size.whole == 0 for size in sizes):
        return "the config says that its size is 0"
    return f"{tp} {NOT_SHARED}"


def _ranks(tp: int) -> Ranks:
    return Ranks(tp=tp, experts=tp, shared=tp)


def _kind(config: Config) -> str:
    scheme = of_config(config.whole)
    return scheme.kind if scheme else "none"


def _scheme(config: Config) -> str:
    kind = _kind(config)
    if kind not in SCHEMES:
        what = kind if kind != "unknown" else "how this config's weights are quantised"
        raise MapError(
            f"no times of {what} were measured elsewhere: name a data type that was (--dtype)"
        )
    return SCHEMES[kind]


@dataclass(frozen=True)
class TablePlace:
    """A place in a table: the query, and the sizes that it is interpolated over."""

    query: Query
    m: int
    n: int


def _of_attention(shape: Mapping[str, int], tokens: int) -> TablePlace | str:
    length = tokens if tokens > 1 else CONTEXT
    if shape.get("window", length) < length:
        return f"a sliding window of {shape['window']} tokens is not read from the tables"
    fixed = (
        ("batch_size", 1), ("num_key_value_heads", shape["kv_heads"]),
        ("head_dim", shape["head_dim"]), ("window_size", 0), ("kv_cache_dtype", "bfloat16"),
    )  # fmt: skip
    return _by_length("attention", "attn_dtype", fixed, shape["heads"], tokens)


def _of_latent(shape: Mapping[str, int], tokens: int) -> TablePlace | str:
    fixed = ("batch_size", 1), ("kv_cache_dtype", "bfloat16")
    return _by_length("mla", "mla_dtype", fixed, shape["heads"], tokens)


def _by_length(
    table: str, dtype: str, fixed: tuple[tuple[str, int | str], ...], heads: int, tokens: int
) -> TablePlace:
    """A prefill by its length; a decode step by the tokens before it."""
    if tokens > 1:
        query = Query(table, f"context_{table}_perf", dtype, "isl", "num_heads", fixed=fixed)
        return TablePlace(query, tokens, heads)
    query = Query(table, f"generation_{table}_perf", dtype, "step", "num_heads", fixed=fixed)
    return TablePlace(query, CONTEXT - 1, heads)


def _of_experts(shape: Mapping[str, int], tokens: int) -> TablePlace | str:
    fixed = (
        ("hidden_size", shape["hidden"]), ("topk", shape["topk"]),
        ("num_experts", shape["experts"]), ("moe_ep_size", 1),
    )  # fmt: skip
    query = Query(
        "moe", "moe_perf", "moe_dtype", "num_tokens", "inter_size", fixed=fixed,
        shared_by="moe_tp_size", without="nongated",
    )  # fmt: skip
    return TablePlace(query, tokens, shape["width"])


QUERIES: Mapping[str, Callable[[Mapping[str, int], int], TablePlace | str]] = {
    "attention": _of_attention, "latent attention": _of_latent, "experts": _of_experts,
}  # fmt: skip

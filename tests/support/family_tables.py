"""What ``families.toml`` may say; its words are explained there."""

from __future__ import annotations

from typing import Literal, Required

from typing_extensions import TypedDict


class Family(TypedDict, total=False):
    """What configs of some model types mean."""

    types: list[str]
    head_dim: int
    kv_heads: int | Literal["heads"]
    mlp_ratio: int
    expert_width: list[str]
    shared_width: list[str]
    mlp_width: list[str]
    is_gated: bool
    q_parts: int
    width_parts: int
    by_layer: bool
    global_attention: str
    global_kv_times: int
    fields: dict[str, list[str]]
    blocks: list[str]
    experts_only: bool
    dense_if_listed: bool
    dense_too: bool
    mixer: Literal["mla", "v4", "mamba", "mamba1"]


class LinearRow(TypedDict, total=False):
    """A linear layer: ``N`` and ``K`` are sizes or sides; it is there with all sizes that it
    ``needs`` and without those that it ``lacks``."""

    name: Required[str]
    role: Required[str]
    N: Required[str]
    K: Required[str]
    needs: list[str]
    lacks: list[str]


class FamilyTables(TypedDict):
    """The config's names of sizes, what they mean, families, sides (sums of products of sizes),
    sizes that follow from others, roles with a bias, fields and class names of compressed models,
    tables of sizes, sizes of a second kind of attention, roles that a module may hold, the
    layer_types of kinds of block, those that lack one, and the linear layers of each."""

    fields: dict[str, list[str]]
    by_sizes: dict[str, Family]
    families: dict[str, Family]
    sides: dict[str, list[list[str]]]
    silent: dict[str, list[str]]
    biases: dict[str, list[str]]
    compressed: dict[str, list[str]]
    parts: dict[str, str]
    second: dict[str, str]
    fused: dict[str, list[str]]
    layer_kinds: dict[str, list[str]]
    lacks: dict[str, list[str]]
    modules: dict[str, list[LinearRow]]

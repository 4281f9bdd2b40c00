"""The counts and products of a model as one rank runs it, by the kinds of its layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gacprof.demands.configs import Config
from gacprof.demands.products import ModelProduct, Ranks, Size, Sizes, shared

Shards = Sequence[tuple[str, Size, str]]
"""(name, size, the end of its module's name) of what an engine may fuse."""

COUNTS = {
    "attention heads": "heads", "kv heads": "kv_heads", "mamba heads": "mamba_heads",
    "mamba groups": "mamba_groups", "output groups": "o_groups",
    "linear key heads": "linear_num_key_heads", "linear value heads": "linear_num_value_heads",
}  # fmt: skip


def products(config: Config, ranks: Ranks) -> tuple[ModelProduct, ...]:
    """The counts and products of a config on given ranks, counts first."""
    sizes = Sizes(config, ranks)
    kinds = (counts, attention, delta_net, mamba, dense_mlp, experts, shared_experts, vocabulary)
    return tuple(product for kind in kinds for product in kind(sizes))


def counts(at: Sizes) -> Iterator[ModelProduct]:
    """What ranks share out whole."""
    config, tp = at.config, at.ranks.tp
    left_out = {"kv_heads"} if at.family.mixer == "mla" else set()
    left_out |= set() if config.get("mamba_heads") else {"mamba_groups"}  # those of experts
    for name, field in COUNTS.items():
        number = at.get(field)
        if number and field not in left_out:
            yield count(name, config.spelling(field), number, tp)
    yield from _groups_of_heads(at)
    number = config.get("experts")
    if number and at.has_experts:
        yield count("experts", config.spelling("experts"), number, at.ranks.expert_parallel)
    if config.vision_heads:
        where, number = config.vision_heads
        yield count("vision attention heads", f"{where} heads", number, tp)


def _groups_of_heads(at: Sizes) -> Iterator[ModelProduct]:
    """How heads group, on any number of ranks: those of q over those of keys and values, and the
    hidden size over the heads where nothing says a head_dim."""
    config = at.config
    heads, hidden = config.get("heads"), config.get("hidden_size")
    kv_heads = None if at.family.mixer else at.get("kv_heads")
    if heads and kv_heads:
        made = count("heads over kv heads", config.spelling("kv_heads"), heads, kv_heads)
        yield replace(made, role="head_groups")
    if heads and hidden and not at.get("head_dim") and not at.family.mixer:
        yield replace(count("head_dim", "head_dim", hidden, heads), role="head_dim")
    head_dim = None if at.family.mixer or config.get("kv_lora_rank") else at.get("head_dim")
    if heads and head_dim:
        made = count("attention head_dim", config.spelling("head_dim"), head_dim, 1)
        partly = any(config.values.get(key) not in (None, 1, 1.0) for key in PARTLY_ROTATED)
        is_whole = config.model_type.removesuffix("_text") in ROTATED and not partly
        yield replace(made, role="rotated_head_dim" if is_whole else "attention_head_dim")


ROTATED = (
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2",
)  # fmt: skip
"""Types whose classes rotate all of head_dim in two halves where the config says no part of it."""
PARTLY_ROTATED = ("partial_rotary_factor", "rotary_pct", "rotary_dim")


def count(name: str, field: str, number: int, parts: int) -> ModelProduct:
    """A number that so many ranks share out."""
    role = {"attention heads": "heads"}.get(name, name.replace(" ", "_"))
    return ModelProduct(
        name, role, "count", "none", shared(number, parts), Size(None), fields=(field,)
    )


def _column(
    at: Sizes, name: str, role: str, shards: Shards, layers: int | None, fields: tuple[str, ...],
    split: str = "column",
) -> Iterator[ModelProduct]:  # fmt: skip
    """A product of several shards that read one input: fused where the engine does that."""
    ends = [end for _, _, end in shards]
    if role.removeprefix("shared_") not in at.ranks.fused and len(set(ends)) > 1:
        for shard, size, end in shards:
            apart = f"{name.rpartition('.')[0]}.{shard}".removeprefix(".")
            yield at.column(apart, shard, size, layers, fields, end, split=split)
        return
    sizes = [size for _, size, _ in shards]
    missing = tuple(dict.fromkeys(field for size in sizes for field in size.missing))
    uneven = next((size for size in sizes if size.is_uneven), None)
    values = [size.value for size in sizes if size.value is not None]
    n = Size(sum(values) if len(values) == len(sizes) else None, missing=missing)
    whole = replace(uneven, value=None) if uneven else n
    made = at.column(name, role, whole, layers, fields, *ends, split=split)
    yield replace(made, shards=tuple((shard, size) for shard, size, _ in shards))


def attention(at: Sizes) -> Iterator[ModelProduct]:
    config, mixer = at.config, at.family.mixer
    if mixer.startswith("mamba"):
        return iter(())
    if mixer == "mla" or (config.get("kv_lora_rank") and not mixer):
        return latent(at)
    if mixer == "v4":
        return latent_v4(at)
    is_there = any(config.get(name) for name in ("heads", "head_dim", "kv_heads"))
    return grouped(at) if is_there or not config.get("mamba_heads") else iter(())


def grouped(at: Sizes) -> Iterator[ModelProduct]:
    """Attention of heads: q, k, v and o."""
    value_dim = "v_head_dim" if at.config.get("v_head_dim") else "head_dim"
    has_gate = at.family.q_gate and at.config.values.get("attn_output_gate") is not False
    shards = (
        ("q", at.of_heads("heads", "head_dim", 1 + has_gate), "self_attn.q_proj"),
        ("k", at.of_heads("kv_heads", "head_dim"), "self_attn.k_proj"),
        ("v", at.of_heads("kv_heads", value_dim), "self_attn.v_proj"),
    )
    fields, layers = ("heads", "kv_heads", "head_dim"), at.layers_of("attention")
    yield from _column(at, "qkv", "qkv", shards, layers, fields)
    k = at.of_heads("heads", value_dim)
    yield at.row("o", "o", k, layers, fields, "self_attn.o_proj")


def latent(at: Sizes) -> Iterator[ModelProduct]:
    """Multi-head latent attention (DeepSeek)."""
    config, layers = at.config, at.layers
    latent_dim, rope = config.get("kv_lora_rank"), config.get("qk_rope_head_dim")
    if latent_dim and rope:
        kv_a = shared(latent_dim + rope, 1)
    else:
        missing = [f for f in ("kv_lora_rank", "qk_rope_head_dim") if config.get(f) is None]
        kv_a = Size(None, missing=tuple(missing))
    fields: tuple[str, ...] = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim")
    has_rank = bool(config.get("q_lora_rank"))
    if has_rank:
        q_a = at.size("q_lora_rank")
        shards = (("q_a", q_a, "self_attn.q_a_proj"),
                  ("kv_a", kv_a, "self_attn.kv_a_proj_with_mqa"))  # fmt: skip
        yield from _column(at, "mla.qkv_a", "qkv_a", shards, layers, fields, "replicated")
    elif kv_a.value:
        end = "self_attn.kv_a_proj_with_mqa"
        yield at.column("mla.kv_a", "kv_a", kv_a, layers, fields[1:], end, split="replicated")
    if not (config.get("qk_nope_head_dim") or config.get("v_head_dim")):
        return
    fields = ("qk_nope_head_dim", "qk_rope_head_dim")
    k, end = (at.size("q_lora_rank"), "q_b_proj") if has_rank else (at.hidden, "q_proj")
    n = at.of_dims(*fields)
    yield at.column("mla.q_b", "q_b", n, layers, fields, f"self_attn.{end}", k=k)
    fields = ("qk_nope_head_dim", "v_head_dim")
    n, k = at.of_dims(*fields), at.size("kv_lora_rank")
    yield at.column("mla.kv_b", "kv_b", n, layers, fields, "self_attn.kv_b_proj", k=k)
    k = at.of_heads("heads", "v_head_dim")
    yield at.row("mla.o", "o", k, layers, fields[1:], "self_attn.o_proj")


def latent_v4(at: Sizes) -> Iterator[ModelProduct]:
    """DeepSeek-V4: a latent q, one head of keys, an output in groups of low rank."""
    if at.config.get("q_lora_rank"):
        n, k = at.of_heads("heads", "head_dim"), at.size("q_lora_rank")
        fields = ("q_lora_rank", "head_dim")
        yield at.column("attention.q_b", "q_b", n, at.layers, fields, "attn.wq_b", k=k)
    if at.config.get("o_lora_rank"):
        fields = ("o_groups", "o_lora_rank")
        k = at.size(*fields, parts=at.ranks.tp, by_heads=True)
        yield at.row("attention.o_b", "o", k, at.layers, fields, "attn.wo_b")


def delta_net(at: Sizes) -> Iterator[ModelProduct]:
    """Gated delta nets (Qwen3-Next): four shards of one product, and the way out."""
    key_fields = ("linear_num_key_heads", "linear_key_head_dim")
    value_fields = ("linear_num_value_heads", "linear_value_head_dim")
    if not any(at.config.get(field) for field in (key_fields[0], value_fields[0])):
        return
    key, value = at.of_heads(*key_fields), at.of_heads(*value_fields)
    end, layers = "linear_attn.in_proj_qkvz", at.layers_of("linear_attention")
    shards = (("q", key, end), ("k", key, end), ("v", value, end), ("z", value, end))
    fields = (*key_fields, *value_fields)
    yield from _column(at, "gdn.in_proj_qkvz", "in_proj", shards, layers, fields)
    yield at.row("gdn.out", "gdn_out", value, layers, value_fields, "linear_attn.out_proj")


def mamba(at: Sizes) -> Iterator[ModelProduct]:
    """Mamba-2 mixers: gate, input, B and C of each group, and one step a head."""
    config, tp = at.config, at.ranks.tp
    if not config.get("mamba_heads"):
        older = any(key.startswith(("mamba_d_", "ssm_")) for key in config.values)
        if older or at.family.mixer == "mamba1":
            size, layers = Size(None, missing=("the heads of Mamba-2",)), at.layers_of("mamba")
            yield at.column("mamba.in_proj", "mamba1", size, layers, (), "mixer.in_proj", k=size)
        return
    inner, groups = at.of_heads("mamba_heads", "mamba_head_dim"), config.get("mamba_groups")
    is_repeated = groups == 1
    state = at.size("mamba_state") if is_repeated else at.of_heads("mamba_groups", "mamba_state")
    steps = at.size("mamba_heads", parts=tp, by_heads=True)
    sizes = {"z": inner, "x": inner, "B": state, "C": state, "dt": steps}
    shards = [(name, size, "mixer.in_proj") for name, size in sizes.items()]
    layers = at.layers_of("mamba")
    fields = ("mamba_heads", "mamba_head_dim", "mamba_groups", "mamba_state")
    yield from _column(at, "mamba.in_proj", "in_proj", shards, layers, fields)
    yield at.row("mamba.out_proj", "mamba_out", inner, layers, fields[:2], "mixer.out_proj")


def _mlp(
    at: Sizes, prefix: str, size: Size, kind: str, field: str, module: str
) -> Iterator[ModelProduct]:
    """Gate and up, and down."""
    role, layers = "shared_" if prefix == "shared." else "", at.layers_of(kind)
    if at.family.is_gated:
        shards = (("gate", size, f"{module}.gate_proj"), ("up", size, f"{module}.up_proj"))
        yield from _column(at, f"{prefix}gate_up", f"{role}gate_up", shards, layers, (field,))
    else:
        yield at.column(f"{prefix}up", f"{role}up", size, layers, (field,), f"{module}.up_proj")
    yield at.row(f"{prefix}down", f"{role}down", size, layers, (field,), f"{module}.down_proj")


def dense_mlp(at: Sizes) -> Iterator[ModelProduct]:
    """The dense layers' MLP."""
    field = at.family.dense
    for width, layers in at.config.widths:
        size = shared(width, at.ranks.tp)
        for product in _mlp(at, "", size, "dense", field, "mlp"):
            yield replace(product, name=f"{product.name} ({width})", layers=layers)
    if not at.config.widths and runs_dense(at, at.get(field)):
        prefix = "dense." if at.has_experts or at.family.expert else ""
        yield from _mlp(at, prefix, at.size(field, parts=at.ranks.tp), "dense", field, "mlp")


def runs_dense(at: Sizes, width: int | None) -> bool:
    """Whether any layer has a dense MLP, or none is said to be without."""
    family, config = at.family, at.config
    if family.experts_only or family.mixer.startswith("mamba"):
        return False
    if not width:
        return not at.has_experts and not family.expert and not config.get("mamba_heads")
    if not at.has_experts or family.dense_too:
        return True
    if family.dense_if_listed:
        return config.listed("mlp_only_layers") > 0 or (config.get("decoder_sparse_step") or 1) > 1
    pattern = config.values.get("hybrid_override_pattern")
    if isinstance(pattern, str) and pattern:
        return "-" in pattern
    return config.values.get("first_k_dense_replace") != 0


def experts(at: Sizes) -> Iterator[ModelProduct]:
    """Routed experts, each split by ranks of its own."""
    family, config, ranks = at.family, at.config, at.ranks
    number = config.get("experts")
    if not at.has_experts or not (config.get(family.expert) or number):
        return
    size = at.size(family.expert, parts=ranks.experts)
    if size.is_uneven and ranks.whole_blocks and size.whole and size.whole % 32 == 0:
        size = Size(-(-size.whole // 32 // ranks.experts) * 32, size.whole, ranks.experts)
    ends: tuple[str, ...] = ("up",)
    first, role = "w1", "expert_up"
    if family.is_gated:
        first, role, ends = ("w1/w3", "expert_gate_up", ("gate", "up"))
    names = [f"mlp.experts.0.{end}_proj" for end in ends]
    layers, fields = at.layers_of("experts"), (family.expert,)
    up = at.column(f"moe.{first}", role, size, layers, fields, *names)
    down = at.row("moe.w2", "expert_down", size, layers, fields, "mlp.experts.0.down_proj")
    copies = number / ranks.expert_parallel if number else None
    for product in (up, down):
        yield replace(product, kind="expert", gated=family.is_gated, copies=copies)


def shared_experts(at: Sizes) -> Iterator[ModelProduct]:
    """Experts that every token takes: split by all ranks, whatever the routed ones are."""
    family, config, parts = at.family, at.config, at.ranks.shared
    if family.shared == "count * expert":
        if config.get("shared_count"):
            size = at.size("shared_count", family.expert, parts=parts)
            yield from _mlp(at, "shared.", size, "experts", family.expert, "mlp.shared_experts")
    elif family.shared and config.get(family.shared):
        size = at.size(family.shared, parts=parts)
        yield from _mlp(at, "shared.", size, "experts", family.shared, "mlp.shared_expert")


def vocabulary(at: Sizes) -> Iterator[ModelProduct]:
    """Embedding and head: engines pad the vocabulary, so a rank's share is not known yet."""
    size = at.size("vocab_size")
    if size.value is None:
        return
    n, fields = Size(None, size.value, at.ranks.tp), (at.config.spelling("vocab_size"),)
    for name, role, module, layers in (
        ("embedding", "embedding", "model.embed_tokens", 1),
        ("lm_head", "head", "lm_head", 0 if at.config.is_tied else 1),
    ):
        yield ModelProduct(name, role, "vocab", "column", n, at.hidden, layers=layers,
                           fields=fields, modules=(module,))  # fmt: skip

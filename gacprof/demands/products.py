"""Every product of a model as one rank runs it, from its config alone.

A product is y[M, N] = x[M, K] · W[N, K]ᵀ; M is left open. With t tensor-parallel ranks, a column
split gives a rank N/t, a row split K/t; keys and values are repeated where ranks outnumber their
heads; experts are split by e ranks of their own. Engines fuse q with k and v, gate with up, and
what else reads one input: such a product has *shards*, since demands are on each of them.

Beside products there are *counts* that ranks share: heads, groups, experts, the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from gacprof.demands.configs import Config

FUSED = ("qkv", "gate_up", "qkv_a", "in_proj")
"""Products that an engine may fuse."""


@dataclass(frozen=True)
class Size:
    """A size as one rank holds it, from ``whole`` over ``parts``. ``value`` is None where config
    fields are ``missing`` or the parts are not even; ``by_heads``: a count of its own says so."""

    value: int | None
    whole: int | None = None
    parts: int = 1
    missing: tuple[str, ...] = ()
    by_heads: bool = False

    @property
    def is_uneven(self) -> bool:
        return self.whole is not None and self.value is None


@dataclass(frozen=True)
class Product:
    """``kind`` is dense, expert, vocab or count; ``split`` column, row or replicated. ``layers`` of
    it there are and ``copies`` in each on one rank (experts), None where the config does not say.
    ``fields`` are the config's names of what sizes it. ``modules`` are the checkpoint's names."""

    name: str
    role: str
    kind: str
    split: str
    n: Size
    k: Size
    shards: tuple[tuple[str, Size], ...] = ()
    gated: bool = True
    layers: int | None = None
    copies: float | None = 1
    fields: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ranks:
    """How an engine shares a model out: ``tp`` ranks, ``experts`` of them for each expert,
    ``shared`` for shared experts; ``expert_parallel`` ranks share out whole experts. ``fused`` are
    the products that the engine fuses; ``whole_blocks``: widths are dealt out in blocks of 32."""

    tp: int = 1
    experts: int = 1
    shared: int = 1
    expert_parallel: int = 1
    fused: frozenset[str] = frozenset(FUSED)
    whole_blocks: bool = False


class Builder:
    """Makes the products of one config on given ranks."""

    def __init__(self, config: Config, ranks: Ranks) -> None:
        self.config, self.ranks, self.family = config, ranks, config.meaning
        self.hidden = self.size("hidden_size")
        self.has_experts = bool(self.family.expert) and (
            config.get(self.family.expert) is not None or self.family.experts_only
        )
        self.layers = config.get("layers")

    # sizes

    def size(self, *names: str, parts: int = 1, times: int = 1, by_heads: bool = False) -> Size:
        """The product of config fields, shared by ``parts``."""
        values = [self.head_dim() if n == "head_dim" else self.get(n) for n in names]
        gone = tuple(self.config.spelling(n) for n, v in zip(names, values, strict=True) if v is None)
        if gone:
            return Size(None, missing=gone)
        whole = times * prod(v for v in values if v is not None)
        even = whole % parts == 0
        return Size(whole // parts if even else None, whole, parts, by_heads=by_heads)

    def get(self, name: str) -> int | None:
        if name == "kv_heads":
            return self.kv_heads()
        if name == "intermediate_size" and self.family.mlp_ratio:
            hidden = self.config.get("hidden_size")
            return self.config.get(name) or (hidden and self.family.mlp_ratio * hidden)
        return self.config.get(name)

    def head_dim(self) -> int | None:
        given = self.config.get("head_dim") or self.family.head_dim
        hidden, heads = self.config.get("hidden_size"), self.config.get("heads")
        if given or not hidden or not heads or hidden % heads:
            return given
        return hidden // heads

    def kv_heads(self) -> int | None:
        values = self.config.values
        if values.get("multi_query") is True and values.get("new_decoder_architecture") is not True:
            return 1
        given, means = self.config.get("kv_heads"), self.family.kv_heads
        return given or (self.config.get("heads") if means == "heads" else means or None)  # type: ignore[return-value]

    def of_heads(self, heads: str, dim: str, times: int = 1) -> Size:
        """Heads shared out whole; of keys and values each rank has one at least."""
        count, parts = self.get(heads), self.ranks.tp
        if heads == "kv_heads" and count and count < parts and parts % count == 0:
            return self.size(dim, times=times)
        size = self.size(heads, dim, parts=parts, times=times, by_heads=True)
        uneven = count is not None and count % parts
        return replace(size, value=None) if uneven else size

    # products

    def all(self) -> Iterator[Product]:
        yield from self.counts()
        yield from self.attention()
        if self.config.get("linear_num_key_heads") or self.config.get("linear_num_value_heads"):
            yield from self.delta_net()
        if self.config.get("mamba_heads"):
            yield from self.mamba()
        yield from self.mlp()
        yield from self.experts()
        yield from self.vocabulary()

    def counts(self) -> Iterator[Product]:
        tp, config = self.ranks.tp, self.config
        names = {
            "attention heads": "heads", "kv heads": "kv_heads", "mamba heads": "mamba_heads",
            "mamba groups": "mamba_groups", "output groups": "o_groups",
            "linear key heads": "linear_num_key_heads", "linear value heads": "linear_num_value_heads",
        }  # fmt: skip
        if config.get("n_groups") and not config.get("mamba_heads"):
            del names["mamba groups"]
        for name, field in names.items():
            count = self.get(field)
            if count and not (self.family.mixer == "mla" and field == "kv_heads"):
                yield self.count(name, field, count, tp)
        experts = config.get("experts")
        if experts and self.has_experts:
            yield self.count("experts", "experts", experts, self.ranks.expert_parallel)
        if config.vision_heads:
            where, heads = config.vision_heads
            yield self.count("vision attention heads", f"{where} heads", heads, tp)

    def count(self, name: str, field: str, count: int, parts: int) -> Product:
        size = Size(count // parts if count % parts == 0 else None, count, parts)
        role = field if field in ("heads", "kv_heads", "experts") else name.replace(" ", "_")
        none = Size(None)
        return Product(name, role, "count", "none", size, none, fields=(self.config.spelling(field),))

    def attention(self) -> Iterator[Product]:
        config, mixer = self.config, self.family.mixer
        if mixer == "mla" or (config.get("kv_lora_rank") and not mixer):
            yield from self.latent()
        elif mixer == "v4":
            yield from self.latent_v4()
        elif any(config.get(x) for x in ("heads", "head_dim", "kv_heads")):
            yield from self.grouped()

    def grouped(self) -> Iterator[Product]:
        """Attention of heads: q, k, v and o."""
        value_dim = "v_head_dim" if self.config.get("v_head_dim") else "head_dim"
        gate = 2 if self.family.q_gate and self.config.values.get("attn_output_gate") is not False else 1
        shards = (
            ("q", self.of_heads("heads", "head_dim", gate)),
            ("k", self.of_heads("kv_heads", "head_dim")),
            ("v", self.of_heads("kv_heads", value_dim)),
        )
        fields = tuple(map(self.config.spelling, ("heads", "kv_heads", "head_dim")))
        layers = self.layers_of("attention")
        at = "self_attn"
        yield from self.column("qkv", "qkv", shards, self.hidden, layers, fields, f"{at}.{{}}_proj")
        o = self.of_heads("heads", value_dim)
        yield Product("o", "o", "dense", "row", self.hidden, o, layers=layers, fields=fields,
                      modules=self.named(f"{at}.o_proj"))  # fmt: skip

    def latent(self) -> Iterator[Product]:
        """Multi-head latent attention (DeepSeek)."""
        config, layers, at = self.config, self.layers, "self_attn"
        fields = ("kv_lora_rank", "qk_rope_head_dim")
        latent, rope = self.size("kv_lora_rank"), config.get("qk_rope_head_dim")
        whole = latent.value + rope if latent.value and rope else None
        missing = tuple(f for f in fields if config.get(f) is None)
        kv_a = Size(whole, whole, missing=missing)
        q_rank = config.get("q_lora_rank")
        if q_rank:
            shards = (("q_a", self.size("q_lora_rank")), ("kv_a", kv_a))
            yield from self.column("mla.qkv_a", "qkv_a", shards, self.hidden, layers,
                                   ("q_lora_rank", *fields), f"{at}.{{}}_proj", "replicated")  # fmt: skip
        elif kv_a.value:
            yield Product("mla.kv_a", "kv_a", "dense", "replicated", kv_a, self.hidden, layers=layers,
                          fields=fields, modules=self.named(f"{at}.kv_a_proj_with_mqa"))  # fmt: skip
        if not (config.get("qk_nope_head_dim") or config.get("v_head_dim")):
            return
        nope, value = config.get("qk_nope_head_dim"), config.get("v_head_dim")
        yield Product("mla.q_b", "q_b", "dense", "column", self.summed("heads", nope, rope),
                      self.size("q_lora_rank") if q_rank else self.hidden, layers=layers,
                      fields=("qk_nope_head_dim", "qk_rope_head_dim"),
                      modules=self.named(f"{at}.q_b_proj" if q_rank else f"{at}.q_proj"))  # fmt: skip
        yield Product("mla.kv_b", "kv_b", "dense", "column", self.summed("heads", nope, value), latent,
                      layers=layers, fields=("qk_nope_head_dim", "v_head_dim"),
                      modules=self.named(f"{at}.kv_b_proj"))  # fmt: skip
        yield Product("mla.o", "o", "dense", "row", self.hidden, self.of_heads("heads", "v_head_dim"),
                      layers=layers, fields=("v_head_dim",), modules=self.named(f"{at}.o_proj"))  # fmt: skip

    def summed(self, heads: str, a: int | None, b: int | None) -> Size:
        """heads · (a + b) over the ranks."""
        count, parts = self.config.get(heads), self.ranks.tp
        if count is None or a is None or b is None:
            return Size(None, missing=(self.config.spelling(heads),) if count is None else ("head dims",))
        whole = count * (a + b)
        return Size(None if count % parts else whole // parts, whole, parts, by_heads=True)

    def latent_v4(self) -> Iterator[Product]:
        """DeepSeek-V4: a latent q, one head of keys, an output in groups of low rank."""
        at, layers = "attn", self.layers
        if self.config.get("q_lora_rank"):
            yield Product("attention.q_b", "q_b", "dense", "column", self.of_heads("heads", "head_dim"),
                          self.size("q_lora_rank"), layers=layers, fields=("q_lora_rank", "head_dim"),
                          modules=self.named(f"{at}.wq_b"))  # fmt: skip
        if self.config.get("o_lora_rank"):
            k = replace(self.size("o_groups", "o_lora_rank", parts=self.ranks.tp), by_heads=True)
            yield Product("attention.o_b", "o", "dense", "row", self.hidden, k, layers=layers,
                          fields=("o_groups", "o_lora_rank"), modules=self.named(f"{at}.wo_b"))  # fmt: skip

    def delta_net(self) -> Iterator[Product]:
        """Gated delta nets (Qwen3-Next): four shards of one product, and the way out."""
        key = self.of_heads("linear_num_key_heads", "linear_key_head_dim")
        value = self.of_heads("linear_num_value_heads", "linear_value_head_dim")
        shards = (("q", key), ("k", key), ("v", value), ("z", value))
        layers, at = self.layers_of("linear_attention"), "linear_attn"
        fields = tuple(f"linear_{x}" for x in ("num_key_heads", "key_head_dim", "num_value_heads", "value_head_dim"))
        yield from self.column("gdn.in_proj_qkvz", "in_proj", shards, self.hidden, layers, fields,
                               f"{at}.in_proj_qkvz", whole_name=True)  # fmt: skip
        yield Product("gdn.out", "gdn_out", "dense", "row", self.hidden, value, layers=layers,
                      fields=fields[2:], modules=self.named(f"{at}.out_proj"))  # fmt: skip

    def mamba(self) -> Iterator[Product]:
        """Mamba-2 mixers: gate, input, B and C of each group, and one step a head."""
        config, tp = self.config, self.ranks.tp
        inner = self.of_heads("mamba_heads", "mamba_head_dim")
        groups = config.get("mamba_groups")
        if groups and (groups == 1 or groups % tp):
            state = self.size("mamba_state") if groups == 1 else Size(None, groups, tp, by_heads=True)
        else:
            state = self.size("mamba_groups", "mamba_state", parts=tp, by_heads=True)
        steps = self.size("mamba_heads", parts=tp, by_heads=True)
        shards = (("z", inner), ("x", inner), ("B", state), ("C", state), ("dt", steps))
        layers, at = self.layers_of("mamba"), "mixer"
        fields = tuple(map(config.spelling, ("mamba_heads", "mamba_head_dim", "mamba_groups", "mamba_state")))
        yield from self.column("mamba.in_proj", "in_proj", shards, self.hidden, layers, fields,
                               f"{at}.in_proj", whole_name=True)  # fmt: skip
        yield Product("mamba.out_proj", "mamba_out", "dense", "row", self.hidden, inner, layers=layers,
                      fields=fields[:2], modules=self.named(f"{at}.out_proj"))  # fmt: skip

    def mlp(self) -> Iterator[Product]:
        """The dense layers' MLP."""
        field, prefix = self.family.dense, "dense." if self.has_experts or self.family.expert else ""
        width = self.get(field)
        if not self.runs_dense(width):
            return
        size, layers = self.size(field, parts=self.ranks.tp), self.layers_of("dense")
        yield from self.gate_up(f"{prefix}gate_up", size, layers, field, "mlp", self.family.is_gated)
        yield Product(f"{prefix}down", "down", "dense", "row", self.hidden, size, layers=layers,
                      fields=(self.config.spelling(field),), modules=self.named("mlp.down_proj"))  # fmt: skip

    def runs_dense(self, width: int | None) -> bool:
        family, config = self.family, self.config
        if not width or not config.meaning.dense:
            return bool(not self.has_experts and not family.expert and self.hidden.value and self.layers
                        and width is None and not config.get("mamba_heads"))  # fmt: skip
        if family.experts_only:
            return False
        if not self.has_experts or family.beside:
            return True
        if family.dense_if_listed:
            return config.listed("mlp_only_layers") > 0 or (config.get("decoder_sparse_step") or 1) > 1
        pattern = config.values.get("hybrid_override_pattern")
        if isinstance(pattern, str) and pattern:
            return "-" in pattern
        return config.values.get("first_k_dense_replace") != 0

    def gate_up(self, name: str, size: Size, layers: int | None, field: str, at: str,
                is_gated: bool) -> Iterator[Product]:  # fmt: skip
        fields = (self.config.spelling(field),)
        if is_gated:
            shards = (("gate", size), ("up", size))
            yield from self.column(name, "gate_up", shards, self.hidden, layers, fields, f"{at}.{{}}_proj")
        else:
            yield Product(name.replace("gate_up", "up"), "up", "dense", "column", size, self.hidden,
                          layers=layers, fields=fields, modules=self.named(f"{at}.up_proj"))  # fmt: skip

    def experts(self) -> Iterator[Product]:
        """Routed experts, each split by its own ranks, and the shared ones."""
        family, config, ranks = self.family, self.config, self.ranks
        if family.expert and self.has_experts and (config.get(family.expert) or config.get("experts")):
            size = self.size(family.expert, parts=ranks.experts)
            if size.is_uneven and ranks.whole_blocks and size.whole and size.whole % 32 == 0:
                size = Size(-(-size.whole // 32 // ranks.experts) * 32, size.whole, ranks.experts)
            count, layers = config.get("experts"), self.layers_of("experts")
            copies = count / ranks.expert_parallel if count else None
            fields = (config.spelling(family.expert),)
            first, name = ("w1/w3", "gate_up") if family.is_gated else ("w1", "up")
            parts = ("gate_proj", "up_proj") if family.is_gated else ("up_proj",)
            yield Product(f"moe.{first}", f"expert_{name}", "expert", "column", size, self.hidden,
                          gated=family.is_gated, layers=layers, copies=copies, fields=fields,
                          modules=self.named(*(f"mlp.experts.0.{p}" for p in parts)))  # fmt: skip
            yield Product("moe.w2", "expert_down", "expert", "row", self.hidden, size,
                          gated=family.is_gated, layers=layers, copies=copies, fields=fields,
                          modules=self.named("mlp.experts.0.down_proj"))  # fmt: skip
        yield from self.shared_experts()

    def shared_experts(self) -> Iterator[Product]:
        family, config, parts = self.family, self.config, self.ranks.shared
        by_count = family.shared == "count * expert"
        if by_count:
            if not config.get("shared_count"):
                return
            size, field = self.size("shared_count", family.expert, parts=parts), family.expert
        else:
            field = family.shared
            if not field or not config.get(field):
                return
            size = self.size(field, parts=parts)
        layers = self.layers_of("experts")
        at = "mlp.shared_experts" if by_count else "mlp.shared_expert"
        yield from self.gate_up("shared.gate_up", size, layers, field, at, family.is_gated)
        yield Product("shared.down", "shared_down", "dense", "row", self.hidden, size, layers=layers,
                      fields=(config.spelling(field),), modules=self.named(f"{at}.down_proj"))  # fmt: skip

    def vocabulary(self) -> Iterator[Product]:
        size = self.size("vocab_size")
        if size.value is None:
            return
        n = Size(None, size.value, self.ranks.tp)
        for name, role, module in (("embedding", "embedding", "model.embed_tokens"), ("lm_head", "head", "lm_head")):
            tied = role == "head" and self.config.values.get("tie_word_embeddings") is True
            yield Product(name, role, "vocab", "column", n, self.hidden, layers=0 if tied else 1,
                          fields=(self.config.spelling("vocab_size"),), modules=(module,))  # fmt: skip

    # what products have in common

    def column(self, name: str, role: str, shards: tuple[tuple[str, Size], ...], k: Size,
               layers: int | None, fields: tuple[str, ...], at: str, split: str = "column",
               whole_name: bool = False) -> Iterator[Product]:  # fmt: skip
        """A product of several shards: fused into one where the engine does that, else apart."""
        names = {"q_a": "q_a", "kv_a": "kv_a"}
        modules = tuple(self.named(at if whole_name else at.format(names.get(s, s)))[0] for s, _ in shards)
        modules = tuple(m.replace("kv_a_proj", "kv_a_proj_with_mqa") for m in modules)
        if role not in self.ranks.fused and not whole_name:
            for (shard, size), module in zip(shards, modules, strict=True):
                apart = f"{name.rpartition('.')[0]}.{shard}".removeprefix(".")
                yield Product(apart, shard, "dense", split, size, k, layers=layers, fields=fields,
                              modules=(module,))  # fmt: skip
            return
        sizes = [size for _, size in shards]
        missing = tuple(dict.fromkeys(m for s in sizes for m in s.missing))
        values = [s.value for s in sizes]
        total = None if None in values else sum(v for v in values if v is not None)
        uneven = next((s for s in sizes if s.is_uneven), None)
        n = replace(uneven, value=None) if uneven else Size(total, missing=missing)
        yield Product(name, role, "dense", split, n, k, shards=shards, layers=layers, fields=fields,
                      modules=modules)  # fmt: skip

    def named(self, *suffixes: str) -> tuple[str, ...]:
        """A module's names with {} for the layer's number, as checkpoints have them."""
        return tuple(f"model.layers.{{}}.{suffix}" for suffix in suffixes)

    def layers_of(self, kind: str) -> int | None:
        """In how many layers a kind of product lies; None where the config does not say."""
        config, total = self.config, self.layers
        pattern = config.values.get("hybrid_override_pattern")
        if isinstance(pattern, str) and pattern:
            letters = {"attention": "*", "mamba": "M", "experts": "E", "dense": "-"}
            return pattern.count(letters[kind]) if kind in letters else total
        if total is None:
            return None
        if kind in ("dense", "experts"):
            if not self.has_experts or self.family.beside:
                return total
            first = config.get("first_k_dense_replace") or config.listed("mlp_only_layers")
            return min(first, total) if kind == "dense" else max(0, total - first)
        types = config.values.get("layer_types")
        if isinstance(types, list) and kind in ("attention", "linear_attention"):
            linear = sum(t == "linear_attention" for t in types)
            return linear if kind == "linear_attention" else len(types) - linear
        every = config.get("full_attention_interval")
        if every and config.get("linear_num_value_heads"):
            return total // every if kind == "attention" else total - total // every
        if kind == "linear_attention" or (kind == "mamba" and self.family.name != "hybrid"):
            return None
        return total


def products(config: Config, ranks: Ranks) -> tuple[Product, ...]:
    """The counts and products of a config on given ranks, counts first."""
    return tuple(Builder(config, ranks).all())

"""Llama shapes at the ranks and widths that compressors leave, as inventories without weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from gacprof.checkpoint.inventory import Contents, Inventory, TensorInfo
from gacprof.checkpoint.scanning import describe
from gacprof.core.dtypes import BY_NAME
from gacprof.demonstrating.models import PUBLISHED_RANKS

KEPT = 0.85
"""Share of the parameters that compression keeps: the papers' 15 % fewer (table A.5)."""
PERIOD = 4
"""Layers before the irregularity repeats: 28 published values are 4 layers of 7 projections."""
ALIGNMENT = 8
"""What naive repairs round and pad to: 16 bytes of a 16-bit type."""

DimSizes = Mapping[str, int]
"""Dim name (``model.layers.0.mlp:width``) → size."""


@dataclass(frozen=True)
class Shape:
    """A Llama's dims, and the workloads that it is timed at. ``scale`` says what it stands for."""

    scale: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    layers: int
    vocabulary: int
    dtype: str
    prefill: tuple[int, ...] = (128, 512, 1024, 4096)
    decode_batches: tuple[int, ...] = (1, 16)
    decode_steps: int = 32
    compiled_prefill: tuple[int, ...] = (128, 1024)
    compiled_layers: int = 2
    """Each layer has sizes of its own and is compiled anew; 0 leaves torch.compile out."""

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def itemsize(self) -> int:
        return BY_NAME[self.dtype].itemsize

    @property
    def prompt(self) -> int:
        """Tokens in the KV cache when decoding begins."""
        return min(self.prefill)

    @property
    def tokens(self) -> list[int]:
        """Rows of the activations in any workload: a prompt's tokens, or a decode batch."""
        return sorted({*self.prefill, *self.decode_batches})

    def as_dict(self) -> dict[str, Any]:
        """Plain data, as JSON gives it back."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


LLAMA_3_8B = Shape("Llama-3-8B", 4096, 14336, 32, 8, 32, 128256, "float16")
"""meta-llama/Meta-Llama-3-8B, config.json."""

LLAMA_3_8B_EIGHTH = Shape(
    "Llama-3-8B at an eighth of its width and 4 of its 32 layers",
    512, 1792, 4, 1, 4, 4096, "float32",
    prefill=(128, 512, 1024), compiled_prefill=(512,),
)  # fmt: skip
"""For a CPU. head_dim 128, four query heads to one of keys and MLP 3.5 × hidden are kept."""


def projections(shape: Shape) -> dict[str, tuple[int, int]]:
    """Projection → (out, in) features, in a layer's order."""
    h, kv, wide = shape.hidden, shape.kv_heads * shape.head_dim, shape.intermediate
    return {
        "self_attn.q_proj": (h, h),
        "self_attn.k_proj": (kv, h),
        "self_attn.v_proj": (kv, h),
        "self_attn.o_proj": (h, h),
        "mlp.gate_proj": (wide, h),
        "mlp.up_proj": (wide, h),
        "mlp.down_proj": (h, wide),
    }


def unaligned_ranks(shape: Shape) -> dict[str, int]:
    """A rank for every projection: 15 % fewer parameters, as uneven as the published ranks are."""
    share, wanted = _unevenness(), {}
    for i in range(shape.layers):
        row = share[i % PERIOD * 7 : i % PERIOD * 7 + 7]
        for (name, (out, deep)), uneven in zip(projections(shape).items(), row, strict=True):
            even = KEPT * out * deep / (out + deep)
            wanted[f"model.layers.{i}.{name}:rank"] = (even * uneven, out + deep)
    dense = shape.layers * sum(out * deep for out, deep in projections(shape).values())
    return _to_budget(wanted, KEPT * dense)


def unaligned_widths(shape: Shape) -> dict[str, int]:
    """A width for every MLP: 15 % fewer of its parameters, as uneven as the published ranks."""
    share = _unevenness()
    wanted = {
        f"model.layers.{i}.mlp:width": (KEPT * shape.intermediate * share[i % PERIOD * 7], 1)
        for i in range(shape.layers)
    }
    return _to_budget(wanted, KEPT * shape.intermediate * shape.layers)


def rounded(sizes: DimSizes) -> dict[str, int]:
    """Each to the nearest multiple of 8."""
    half = ALIGNMENT // 2
    return {n: max(ALIGNMENT, (s + half) // ALIGNMENT * ALIGNMENT) for n, s in sizes.items()}


def padded(sizes: DimSizes) -> dict[str, int]:
    """Each to the next multiple of 8: the papers' minimal repair."""
    return {name: -(-size // ALIGNMENT) * ALIGNMENT for name, size in sizes.items()}


def inventory_of(shape: Shape, sizes: DimSizes, name: str = "<shapes>") -> Inventory:
    """The inventory of a Llama with these ranks or widths, every other weight dense."""
    tensors = {
        tensor: TensorInfo(tensor, dims, shape.dtype, name, None, shape.itemsize * prod(dims))
        for tensor, dims in _tensors(shape, sizes)
    }
    return describe(name, Contents(tensors, _config(shape, sizes), container="shapes"))


def _tensors(shape: Shape, sizes: DimSizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (shape.vocabulary, shape.hidden)
    yield "lm_head.weight", (shape.vocabulary, shape.hidden)
    yield "model.norm.weight", (shape.hidden,)
    for i in range(shape.layers):
        layer = f"model.layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{norm}.weight", (shape.hidden,)
        width = sizes.get(f"{layer}.mlp:width", shape.intermediate)
        for name, (out, deep) in projections(shape).items():
            if name.startswith("mlp."):
                out, deep = (out, width) if name.endswith("down_proj") else (width, deep)
            rank = sizes.get(f"{layer}.{name}:rank")
            if rank is None:
                yield f"{layer}.{name}.weight", (out, deep)
            else:
                yield f"{layer}.{name}.BLinear.weight", (rank, deep)
                yield f"{layer}.{name}.ALinear.weight", (out, rank)


def _config(shape: Shape, sizes: DimSizes) -> dict[str, Any]:
    ranks = {n.removesuffix(":rank"): s for n, s in sizes.items() if n.endswith(":rank")}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": shape.dtype,
        **({"truncation_ranks": ranks} if ranks else {}),
    }


def _unevenness() -> list[float]:
    """The 28 published ranks over their mean."""
    mean = sum(PUBLISHED_RANKS) / len(PUBLISHED_RANKS)
    return [rank / mean for rank in PUBLISHED_RANKS]


def _to_budget(wanted: Mapping[str, tuple[float, int]], parameters: float) -> dict[str, int]:
    """(size, parameters per unit) by name → whole sizes that together keep to ``parameters``."""
    factor = parameters / sum(size * cost for size, cost in wanted.values())
    return {name: max(1, round(size * factor)) for name, (size, _) in wanted.items()}

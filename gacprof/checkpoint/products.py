"""A checkpoint's matrix products as one rank computes them: their local shapes, and in which dtype.

Tensor parallelism after Megatron splits q, k, v, gate and up along N, o and down along K; of keys
and values there are no more shards than heads. What a rank holds is what its GPU serves: a width of
1368 at eight ranks is one of 171.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from gacprof.checkpoint.inventory import AttentionHeads, Gemm, Inventory, Module
from gacprof.core.dtypes import full_name
from gacprof.core.errors import PlanError
from gacprof.core.points import DTYPES
from gacprof.demands.quantisation import Scheme

Split = Literal["column", "row", "replicated"]
SPLITS: Mapping[str, Split] = {
    **dict.fromkeys(("q", "k", "v", "qkv", "gate", "up", "gate_up"), "column"),
    **dict.fromkeys(("o", "down"), "row"),
}
"""What tensor parallelism splits along N (column) and along K (row), by role (Megatron's scheme);
all else every rank holds whole."""

BY_BLOCKS = (
    "its 8-bit weights have scales by block: they are judged as products with one scale; engines "
    "serve blocks by kernels of their own, whose demands 'gacprof lint' knows"
)


SHARED_OUT = (
    "engines pad the vocabulary before ranks share it: the head's outputs are not judged "
    "('gacprof lint' knows what an engine does)"
)


class LocalProducts:
    """How ``tp`` ranks share the products of a checkpoint, and what these are computed in.

    ``computed`` is the dtype that most products are computed in; ``notes`` say what that leaves
    out.
    """

    def __init__(self, inventory: Inventory, tp: int = 1) -> None:
        self.tp, scheme, plain = tp, inventory.scheme, _plain_dtype(inventory)
        self._keys = {
            gemm.weight: (*shards_of(module, tp, inventory.attentions),
                          _computed(module.dtype, scheme, plain))
            for module in inventory.modules for gemm in module.gemms
        }  # fmt: skip
        self.notes = [BY_BLOCKS] if scheme and scheme.kind == "fp8_block" else []
        self.notes += [SHARED_OUT] if tp > 1 else []
        counts = Counter(dtype for *_, dtype in self._keys.values())
        self.computed = max(counts, key=lambda dtype: counts[dtype], default=plain)

    @property
    def dtypes(self) -> list[str]:
        """All that products are computed in."""
        return sorted({dtype for *_, dtype in self._keys.values()})

    def shards(self, weight: str) -> tuple[int, int]:
        """How many ranks share N, and K, of the product of this weight."""
        return self._keys[weight][:2] if weight in self._keys else (1, 1)

    def dtype_of(self, weight: str) -> str:
        """What the product of this weight is computed in."""
        return self._keys[weight][2] if weight in self._keys else self.computed

    def key(self, gemm: Gemm) -> tuple[object, ...]:
        """What, beside its shape, tells a product's time from another's."""
        return (*self.shards(gemm.weight), self.dtype_of(gemm.weight))

    def local(self, gemm: Gemm) -> tuple[int, int] | None:
        """(N, K) on one rank; None where the shards cannot divide them."""
        on_n, on_k = self.shards(gemm.weight)
        if gemm.N % on_n or gemm.K % on_k:
            return None
        return gemm.N // on_n, gemm.K // on_k


def check_heads(
    inventory: Inventory,
    tp: int,
    refused: Callable[[AttentionHeads, int], str | None] | None = None,
    asked: str = "",
) -> None:
    """Raises :class:`PlanError` where ``tp`` ranks cannot share the attention's heads whole.

    ``refused`` is an engine's rule: which heads so many ranks cannot share, and who says so. By
    default heads of keys and values that are fewer than the ranks are held several times over.
    """
    refused = refused or _not_whole
    for a in inventory.attentions:
        heads = refused(a, tp)
        if heads is not None:
            fits = [str(n) for n in range(1, a.heads + 1) if refused(a, n) is None]
            raise PlanError(
                f"{asked}{tp} {'shards' if asked else 'ranks'} cannot share the {heads} of layer "
                f"{a.layer}: ask for tp of {', '.join(fits)}"
            )


def _not_whole(a: AttentionHeads, tp: int) -> str | None:
    whole = a.heads % tp == 0 and (a.kv_heads % tp == 0 or tp % a.kv_heads == 0)
    return None if whole else f"{a.heads} heads ({a.kv_heads} of keys and values)"


def split_of(module: Module) -> Split:
    """How ranks share the module's product. Factor pairs are held whole by every rank."""
    if len(module.gemms) > 1:
        return "replicated"
    return SPLITS.get(module.role.removeprefix("expert_"), "replicated")


def shards_of(module: Module, tp: int, attentions: Iterable[AttentionHeads]) -> tuple[int, int]:
    """How many of ``tp`` ranks share N, and K, of the module's product: of keys and values no more
    than there are heads."""
    split = split_of(module)
    if module.role.removeprefix("expert_") in ("k", "v"):
        heads = (a.kv_heads for a in attentions if a.layer == module.layer)
        tp = min(tp, next(heads, tp))
    return (tp if split == "column" else 1), (tp if split == "row" else 1)


EIGHT_BIT = {"float8_e4m3fn": "float8_e4m3", "int8": "int8"}
"""Stored dtypes whose products are computed in 8 bits too, where the activations are quantised."""
_ACTIVATIONS_TOO = {"fp8_tensor", "fp8_channel", "fp8_block", "mxfp8", "int8_w8a8"}
"""Kinds of schemes that quantise activations with the weights (transformers: FineGrainedFP8Config,
FbgemmFp8Config; compressed-tensors: ``input_activations``)."""


def _computed(stored: str, scheme: Scheme | None, plain: str) -> str:
    """What a product of weights of this stored dtype is computed in.

    8-bit weights are multiplied as they are where the activations are quantised too; all other
    packed weights are turned into ``plain`` first. Where the checkpoint does not say, float8 is
    multiplied as it is, and int8 is not.
    """
    if stored not in EIGHT_BIT:
        return stored if stored in DTYPES else plain
    kinds = (
        {each.kind for each in (scheme, *(one for _, one in scheme.groups))} if scheme else set()
    )
    too = bool(kinds & _ACTIVATIONS_TOO)
    if scheme and scheme.name in ("bitsandbytes", "bnb"):  # LLM.int8
        too = True
    elif not (scheme and scheme.tool == "ct"):
        too = too or stored != "int8"
    return EIGHT_BIT[stored] if too else plain


def _plain_dtype(inventory: Inventory) -> str:
    """What is not quantised is computed in: most tensors' own dtype, else the config's word."""
    counts = Counter(m.dtype for m in inventory.modules if m.gemms and m.dtype in DTYPES)
    counts.pop("int8", None)
    said = inventory.config.get("dtype") or inventory.config.get("torch_dtype")
    named = full_name(said) if isinstance(said, str) else ""
    most = max(counts, key=lambda dtype: counts[dtype], default="")
    return most or (named if named in DTYPES else "bfloat16")

"""Quantised weights: recognised, given their true sizes, and never resized.

Zeros would enter the scales and the packing of a group, so no dim of such a layer may change:
resize before quantising. Several formats pack weights, and each keeps other tensors beside them:

GPTQ                 ``X.qweight`` int32 [in·bits/32, out], ``qzeros`` [groups, out·bits/32]
AWQ                  ``X.qweight`` int32 [in, out·bits/32], the others as GPTQ
compressed-tensors   ``X.weight_packed`` int32 [out, in·bits/32] or, NVFP4, uint8 [out, in/2]
bitsandbytes 4 bit   ``X.weight`` uint8 [out·in/2, 1], flat, beside ``X.weight.absmax``
bitsandbytes 8 bit   ``X.weight`` int8 [out, in] beside ``X.SCB`` [out]
HQQ                  ``X.W_q``, flat, beside ``X.scale`` and ``X.zero``
Quanto               ``X.weight._data`` int8 [out, in], or flat ``X.weight._data._data``
MXFP4                ``X_blocks`` uint8 [experts, out, in/32, 16] beside ``X_scales``
any other            ``X.weight`` int8 or uint8 [out, in]

Where a weight is packed flat its sides are the config's, if their product is what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.layouts.declared import config_of_part, count
from gacprof.checkpoint.layouts.layout import Layout
from gacprof.checkpoint.layouts.linear import Linear, Packed, bias_of
from gacprof.checkpoint.layouts.names import is_embedding, role_of
from gacprof.core.points import MAX_DIM

FROZEN = "its weight is quantised; resize before quantising, then quantise again"


class Quantised(Layout):
    """Packed or integer weights, whatever tool wrote them."""

    name = "quantised"

    def found(self, contents: Contents) -> Iterator[Linear]:
        for name in contents.tensors:
            for suffix, read in _FORMATS.items():
                module = name.removesuffix(suffix)
                packed = read(contents, module) if module != name else None
                if packed and 0 < packed.out_features <= MAX_DIM >= packed.in_features > 0:
                    biases = bias_of(contents, module)
                    yield Linear(module, (name,), biases=biases, packed=packed, frozen=FROZEN)

    def recognise(self, contents: Contents) -> bool:
        marked = any(name.endswith(_MARKS) for name in contents.tensors)
        return marked or super().recognise(contents)

    def notes(self, contents: Contents, found: Sequence[Linear]) -> Iterator[str]:
        kinds = sorted({linear.packed.kind for linear in found if linear.packed})
        yield (
            f"{len(found)} weights are quantised ({', '.join(kinds) or 'of unknown kind'}): "
            "they run in dequantising kernels, not in plain GEMMs: nothing to realign in them"
        )
        known = {tensor for linear in found for tensor in linear.outer}
        odd = [n for n in contents.tensors if n.endswith(_MARKS) and n not in known]
        if odd:
            yield f"{len(odd)} packed weights are not understood, {odd[0]} the first"


def _shape(contents: Contents, name: str) -> tuple[int, ...]:
    """The shape of a tensor; () where there is none."""
    info = contents.tensors.get(name)
    return () if info is None else info.shape


def _int32(contents: Contents, module: str) -> Packed | None:
    """GPTQ and AWQ. The number of bits follows from ``qzeros``, so that no config is needed."""
    shapes = [_shape(contents, f"{module}.{part}") for part in ("qweight", "qzeros", "scales")]
    if any(len(shape) != 2 for shape in shapes):
        return None
    (rows, columns), (_, zeros), (_, n_out) = shapes
    if not n_out or not zeros or 32 * zeros % n_out:
        return None
    bits = 32 * zeros // n_out
    dtype = f"int{bits}"
    if columns == n_out:
        return Packed(n_out, rows * 32 // bits, dtype, f"GPTQ {dtype}")
    return Packed(n_out, rows, dtype, f"AWQ {dtype}") if columns == zeros else None


def _compressed(contents: Contents, module: str) -> Packed | None:
    """compressed-tensors: the bits are the config's, else those with which the sides fit."""
    name = f"{module}.weight_packed"
    shape = _shape(contents, name)
    if len(shape) != 2:
        return None
    if contents.tensors[name].dtype == "uint8":
        return Packed(shape[0], shape[1] * 2, "fp4", "compressed-tensors fp4")
    expected = _sides(contents, module)
    fitting = [b for b in (2, 4, 8) if expected == (shape[0], shape[1] * 32 // b)]
    bits = (contents.scheme and contents.scheme.weight_bits) or (fitting[0] if fitting else 4)
    n_in = expected[1] if fitting and expected else shape[1] * 32 // bits
    return Packed(shape[0], n_in, f"int{bits}", f"compressed-tensors int{bits}")


def _plain_weight(contents: Contents, module: str) -> Packed | None:
    """bitsandbytes, and weights of whole numbers as they are."""
    name = f"{module}.weight"
    info = contents.tensors[name]
    if info.dtype not in ("int8", "uint8") or len(info.shape) != 2 or is_embedding(module):
        return None
    if f"{name}.absmax" in contents.tensors:
        kind = "fp4" if f"{name}.quant_state.bitsandbytes__fp4" in contents.tensors else "nf4"
        return _flat(contents, module, ".weight", (2,), "bitsandbytes", kind)
    tool = "bitsandbytes " if f"{module}.SCB" in contents.tensors else ""
    return Packed(*info.shape, info.dtype, tool + info.dtype) if info.numel else None


def _quanto(contents: Contents, module: str) -> Packed | None:
    shape = _shape(contents, f"{module}.weight._data")
    return Packed(*shape, "int8", "Quanto int8") if len(shape) == 2 else None


def _mxfp4(contents: Contents, module: str) -> Packed | None:
    shape = _shape(contents, f"{module}_blocks")
    if len(shape) != 4 or _shape(contents, f"{module}_scales") != shape[:3]:
        return None
    return Packed(shape[1], shape[2] * shape[3] * 2, "mxfp4", "MXFP4")


def _flat(
    contents: Contents, module: str, suffix: str, per: Sequence[int], tool: str, dtype: str = ""
) -> Packed | None:
    """A weight whose entries hold one of ``per`` values each: its sides are the config's, if they
    fit."""
    sides, entries = _sides(contents, module), contents.tensors[module + suffix].numel
    for held in per:
        if sides and entries * held == sides[0] * sides[1]:
            packed_as = dtype or f"int{8 // held or 3}"  # HQQ puts ten of 3 bits in an int32
            return Packed(*sides, packed_as, f"{tool} {packed_as}")
    return None


def _sides(contents: Contents, module: str) -> tuple[int, int] | None:
    """(out, in) that the config makes of a layer of this role."""
    config = config_of_part(contents.config, module)
    hidden, width = count(config, "hidden_size"), count(config, "intermediate_size")
    heads = count(config, "num_attention_heads")
    head_dim = count(config, "head_dim") or (hidden // heads if hidden and heads else None)
    kv_heads = count(config, "num_key_value_heads") or heads
    q = heads * head_dim if heads and head_dim else None
    kv = kv_heads * head_dim if kv_heads and head_dim else None
    n_out: dict[str, int | None] = {
        **dict.fromkeys(("k", "v"), kv),
        **dict.fromkeys(("gate", "up"), width),
        **dict.fromkeys(("o", "down"), hidden),
        "q": q,
        "qkv": q + 2 * kv if q and kv else None,
        "gate_up": width and 2 * width,
        "head": count(config, "vocab_size"),
    }
    role = role_of(module).removeprefix("expert_")
    first, second = n_out.get(role), {"o": q, "down": width}.get(role, hidden)
    return (first, second) if first and second else None


_FORMATS: dict[str, Callable[[Contents, str], Packed | None]] = {
    ".qweight": _int32,
    ".weight_packed": _compressed,
    ".weight": _plain_weight,
    ".W_q": lambda c, module: _flat(c, module, ".W_q", (1, 2, 4, 8, 10), "HQQ"),
    ".weight._data._data": lambda c, m: _flat(c, m, ".weight._data._data", (2, 4), "Quanto"),
    ".weight._data": _quanto,
    "_blocks": _mxfp4,
}
"""By what the weight's name ends with."""

_MARKS = (".qweight", ".weight_packed", ".W_q", ".weight._data", ".weight._data._data")
"""Names that nothing but a packed weight has."""

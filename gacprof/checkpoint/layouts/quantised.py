"""Quantised weights: recognised, described at their true sizes, and never resized.

Zeros would enter the scales and the packing of a group, so no dim of such a layer may change:
resize before quantising. Formats and where their sizes stand:

GPTQ                 ``X.qweight`` int32 [in·bits/32, out], ``qzeros`` [groups, out·bits/32]
AWQ                  ``X.qweight`` int32 [in, out·bits/32], the others as GPTQ
compressed-tensors   ``X.weight_packed`` int32 [out, in·bits/32] or, NVFP4, uint8 [out, in/2]
MXFP4                ``X_blocks`` uint8 [experts, out, in/32, 16] beside ``X_scales``
Quanto, bitsandbytes ``X.weight._data``, ``X.weight`` int8 [out, in]

Weights that are packed flat (bitsandbytes' 4 bits, HQQ) have no sides: they are no modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.layouts.linear import Linear, bias_of
from gacprof.checkpoint.layouts.names import is_embedding
from gacprof.core.points import MAX_DIM

Packing = tuple[int, int, str]
"""Out and in features, and the element type as its tool calls it."""

_WHY = "its weight is quantised; resize before quantising, then quantise again"
_MARKS = (".qweight", ".weight_packed", ".weight._data", ".W_q", ".weight.absmax")
"""Endings of names that nothing but a quantised weight, or what stands beside it, has."""


def is_quantised(contents: Contents) -> bool:
    return any(name.endswith(_MARKS) for name in contents.tensors)


def packed_linears(contents: Contents) -> list[Linear]:
    """The layers whose weights are packed, or whole numbers."""
    linears = []
    for name in contents.tensors:
        for ending, read in _FORMATS.items():
            module = name.removesuffix(ending)
            packing = read(contents, module, name) if module != name else None
            if packing is None or not 0 < min(packing[:2]) <= max(packing[:2]) <= MAX_DIM:
                continue
            n_out, n_in, dtype = packing
            biases = bias_of(contents, module)
            linear = Linear(
                module,
                (name,),
                n_out,
                n_in,
                dtype,
                per_output=n_in + len(biases),
                per_input=n_out,
                biases=biases,
                packed=True,
                why=_WHY,
            )
            linears.append(linear)
    return linears


def _int32(contents: Contents, module: str, weight: str) -> Packing | None:
    """GPTQ and AWQ: the number of bits follows from ``qzeros``."""
    names = (weight, f"{module}.qzeros", f"{module}.scales")
    shapes = [contents.shape(name) for name in names if name in contents.tensors]
    if [len(shape) for shape in shapes] != [2, 2, 2]:
        return None
    (rows, columns), (_, zeros), (_, n_out) = shapes
    bits, rest = divmod(32 * zeros, n_out or 1)
    if rest or not bits:
        return None
    if columns == n_out:
        return n_out, rows * 32 // bits, f"int{bits}"
    return (n_out, rows, f"int{bits}") if columns == zeros else None


def _compressed(contents: Contents, module: str, weight: str) -> Packing | None:
    """compressed-tensors: the bits are those of the config's first group, else 4."""
    info = contents.tensors[weight]
    if len(info.shape) != 2:
        return None
    n_out, columns = info.shape
    if info.dtype == "uint8":
        return n_out, columns * 2, "fp4"
    groups = dict(contents.config.get("quantization_config") or {}).get("config_groups") or {}
    bits = [group["weights"]["num_bits"] for group in groups.values() if "weights" in group] or [4]
    return n_out, columns * 32 // bits[0], f"int{bits[0]}"


def _whole_numbers(contents: Contents, module: str, weight: str) -> Packing | None:
    info = contents.tensors[weight]
    is_packed = info.dtype in ("int8", "uint8") and len(info.shape) == 2
    is_flat = f"{weight}.absmax" in contents.tensors
    if not is_packed or is_flat or is_embedding(module):
        return None
    return *info.shape, info.dtype  # type: ignore[return-value]


def _mxfp4(contents: Contents, module: str, weight: str) -> Packing | None:
    shape, scales = contents.shape(weight), contents.tensors.get(f"{module}_scales")
    if len(shape) != 4 or scales is None or scales.shape != shape[:3]:
        return None
    return shape[1], shape[2] * shape[3] * 2, "mxfp4"


_FORMATS: Mapping[str, Callable[[Contents, str, str], Packing | None]] = {
    ".qweight": _int32,
    ".weight_packed": _compressed,
    ".weight": _whole_numbers,
    ".weight._data": _whole_numbers,
    "_blocks": _mxfp4,
}
"""By what the weight's name ends with."""

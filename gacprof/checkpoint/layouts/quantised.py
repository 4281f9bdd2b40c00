"""Quantised weights: recognised, described at their true sizes, and never resized.

Zeros would enter the scales and the packing of a group, so no dim of such a layer may change:
resize before quantising. Formats and where their sizes stand:

GPTQ                 ``X.qweight`` int32 [in·bits/32, out], ``qzeros`` [groups, out·bits/32]
AWQ                  ``X.qweight`` int32 [in, out·bits/32], the others as GPTQ
compressed-tensors   ``X.weight_packed`` int32 [out, in·4/32], uint8 [out, in/2] of NVFP4
LLM.int8, Quanto     ``X.weight``, ``X.weight._data`` int8 [out, in]

Weights that are packed flat (bitsandbytes' 4 bits, HQQ) have no sides: they are no modules.
"""

from __future__ import annotations

from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.layouts.linear import Linear
from gacprof.checkpoint.layouts.names import is_embedding

_WHY = "its weight is quantised; resize before quantising, then quantise again"
_ENDINGS = (".qweight", ".weight_packed", ".weight._data", ".weight")


def packed_linears(contents: Contents) -> list[Linear]:
    """The layers whose weights are packed, or whole numbers."""
    linears = []
    for name, info in contents.tensors.items():
        ending = next((ending for ending in _ENDINGS if name.endswith(ending)), "")
        module = name.removesuffix(ending)
        if not ending or len(info.shape) != 2 or is_embedding(module):
            continue
        (n_out, n_in), bits = info.shape, 0
        if ending == ".qweight":
            n_out, n_in, bits = _gptq_or_awq(contents, module)
        elif ending == ".weight_packed":
            bits = 4
            n_in *= 2 * info.nbytes // max(1, info.numel)
        elif info.dtype in ("int8", "uint8") and f"{name}.absmax" not in contents.tensors:
            bits = 8
        if bits and n_out and n_in:
            dtype = f"int{bits}"
            linears.append(Linear(module, (name,), n_out, n_in, dtype, n_in, n_out, why=_WHY))
    return linears


def _gptq_or_awq(contents: Contents, module: str) -> tuple[int, int, int]:
    """Out and in features and bits; the bits follow from ``qzeros``. Zeros where they do not."""
    names = [f"{module}.{part}" for part in ("qweight", "qzeros", "scales")]
    shapes = [contents.shape(name) for name in names if name in contents.tensors]
    if len(shapes) < 3 or any(len(shape) != 2 for shape in shapes):
        return 0, 0, 0
    (rows, columns), (_, zeros), (_, n_out) = shapes
    bits = 32 * zeros // max(1, n_out)
    if columns == zeros:  # AWQ
        return n_out, rows, bits
    return n_out, rows * 32 // max(1, bits), bits

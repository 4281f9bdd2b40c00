"""GPTQ and AWQ: ``X.qweight`` holds several weights in each int32.

GPTQ packs along the inputs: qweight [in·bits/32, out], with scales [groups, out]. AWQ packs
along the outputs: qweight [in, out·bits/32]. The number of bits follows from ``qzeros``
[groups, out·bits/32], so that no config is needed. Sizes are told as the layer has them; no
dim may be changed, since zeros would enter the groups' scales and packing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.assemble import assemble
from gacprof.checkpoint.layouts.base import Contents, Findings, Sizes
from gacprof.checkpoint.layouts.linear import Linear, Packed, bias_of, dense_linears
from gacprof.checkpoint.layouts.plain import mirror_config

_WHY = "its weight is quantised and packed; resize before quantising, then quantise again"


class Quantised:
    name = "quantised"

    def recognise(self, contents: Contents) -> bool:
        return any(name.endswith(".qweight") for name in contents.tensors)

    def describe(self, contents: Contents) -> Findings:
        packed = list(_packed(contents))
        found = {linear.name for linear in packed}
        odd = [
            name
            for name in contents.tensors
            if name.endswith(".qweight") and name.removesuffix(".qweight") not in found
        ]
        notes = [
            f"{len(packed)} weights are packed ({_methods(packed, contents)}): they run in "
            "dequantising kernels, not in plain GEMMs, and are not realigned"
        ]
        if odd:
            notes.append(f"{len(odd)} packed weights are not understood, {odd[0]} the first")
        return assemble(contents, [*packed, *dense_linears(contents, packed)], notes=notes)

    def mirror(self, inventory: Inventory, sizes: Sizes) -> dict[str, dict[str, Any]]:
        return mirror_config(inventory, sizes)


def _packed(contents: Contents) -> Iterator[Linear]:
    for name in contents.tensors:
        module = name.removesuffix(".qweight")
        if module == name:
            continue
        packed = _true_shape(contents, module)
        if packed is not None:
            biases = bias_of(contents, module)
            yield Linear(module, (name,), biases=biases, packed=packed, frozen=_WHY)


def _true_shape(contents: Contents, module: str) -> Packed | None:
    """The sizes of a packed layer, from its qweight, qzeros and scales."""
    shapes = [
        contents.tensors[f"{module}.{part}"].shape
        for part in ("qweight", "qzeros", "scales")
        if f"{module}.{part}" in contents.tensors
    ]
    if len(shapes) != 3 or any(len(shape) != 2 for shape in shapes):
        return None
    (rows, columns), (_, zeros), (_, n_out) = shapes
    if not n_out or not zeros or 32 * zeros % n_out:
        return None
    bits = 32 * zeros // n_out
    if columns == n_out:
        return Packed(n_out, rows * 32 // bits, f"int{bits}")
    if columns == zeros:
        return Packed(n_out, rows, f"int{bits}")
    return None


def _methods(packed: list[Linear], contents: Contents) -> str:
    kinds = {
        f"{'GPTQ' if contents.shape(p.outer[0])[1] == p.packed.out_features else 'AWQ'} "
        f"{p.packed.dtype}"
        for p in packed
        if p.packed
    }
    return ", ".join(sorted(kinds)) or "of unknown kind"

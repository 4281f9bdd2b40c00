"""What :func:`gacprof.load_model` builds: ``X.inner`` [r, in] runs first, ``X.outer`` [out, r] or,
for groups, ``X.outer.{i}`` second. Met as a model in memory, or as a state dict saved from one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.assemble import assemble
from gacprof.checkpoint.layouts.asvd import Asvd
from gacprof.checkpoint.layouts.base import Contents, Findings, Sizes
from gacprof.checkpoint.layouts.linear import Linear, bias_of, dense_linears
from gacprof.checkpoint.layouts.names import role_of
from gacprof.checkpoint.layouts.palu import Palu

_INNER = ".inner.weight"


class Loaded:
    name = "gacprof"

    def recognise(self, contents: Contents) -> bool:
        return any(True for _ in _pairs(contents))

    def describe(self, contents: Contents) -> Findings:
        pairs = list(_pairs(contents))
        linears = [*pairs, *dense_linears(contents, pairs)]
        return assemble(contents, linears, ordered=False)

    def mirror(self, inventory: Inventory, sizes: Sizes) -> dict[str, dict[str, Any]]:
        """The config of the tool that the model came from, which it still has."""
        tool = Palu() if "head_wise_ranks" in inventory.config else Asvd()
        return tool.mirror(inventory, sizes)


def _pairs(contents: Contents) -> Iterator[Linear]:
    for name in contents.tensors:
        module = name.removesuffix(_INNER)
        if module == name or role_of(module) == "other":
            continue
        outer = [f"{module}.outer"] if f"{module}.outer.weight" in contents.tensors else []
        while not outer or outer[-1] != f"{module}.outer":
            following = f"{module}.outer.{len(outer)}"
            if f"{following}.weight" not in contents.tensors:
                break
            outer.append(following)
        if outer:
            biases = tuple(bias for part in outer for bias in bias_of(contents, part))
            yield Linear(
                module,
                tuple(f"{part}.weight" for part in outer),
                inner=name,
                biases=biases if len(biases) == len(outer) else (),
            )

"""Factor pairs of tools that are not known: ``u`` [out, r] and ``v`` [r, in] that fit.

Two ways to find them. The user gives a pair of name patterns; or exactly two matrices stand
where one weight of a known role would (``q_proj.U``/``q_proj.V``, ``fc1_a``/``fc1_b``) and fit
in one order only, with a rank no larger than the layer's sizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from gacprof.checkpoint.dtypes import FLOATING
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.assemble import assemble
from gacprof.checkpoint.layouts.base import Contents, Findings, Sizes
from gacprof.checkpoint.layouts.linear import Linear, bias_of, dense_linears
from gacprof.checkpoint.layouts.names import parent_of, role_of
from gacprof.checkpoint.layouts.plain import mirror_config
from gacprof.core.errors import CheckpointError

_SUFFIXED = re.compile(r"(.*(?:_proj|fc1|fc2))_([A-Za-z0-9]{1,10})", re.DOTALL)
_NOT_FACTORS = ("lora_", "base_layer", "adapter")


class Generic:
    name = "factor-pairs"

    def recognise(self, contents: Contents) -> bool:
        return any(True for _ in _pairs(contents))

    def describe(self, contents: Contents) -> Findings:
        pairs = list(_pairs(contents))
        linears = [*pairs, *dense_linears(contents, pairs)]
        note = (
            f"{len(pairs)} factor pairs were found by their shapes; the tool that wrote them is "
            "not known"
        )
        return assemble(contents, linears, ordered=False, notes=[note])

    def mirror(self, inventory: Inventory, sizes: Sizes) -> dict[str, dict[str, Any]]:
        return mirror_config(inventory, sizes)


def _pairs(contents: Contents) -> Iterator[Linear]:
    return _by_pattern(contents) if contents.factors else _by_shape(contents)


def _by_pattern(contents: Contents) -> Iterator[Linear]:
    """Pairs that the user's patterns ``(outer, inner)`` name."""
    outer, inner = contents.factors or ("", "")
    if outer.count("{module}") != 1 or inner.count("{module}") != 1:
        raise CheckpointError(
            f"factor patterns {outer!r} and {inner!r}: each needs {{module}} once, as in "
            "'{module}.U.weight'"
        )
    before, after = outer.split("{module}")
    found = 0
    for name in contents.tensors:
        if not (name.startswith(before) and name.endswith(after)):
            continue
        module = name[len(before) : len(name) - len(after)]
        other = inner.replace("{module}", module)
        if module and other in contents.tensors:
            found += 1
            if not _fit(contents, name, other):
                raise CheckpointError(
                    f"{name} {list(contents.shape(name))} times {other} "
                    f"{list(contents.shape(other))}: the factors do not fit"
                )
            biases = bias_of(contents, name.removesuffix(".weight"))
            yield Linear(module, (name,), inner=other, biases=biases)
    if not found:
        raise CheckpointError(f"factor patterns {outer!r} and {inner!r} match no pair of tensors")


def _by_shape(contents: Contents) -> Iterator[Linear]:
    candidates: dict[str, list[str]] = {}
    for name, info in contents.tensors.items():
        if len(info.shape) == 2 and info.dtype in FLOATING:
            module = _factored_module(name.removesuffix(".weight"))
            if module:
                candidates.setdefault(module, []).append(name)
    for module, names in candidates.items():
        if len(names) != 2 or f"{module}.weight" in contents.tensors:
            continue
        if any(word in name for name in names for word in _NOT_FACTORS):
            continue
        orders = [pair for pair in (names, names[::-1]) if _fit(contents, *pair)]
        if len(orders) == 1:
            outer, inner = orders[0]
            yield Linear(
                module,
                (outer,),
                inner=inner,
                biases=bias_of(contents, outer.removesuffix(".weight")),
                frozen=_stranger(contents, module, inner),
            )


def _factored_module(name: str) -> str | None:
    """The layer of a known role that the tensor ``name`` would be a factor of."""
    parent = parent_of(name)
    if role_of(parent) != "other":
        return parent
    found = _SUFFIXED.fullmatch(name)
    return found.group(1) if found and role_of(found.group(1)) != "other" else None


def _fit(contents: Contents, outer: str, inner: str) -> bool:
    """Whether outer·inner is a product of rank no larger than its sides."""
    u, v = contents.shape(outer), contents.shape(inner)
    return len(u) == len(v) == 2 and u[1] == v[0] and 0 < u[1] <= min(u[0], v[1])


def _stranger(contents: Contents, module: str, inner: str) -> str:
    """Why the rank may not change: something between the factors has its size too."""
    rank = contents.shape(inner)[0]
    for name in contents.tensors:
        if name.startswith((f"{module}.", f"{module}_")) and contents.shape(name) == (rank,):
            if name.endswith(".bias") and rank in contents.shape(
                name.removesuffix("bias") + "weight"
            ):
                continue
            return f"{name} has the rank's size and its meaning is not known"
    return ""

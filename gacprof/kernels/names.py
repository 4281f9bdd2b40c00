"""Kernel names → identities, and the kernels of one call → groups.

A name is taken apart (:mod:`signature`), the first row that claims it (:mod:`families`) says
what family it is of, and that family's reader fills in the rest. A name that no row
claims is ``unknown`` and kept. Nothing here raises: names come from libraries not yet written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from gacprof.core.files import Record
from gacprof.kernels.families import FAMILIES
from gacprof.kernels.kernel import Kernel
from gacprof.kernels.signature import LONGEST, take_apart

COMPLETES = {
    "split_k_reduce": ("gemm", "gemv"),
    "epilogue": ("gemm", "gemv"),
    "dot_reduce": ("dot",),
    "attention_combine": ("attention",),
    "attention_convert": ("attention_backward",),
}
"""Roles that complete the work of a kernel before them → the roles that they complete."""
PAD_ROLES = ("fill", "copy", "pad")
"""Roles that ``constant_pad_nd`` is made of: it fills, then copies (ATen PadNd.cpp)."""


@lru_cache(maxsize=16384)
def parse(name: str) -> Kernel:
    """What ``name`` says. Unknown names give ``provider="unknown"``; never raises.

    No more is read of a name longer than any kernel's, or with a number of a thousand digits.
    """
    if len(name) > LONGEST or re.search(r"\d{1000}", name):
        return Kernel(name)
    signature = take_apart(name)
    found = next((family for family in FAMILIES if family.claims(signature)), None)
    if found is None:
        return Kernel(name)
    fields = found.read(signature)
    flags = {key: value for key, value in fields.pop("flags", {}).items() if value is not None}
    return Kernel(
        name,
        provider=found.provider,
        family=found.family,
        role=found.role,
        flags=tuple(sorted(flags.items())),
        **fields,
    )


@dataclass(frozen=True)
class Group(Record):
    """One piece of work: its main kernel, what prepared its operands, what completed it."""

    main: Kernel
    before: tuple[Kernel, ...] = ()
    after: tuple[Kernel, ...] = ()

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return (*self.before, self.main, *self.after)


def attach(names: Iterable[str]) -> list[Group]:
    """Kernels of one call, in launch order, as groups.

    A split-K reduction joins the GEMM before it, which is then marked ``split_k``; likewise
    combining kernels of attention. Fills and copies right before an attention kernel are its
    padding if there is a fill or pad among them (a copy alone may be anything).
    """
    groups: list[Group] = []
    for kernel in map(parse, names):
        last = groups[-1] if groups else None
        if last and last.main.role in COMPLETES.get(kernel.role, ()):
            split = kernel.role in ("split_k_reduce", "attention_combine")
            main = replace(last.main, split_k=True) if split else last.main
            groups[-1] = replace(last, main=main, after=(*last.after, kernel))
        elif kernel.role.startswith("attention") and kernel.known:
            before = _padding(groups)
            del groups[len(groups) - len(before) :]
            groups.append(Group(kernel, before))
        else:
            groups.append(Group(kernel))
    return groups


def _padding(groups: list[Group]) -> tuple[Kernel, ...]:
    run: list[Kernel] = []
    for group in reversed(groups):
        if group.main.role not in PAD_ROLES or group.after:
            break
        run.insert(0, group.main)
    return tuple(run) if any(kernel.role != "copy" for kernel in run) else ()

"""Who served attention at one dim: told by the kernels recorded there, else by rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gacprof.core.errors import GacprofError
from gacprof.explain.causes.case import Case
from gacprof.kernels import fa2
from gacprof.kernels.names import Group
from gacprof.kernels.sdpa import Choice, choose, question_of

_BACKENDS = {"flash_attention": "flash", "mem_efficient": "efficient", "cudnn": "cudnn"}
_LIBRARIES = {"flash3": "FlashAttention-3", "flash4": "FlashAttention-4"}
"""By kernel family; the FlashAttention that PyTorch carries is the second."""
_COUNTS = {0: "no kernel seen", 1: "one kernel", 2: "two kernels", 3: "three kernels"}
TENSORS = 3
"""q, k and v: one pad each (scaled_dot_product_attention, ATen attention.cpp)."""


@dataclass(frozen=True)
class Served:
    """What is known of one dim. ``evidence`` is that for backend and padding."""

    backend: str | None
    basis: str
    pads_to: int | None = None
    pads: int = 0
    template: int | None = None
    even_k: bool | None = None
    library: str = "FlashAttention-2"
    evidence: tuple[str, ...] = ()
    template_evidence: tuple[str, ...] = ()
    refusals: Mapping[str, str] = field(default_factory=dict)

    @property
    def sentences(self) -> list[str]:
        listed = []
        if self.backend:
            listed.append(f"SDPA {'took' if self.basis == 'measured' else 'takes'} {self.backend}")
        if self.pads_to:
            by = _COUNTS.get(self.pads, f"{self.pads} kernels")
            listed.append(f"q, k, v padded to {self.pads_to} by {by}")
        if self.template:
            filled = "" if self.even_k is None else f" with even_k={str(self.even_k).lower()}"
            listed.append(f"{self.library} template {self.template}{filled}")
        return listed


def served(case: Case, d: int) -> Served:
    names = case.kernels(d)
    choice = _by_rules(case, d)
    refusals = choice.refusals if choice else {}
    if names:
        return _by_kernels(case, d, refusals)
    forced = str(case.curve.flags.get("backend", "auto"))
    if forced != "auto":
        backend, evidence = forced, ("the backend was forced",)
    elif choice:
        backend = choice.backend
        evidence = (f"rules of SDPA in torch {case.where.torch}",)
    else:
        return Served(None, "rules")
    if backend != "flash":
        return Served(backend, "rules", evidence=evidence, refusals=refusals)
    inventory = _inventory(case)
    return Served(
        backend,
        "rules",
        pads_to=padded(d),
        pads=TENSORS if padded(d) else 0,
        template=inventory.template_for(d) if inventory else None,
        even_k=inventory.even_k(d) if inventory else None,
        evidence=evidence,
        template_evidence=(f"templates {inventory.source}",) if inventory else (),
        refusals=refusals,
    )


def _by_kernels(case: Case, d: int, refusals: Mapping[str, str]) -> Served:
    main = next((g for g in case.groups(d) if g.main.role == "attention"), None)
    if main is None:  # kernels ran, and none of them is an attention kernel
        return Served("math", "measured", evidence=("kernel names",), refusals=refusals)
    backend = _BACKENDS.get(main.main.provider)
    even_k = main.main.flag.get("even_k")
    return Served(
        backend,
        "measured",
        pads_to=padded(d) if backend == "flash" else None,
        pads=_pads(main),
        template=main.main.template if backend == "flash" else None,
        even_k=None if even_k is None else bool(even_k),
        library=_LIBRARIES.get(main.main.family, "FlashAttention-2"),
        evidence=("kernel names",),
        template_evidence=("kernel names",),
        refusals=refusals,
    )


def padded(d: int) -> int | None:
    """What flash's head_dim is padded to, or None where it need not be."""
    return None if d % fa2.QUANTUM == 0 else -(-d // fa2.QUANTUM) * fa2.QUANTUM


def _pads(group: Group) -> int:
    """Pads before the kernel: constant_pad_nd is a fill (or one pad kernel) and a copy."""
    return sum(kernel.role in ("fill", "pad") for kernel in group.before)


def _by_rules(case: Case, d: int) -> Choice | None:
    if not (case.where.arch and case.where.torch):
        return None
    question = question_of(case.point(d), case.where.arch, case.where.torch, case.where.cudnn)
    try:
        return choose(question)
    except GacprofError:
        return None


def _inventory(case: Case) -> fa2.Inventory | None:
    try:
        return fa2.recorded(case.where.torch) if case.where.torch else None
    except GacprofError:
        return None

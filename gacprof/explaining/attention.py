"""The causes of an attention dim: padding, then the template, then the backend of the other dim.

Who served is known from the kernels recorded at a dim, else from the rules of SDPA.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gacprof.core.errors import GacprofError
from gacprof.explaining.case import Case, CauseChain, point_at
from gacprof.kernels import fa2
from gacprof.kernels.sdpa import BackendChoice, choose_backend, padded, question_of

_BACKENDS = {"flash_attention": "flash", "mem_efficient": "efficient", "cudnn": "cudnn"}
_LIBRARIES = {"flash3": "FlashAttention-3", "flash4": "FlashAttention-4"}
"""By kernel family; the FlashAttention that PyTorch carries is the second."""
_COUNTS = {0: "no kernel seen", 1: "one kernel", 2: "two kernels", 3: "three kernels"}
TENSORS = 3
"""q, k and v: one pad each (scaled_dot_product_attention, ATen attention.cpp)."""


@dataclass(frozen=True)
class AttentionBackend:
    """Who served one dim. ``evidence`` is that for backend and padding; ``pads`` counts kernels."""

    backend: str | None
    basis: str = "rules"
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


def chain(case: Case) -> CauseChain:
    """Unpadded → padded → the other dim's template → the other dim."""
    here, there = served(case, case.d), served(case, case.reference)
    made = CauseChain(case, here.sentences)
    if here.backend and there.backend and here.backend != there.backend:
        reason = here.refusals.get(there.backend)
        text = f"{here.backend} serves {case.d} and {there.backend} {case.reference}"
        text += f" ({there.backend} refuses: {reason})" if reason else ""
        return made.step("backend", case.reference, text, here.evidence, here.basis)
    if here.pads_to and case.d != case.reference:
        text = f"padding q, k and v to {here.pads_to} and slicing the output"
        made.step("padding", here.pads_to, text, here.evidence, here.basis)
    if there.pads_to:
        text = f"less what padding {case.reference} costs"
        made.lead_to(there.pads_to, "padding", text, there.evidence, there.basis)
    template = _template(here, there, made.goal)
    if template and made.at != made.goal:
        made.step("template", made.goal, template, here.template_evidence, here.basis)
    return made


def _template(here: AttentionBackend, there: AttentionBackend, goal: int) -> str | None:
    if here.template is None or there.template is None:
        return None
    if here.template != there.template:
        return f"{here.library} template {here.template} instead of {there.template}"
    if there.even_k and here.even_k is False:
        return f"template {here.template} is not filled"
    if here.even_k and there.even_k is False:
        return f"template {here.template} is filled, unlike by {goal}"
    return None


def served(case: Case, d: int) -> AttentionBackend:
    """By the kernels that ran at ``d``, else by the forced backend, else by the rules of SDPA."""
    choice = _choice(case, d)
    refusals = choice.refusals if choice else {}
    if case.kernels(d):
        return replace(_by_kernels(case, d), refusals=refusals)
    backend, evidence = str(case.curve.flags.get("backend", "auto")), "the backend was forced"
    if backend == "auto" and choice:
        backend, evidence = choice.backend, f"rules of SDPA in torch {case.where.torch}"
    if backend == "auto":
        return AttentionBackend(None)
    found = AttentionBackend(backend, evidence=(evidence,), refusals=refusals)
    if backend != "flash":
        return found
    found = replace(found, pads_to=padded(d), pads=TENSORS if padded(d) else 0)
    try:
        held = fa2.recorded(case.where.torch or "")
    except GacprofError:
        return found
    source = (f"templates {held.source}",)
    template, even_k = held.template_for(d), held.even_k(d)
    return replace(found, template=template, even_k=even_k, template_evidence=source)


def _by_kernels(case: Case, d: int) -> AttentionBackend:
    evidence = ("kernel names",)
    group = next((g for g in case.groups(d) if g.main.role == "attention"), None)
    if group is None:  # kernels ran, and none of them is an attention kernel
        return AttentionBackend("math", "measured", evidence=evidence)
    kernel = group.main
    backend = _BACKENDS.get(kernel.provider)
    return AttentionBackend(
        backend,
        "measured",
        pads_to=padded(d) if backend == "flash" else None,
        # constant_pad_nd is a fill (or one pad kernel) and a copy
        pads=sum(before.role in ("fill", "pad") for before in group.before),
        template=kernel.template if backend == "flash" else None,
        even_k=kernel.even_k,
        library=_LIBRARIES.get(kernel.family, "FlashAttention-2"),
        evidence=evidence,
        template_evidence=evidence,
    )


def _choice(case: Case, d: int) -> BackendChoice | None:
    where = case.where
    if not (where.arch and where.torch):
        return None
    try:
        point = point_at(case.curve, d)
        return choose_backend(question_of(point, where.arch, where.torch, where.cudnn))
    except GacprofError:
        return None

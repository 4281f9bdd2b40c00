"""The path of an attention dim: unpadded → padded → the other dim's template → the other dim."""

from __future__ import annotations

from gacprof.explain.causes.case import Case, Path
from gacprof.explain.causes.served import Served, served


def path(case: Case) -> Path:
    here, there = served(case, case.d), served(case, case.reference)
    made = Path(case, here.sentences)
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


def _template(here: Served, there: Served, goal: int) -> str | None:
    if here.template is None or there.template is None:
        return None
    if here.template != there.template:
        return f"{here.library} template {here.template} instead of {there.template}"
    if there.even_k and here.even_k is False:
        return f"template {here.template} is not filled"
    if here.even_k and there.even_k is False:
        return f"template {here.template} is filled, unlike by {goal}"
    return None

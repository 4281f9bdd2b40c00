"""Stage ``disputes``: what the papers disagree about, each settled here or said to be open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gacprof.core.files import write_json, write_text
from gacprof.explain.disputes import DISPUTES, Verdict, settle
from gacprof.explain.disputes.measuring import settle_on
from gacprof.survey.setting import Setting
from gacprof.survey.state import Outcome
from gacprof.sweeping.suite import Schedule

FILE, DATA, SAMPLES = "disputes.md", "disputes.json", "disputes"


def decide(setting: Setting) -> Outcome:
    """Run the experiments on a GPU, those that need none anywhere; write the verdicts."""
    if setting.machine.is_gpu:
        with setting.machine.sweeper(Schedule().processes) as device:
            settled = settle_on(device, setting.folder / SAMPLES, progress=setting.advance)
        verdicts = settled.verdicts
    else:
        verdicts = settle()
    write_text(setting.folder / FILE, markdown(setting, verdicts))
    write_json(setting.folder / DATA, [verdict.as_dict() for verdict in verdicts])
    counts = Counter(verdict.status for verdict in verdicts)
    note = ", ".join(f"{count} {status}" for status, count in counts.items())
    return Outcome(artefacts=(FILE, DATA), notes=(note,))


def markdown(setting: Setting, verdicts: Sequence[Verdict]) -> str:
    claims = {dispute.number: dispute.claims for dispute in DISPUTES}
    where = setting.machine.device.environment
    lines = [
        "# What the papers disagree about",
        "",
        f"Looked into on {where.name} ({where.arch}).",
        "",
    ]
    for v in verdicts:
        basis = f" ({v.basis})" if v.basis else ""
        lines += [f"## {v.number}. {v.title}", "", f"**{v.status}**{basis}: {v.finding}", ""]
        lines += [f"- claim: {claim}" for claim in claims[v.number]]
        lines += [f"- evidence: {line}" for line in v.evidence]
        lines += [f"- to settle it: {v.needs}"] if v.needs else []
        lines.append("")
    return "\n".join(lines)

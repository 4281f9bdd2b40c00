"""What lint says: a verdict for each product of a TP rank, and what makes them better."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gacprof.core.files import write_json
from gacprof.core.formatting import percent
from gacprof.extras.lint.judge import Judgement, Outcome, worst_of
from gacprof.extras.lint.remedies import Remedy


@dataclass(frozen=True)
class ProductVerdict:
    """One product, part of a fused product, or count, as one rank holds it.

    ``N`` and ``K`` are 0 where the config doesn't say; of a count N is the number that ranks share.
    ``size`` is what was judged on the ``axis`` N, K or global, ``multiple`` what it has to be a
    multiple of (0: of nothing). ``pads_to`` is what each padded axis becomes. ``reason`` has the
    engine's words, ``source`` where they stand, ``since`` the engine's first version that does so,
    ``requirement`` the row's name. ``storage`` is the format, ``alignment`` how the kernels of a
    named GPU serve the sizes: safe, misaligned, undecided, or empty. ``launches`` is the kernel
    that the engine itself took for it; empty where it was not asked exactly this.
    """

    product: str
    role: str
    outcome: Outcome
    N: int
    K: int
    axis: str
    size: int
    multiple: int
    pads_to: Mapping[str, int]
    reason: str
    kernel: str
    source: str
    since: str
    sure: str
    requirement: str
    storage: str
    alignment: str = ""
    launches: str = ""


@dataclass(frozen=True)
class LintReport:
    """What an engine does with a model's sizes on each of its ranks.

    ``outcome`` is the worst of all products; unknown where nobody read what the engine needs of one
    that would otherwise leave it ok. ``missing`` are sizes that the config doesn't say: what
    depends on them is not judged. ``kernels`` are lines on what PyTorch itself, not the engine,
    takes for attention and norms on a named GPU. ``engine_says`` is what the engine itself
    answered, and where it was asked; empty where it was not asked exactly this.
    """

    model: str
    model_type: str
    engine: str
    version: str
    gpu: str
    quantisation: str
    tp: int
    ep: int
    dp: int
    outcome: Outcome
    products: tuple[ProductVerdict, ...]
    remedies: tuple[Remedy, ...]
    missing: tuple[str, ...]
    warnings: tuple[str, ...]
    kernels: tuple[str, ...] = ()
    engine_says: str = ""

    summary: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "summary", self._summary())

    @property
    def ok(self) -> bool:
        """Whether every product is served as it is, by the kernel that its format is made for, at
        sizes that a named GPU's kernels serve well."""
        return self.outcome == "ok" and not self.misaligned

    @property
    def misaligned(self) -> list[ProductVerdict]:
        """The products that the engine takes as they are and the GPU's kernels serve badly."""
        return [row for row in self.products if row.alignment == "misaligned"]

    def _summary(self) -> str:
        if self.outcome != "ok":
            return {"wrong": "loads but wrong"}.get(self.outcome, self.outcome)
        if self.misaligned:
            return f"ok for the engine, misaligned on {self.gpu}"
        return "ok as far as the config says" if self.missing else "ok"

    @property
    def findings(self) -> list[ProductVerdict]:
        """The products that are neither ok nor unknown."""
        return [row for row in self.products if row.outcome not in ("ok", "unknown")]

    def __str__(self) -> str:
        return text(self)


def verdicts_of(judgement: Judgement, alignment: str, launches: str) -> list[ProductVerdict]:
    """The verdict on a product, and on each part of a fused one."""
    product = judgement.product
    verdicts = [replace(_verdict(judgement), alignment=alignment, launches=launches)]
    for part in product.parts:
        findings = [
            finding
            for finding in judgement.findings
            if finding.part == part.name or finding.is_of_all_parts
        ]
        outcome = worst_of(finding.row.outcome for finding in findings)
        if not findings and not (judgement.witness and part.N):
            outcome = "unknown"
        name = f"{product.name}.{part.name.rpartition('.')[2].partition(' ')[0]}"
        own = _verdict(replace(judgement, findings=tuple(findings), outcome=outcome))
        verdicts.append(replace(own, product=name, N=part.N))
    return verdicts


def _verdict(judgement: Judgement) -> ProductVerdict:
    """The verdict on a product: by its strictest finding of its outcome, else by its witness."""
    product, outcome = judgement.product, judgement.outcome
    axis = {"count": "global", "vocab": "global"}.get(product.kind, "N")
    if product.split == "row":
        axis = "K"
    size = {"N": product.N, "K": product.K, "global": product.whole}[axis]
    row, says, kernel, bound = judgement.witness, "", "", 0
    matching = [finding for finding in judgement.findings if finding.row.outcome == outcome]
    if matching or judgement.findings:
        first = (matching or judgement.findings)[0]
        row, says, kernel = first.row, first.says, first.kernel
        strictest = max(
            matching or judgement.findings, key=lambda f: judgement.multiples.get(f.axis, f.bound)
        )
        axis, size, bound = strictest.axis, strictest.size, strictest.bound
    elif row and row.outcome == "ok":
        kernel = row.kernel
    n = product.N
    if product.kind == "vocab":
        n, rest = divmod(judgement.pads_to.get("global", product.whole), product.ranks)
        n *= rest == 0  # ranks cannot share it
    since = re.match(r">=([\d.]+)", row.version if row else "")
    return ProductVerdict(
        product=product.name,
        role=product.role,
        outcome=outcome,
        N=n,
        K=product.K,
        axis=axis,
        size=size,
        multiple=judgement.multiples.get(axis, bound),
        pads_to=judgement.pads_to,
        reason="; ".join(filter(None, (says, judgement.note))),
        kernel=kernel,
        source=row.source if row else "",
        since=since[1] if since else "",
        sure=row.sure if row else "",
        requirement=row.id if row else "",
        storage=judgement.storage.form,
    )


LEVELS = {
    "pads": "note",
    "misaligned": "note",
    "unknown": "note",
    "falls back": "warning",
    "wrong": "error",
    "refused": "error",
}
"""SARIF's levels (SARIF 2.1.0, 3.27.10)."""


def verdict(row: ProductVerdict) -> str:
    """A product's outcome in a few words: ``pads to 256 (+33.3 %)``."""
    if row.outcome == "pads" and row.pads_to:
        sizes = {"N": row.N, "K": row.K, "global": row.size}
        grown = 1.0
        for axis, size in row.pads_to.items():
            grown *= size / (sizes[axis] or size)
        targets = " × ".join(str(size) for size in row.pads_to.values())
        return f"pads to {targets} (+{percent(grown - 1)})"
    if row.outcome == "wrong":
        return "loads but wrong"
    if row.outcome == "ok" and row.alignment == "misaligned":
        return "ok, misaligned"
    return row.outcome


def text(report: LintReport) -> str:
    """The report as lines: a headline, a product a line, what would make it better, what is
    missing."""
    ranks = f"tp {report.tp}, ep {report.ep}" + (f", dp {report.dp}" if report.dp > 1 else "")
    where = f"{report.engine} {report.version} on {report.gpu}, {ranks}, {report.quantisation}"
    lines = [f"{plain_line(report.model)}: {report.summary} ({where})", ""]
    rows = [("product", "N", "K", "verdict", "kernel" * bool(report.engine_says), "why")]
    for row in report.products:
        sizes = str(row.N or "–"), str(row.K or "–")
        why = row.reason or row.kernel
        rows.append((row.product, *sizes, verdict(row), row.launches, why))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for product, n, k, *words in rows:
        cells = [product.ljust(widths[0]), n.rjust(widths[1]), k.rjust(widths[2])]
        cells += [word.ljust(width) for word, width in zip(words, widths[3:], strict=True) if width]
        lines.append(plain_line("  ".join(cells)).rstrip())
    if report.engine_says:
        lines += ["", plain_line(report.engine_says)]
    if report.remedies:
        lines += ["", "tried, and better:"]
    for remedy in report.remedies:
        mended = f" ({', '.join(remedy.mended)})" if remedy.mended else ""
        kernels = "".join(f"; {name} by {kernel}" for name, kernel in remedy.launches.items())
        lines.append(plain_line(f"  {remedy.change}: {remedy.outcome}{mended}{kernels}"))
    lines += ["", *report.kernels, *_sources(report)]
    if report.missing:
        missing = ", ".join(report.missing)
        lines.append(f"the config doesn't say {missing}: what needs it isn't judged")
    lines += report.warnings
    return "\n".join(lines).rstrip()


def _sources(report: LintReport) -> list[str]:
    """The sources of the findings, each once."""
    findings = [row for row in report.products if row.reason and row.source]
    named = {f"{row.requirement}: {row.source}" + _sureness(row) for row in findings}
    return [f"source of {source}" for source in sorted(named)]


def _sureness(row: ProductVerdict) -> str:
    since = f", since {row.since}" if row.since else ""
    sure = "" if row.sure == "high" else f" ({row.sure} confidence)"
    return f"{since}{sure}"


def plain_line(line: str) -> str:
    """One line of a stranger's text: control characters are escaped."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)


def sarif(reports: Sequence[LintReport]) -> dict[str, Any]:
    """Reports as a SARIF log: a rule a requirement, a result a finding."""
    from gacprof import __version__

    rules: dict[str, dict[str, Any]] = {}
    results = []
    for report in reports:
        place = {"physicalLocation": {"artifactLocation": {"uri": plain_line(report.model)}}}
        for row in report.products:
            kind = "misaligned" if row.alignment == "misaligned" else row.outcome
            if kind == "ok":
                continue
            rule = f"{report.engine}/{row.requirement or 'unread'}"
            rules[rule] = {"id": rule, "shortDescription": {"text": f"{kind}: {row.product}"}}
            if row.source:
                rules[rule]["help"] = {"text": f"source: {row.source}"}
            where = f"{report.engine} {report.version}, tp {report.tp}"
            said = f"{row.product}: {verdict(row)} ({where}): {row.reason}"
            message = {"text": plain_line(said)}
            results.append(
                {"ruleId": rule, "level": LEVELS[kind], "message": message, "locations": [place]}
            )
    driver = {"name": "gacprof", "version": __version__, "rules": list(rules.values())}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def write_sarif(path: Path, reports: Sequence[LintReport]) -> None:
    """Write reports as a SARIF log, whole or not at all."""
    write_json(Path(path), sarif(reports))

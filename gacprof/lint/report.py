"""What lint says: a verdict for each product of a TP rank, and what makes them better."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, ClassVar

from gacprof import __version__
from gacprof.checkpoint.coverage import Gap, in_words
from gacprof.core.formatting import one_line, percent
from gacprof.core.results import Table
from gacprof.kernels.requirements import Requirement
from gacprof.lint.judge import OUTCOMES, SERVED, Judgement, Outcome, worst_of
from gacprof.lint.remedies import Remedy

UNREAD = Requirement("", "", "", "", sure="")  # type: ignore[arg-type]
"""In place of a row, where no row is about a product."""


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
    ``depends_on_gpu``: no GPU was named, and not all have one outcome.
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
    depends_on_gpu: bool = False

    @property
    def verdict(self) -> str:
        """The outcome in a few words: ``pads to 256 (+33.3 %)``."""
        if self.outcome == "pads" and self.pads_to:
            sizes = {"N": self.N, "K": self.K, "global": self.size}
            grown = prod(size / (sizes[axis] or size) for axis, size in self.pads_to.items())
            targets = " × ".join(str(size) for size in self.pads_to.values())
            return f"pads to {targets} (+{percent(grown - 1)})"
        if self.outcome == "wrong":
            return "loads but wrong"
        if self.outcome == "ok" and self.alignment == "misaligned":
            return "ok, misaligned"
        return self.outcome


@dataclass(frozen=True)
class LintReport(Table):
    """What an engine does with a model's sizes on each of its ranks.

    ``outcome`` is the worst of all products; unknown where nobody read what the engine needs of one
    that would otherwise leave it ok, or where ``gaps`` are left: what may bear a size, or decides
    whether the model is served, and was not accounted for, but for what was ``accepted`` by name.
    ``tensors`` is how many headers were read. ``missing`` are sizes that the config doesn't say:
    what depends on them is not judged. ``kernels`` are lines on what PyTorch, not the engine, takes
    for attention and norms on a named GPU. ``engine_says`` is what the engine itself answered, and
    where it was asked; empty where it was not asked exactly this. ``weights_gib`` is what a rank
    holds of the text part's weights, ``memory_gib`` what its GPU has: None where it isn't known.
    """

    schema: ClassVar[str] = "gacprof.LintReport/1"
    rows_in: ClassVar[str] = "products"
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
    gaps: tuple[Gap, ...] = ()
    accepted: tuple[str, ...] = ()
    tensors: int = 0
    kernels: tuple[str, ...] = ()
    engine_says: str = ""
    weights_gib: float | None = None
    memory_gib: float | None = None
    summary: str = field(init=False)

    def __post_init__(self) -> None:
        summary = "loads but wrong" if self.outcome == "wrong" else str(self.outcome)
        if self.outcome == "ok" and self.misaligned:
            summary = f"ok for the engine, misaligned on {self.gpu}"
        object.__setattr__(self, "summary", summary)

    @property
    def account(self) -> str:
        """A sentence: the worst product, what was not accounted for, or what the verdict covers."""
        missing = "name a GPU with --gpu" if self.needs_gpu else ""
        reasons = [*filter(None, [missing, self.worst, in_words(self.gaps)])]
        if reasons:
            return "; ".join(reasons)
        covered = f"{len(self.products)} products and counts"
        if self.tensors:
            covered += f", the matrices among {self.tensors} tensors"
        return f"accounted for: {covered}, the class, every key"

    @property
    def worst(self) -> str:
        """The first product of the outcome, and why it has it; empty where all is ok."""
        for row in self.products:
            if row.outcome == self.outcome != "ok" and row.reason:
                return f"{row.product}: {row.reason.rstrip('.:')}"
        if self.misaligned and self.outcome == "ok":
            row = self.misaligned[0]
            return f"{row.product}: {row.N} × {row.K} is misaligned on {self.gpu}"
        return ""

    @property
    def needs_gpu(self) -> bool:
        """Whether only a GPU that nobody named leaves the outcome unknown."""
        unknown = [row for row in self.products if row.outcome == "unknown"]
        if self.outcome != "unknown" or any(gap.grade == "unknown" for gap in self.gaps):
            return False
        return bool(unknown) and all(row.depends_on_gpu for row in unknown)

    @property
    def weights(self) -> str:
        """The weights of a rank beside the memory of its GPU: ``28 of 80 GiB``."""
        parts = [f"{size:.3g}" for size in (self.weights_gib, self.memory_gib) if size]
        return f"{' of '.join(parts)} GiB" if self.weights_gib else ""

    @property
    def ok(self) -> bool:
        """Whether every product is served as it is, by the kernel that its format is made for, at
        sizes that a named GPU's kernels serve well."""
        return self.outcome == "ok" and not self.misaligned

    @property
    def misaligned(self) -> list[ProductVerdict]:
        """The products that the engine takes as they are and the GPU's kernels serve badly."""
        return [row for row in self.products if row.alignment == "misaligned"]

    @property
    def findings(self) -> list[ProductVerdict]:
        """The products that are neither ok nor unknown."""
        return [row for row in self.products if row.outcome not in ("ok", "unknown")]


@dataclass(frozen=True)
class LintGrid:
    """One config in several deployments: a report of each, the best first."""

    schema: ClassVar[str] = "gacprof.LintGrid/1"
    reports: tuple[LintReport, ...]

    @property
    def ok(self) -> bool:
        """Whether all of them are ok."""
        return all(report.ok for report in self.reports)


def from_best(report: LintReport) -> tuple[bool, int, bool]:
    """A key that sorts reports: those that serve right answers for sure first."""
    is_unserved = report.outcome not in SERVED
    return is_unserved, OUTCOMES.index(report.outcome), not report.ok


def verdicts_of(judgement: Judgement, alignment: str, launches: str) -> list[ProductVerdict]:
    """The verdict on a product, and on each part of a fused one."""
    product = judgement.product
    verdicts = [replace(_verdict(judgement), alignment=alignment, launches=launches)]
    for part in product.parts:
        findings = [f for f in judgement.findings if f.part in ("", part.name)]
        outcome = worst_of(finding.row.outcome for finding in findings)
        if not findings and not (judgement.witness and part.N):
            outcome = "unknown"
        name = f"{product.name}.{part.name.rpartition('.')[2].partition(' ')[0]}"
        verdict = _verdict(replace(judgement, findings=tuple(findings), outcome=outcome))
        verdicts.append(replace(verdict, product=name, N=part.N))
    return verdicts


def _verdict(judgement: Judgement) -> ProductVerdict:
    """The verdict on a product: by its strictest finding of its outcome, else by its witness."""
    product, multiples = judgement.product, judgement.multiples
    side = "K" if product.split == "row" else "N"
    axis = {"count": "global", "vocab": "global"}.get(product.kind, side)
    size = {"N": product.N, "K": product.K, "global": product.whole}[axis]
    row, bound, says = judgement.witness or UNREAD, 0, ""
    kernel = row.kernel if row.outcome == "ok" else ""
    findings = [f for f in judgement.findings if f.row.outcome == judgement.outcome]
    findings = findings or list(judgement.findings)
    if findings:
        row, says, kernel = findings[0].row, findings[0].says, findings[0].kernel
        strictest = max(findings, key=lambda finding: multiples.get(finding.axis, finding.bound))
        axis, size, bound = strictest.axis, strictest.size, strictest.bound
    n = product.N
    if product.kind == "vocab":
        n, rest = divmod(judgement.pads_to.get("global", product.whole), product.ranks)
        n *= rest == 0  # ranks cannot share it
    return ProductVerdict(
        product=product.name,
        role=product.role,
        outcome=judgement.outcome,
        N=n,
        K=product.K,
        axis=axis,
        size=size,
        multiple=multiples.get(axis, bound),
        pads_to=judgement.pads_to,
        reason="; ".join(filter(None, (says, judgement.note))),
        kernel=kernel,
        source=row.source,
        since="".join(re.findall(r"^>=([\d.]+)", row.version)),
        sure=row.sure,
        requirement=row.id,
        storage=product.storage.form,
        depends_on_gpu=judgement.depends_on_gpu,
    )


SARIF_LEVELS = {"falls back": "warning", "wrong": "error", "refused": "error"}
"""SARIF's levels (SARIF 2.1.0, 3.27.10); of all else a note."""


def sarif(*reports: LintReport) -> dict[str, Any]:
    """Reports as a SARIF log: a rule a requirement, a result a finding."""
    rules: dict[str, dict[str, Any]] = {}
    results = []
    for report in reports:
        place = {"physicalLocation": {"artifactLocation": {"uri": one_line(report.model)}}}
        for kind, name, source, text in sarif_findings(report):
            rule = f"{report.engine}/{name}"
            rules[rule] = {"id": rule, "shortDescription": {"text": f"{kind}: {name}"}}
            if source:
                rules[rule]["help"] = {"text": f"source: {source}"}
            result = {"ruleId": rule, "level": SARIF_LEVELS.get(kind, "note")}
            results.append({**result, "message": {"text": one_line(text)}, "locations": [place]})
    driver = {"name": "gacprof", "version": __version__, "rules": list(rules.values())}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": results}],
    }


def sarif_findings(report: LintReport) -> Iterator[tuple[str, str, str, str]]:
    """The findings of a report: kind, name of the rule, source and text."""
    where = f"{report.engine} {report.version} on {report.gpu}, tp {report.tp}"
    for row in report.products:
        kind = "misaligned" if row.alignment == "misaligned" else row.outcome
        if kind != "ok":
            text = f"{row.product}: {row.verdict} ({where}): {row.reason}"
            yield kind, row.requirement or "unread", row.source, text
    for gap in report.gaps:
        if gap.grade != "note":
            yield gap.grade, f"unaccounted-{gap.kind}", "", gap.why

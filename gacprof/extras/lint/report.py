"""What lint says: a verdict for each product of a TP rank, and what makes them better."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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
    named GPU serve the sizes: safe, misaligned, undecided, or empty.
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


@dataclass(frozen=True)
class LintReport:
    """What an engine does with a model's sizes on each of its ranks.

    ``outcome`` is the worst of all products; unknown where nobody read what the engine needs of one
    that would otherwise leave it ok. ``missing`` are sizes that the config doesn't say: what
    depends on them is not judged.
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
        from gacprof.extras.lint.formats import text

        return text(self)


def verdicts_of(judgement: Judgement, alignment: str) -> list[ProductVerdict]:
    """The verdict on a product, and on each part of a fused one."""
    product = judgement.product
    whole = _verdict(judgement)
    verdicts = [replace(whole, alignment=alignment)]
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
        verdicts.append(replace(whole, product=name, N=part.N, outcome=outcome))
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
        n = judgement.pads_to.get("global", product.whole) // product.ranks
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

"""``gacprof lint``: what an engine does with a model's sizes, from its config or its headers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import read_model
from gacprof.core.errors import ConfigError
from gacprof.core.files import write_json
from gacprof.diagnosing.source import kernel_lines
from gacprof.hardware.datasheet import GPUS
from gacprof.kernels.rules import Rules
from gacprof.lint.accounting import gaps_of, with_gaps
from gacprof.lint.deployment import ConfigDeployment, deploy
from gacprof.lint.judge import Judgement, overall
from gacprof.lint.products import GIB
from gacprof.lint.remedies import Remedy, find_remedies
from gacprof.lint.report import LintGrid, LintReport, from_best, verdicts_of
from gacprof.lint.report import sarif as sarif_log
from gacprof.workload.products import plain_dtype, side_uses
from gacprof.workload.sharing import Sharing

LIBRARY_DTYPES = {"fp8_tensor": "float8_e4m3", "fp8_channel": "float8_e4m3", "int8_w8a8": "int8"}
"""Formats whose products are the libraries', besides plain weights: blocks, packed words and
experts have kernels of the engine's own, of which no rule says anything."""
PREFILL_ROWS = 1024  # at which sizes are judged: with few of them nothing is safe for sure
BADNESS = ("", "safe", "undecided", "unknown", "misaligned")


def lint(
    config: str | Path | Mapping[str, Any],
    *,
    engine: str | Sequence[str] = ("vllm",),
    version: str | None = None,
    gpu: str | Sequence[str] = ("any",),
    tp: int | Sequence[int] = (1,),
    ep: int = 1,
    dp: int = 1,
    quantisation: str | None = None,
    accept: Sequence[str] = (),
    sarif: Path | None = None,
) -> LintReport | Any:  # of several deployments a LintGrid, which callers of one need not rule out
    """Check whether vLLM, SGLang or another engine serves a model with its fast kernels.

    Every matrix product is judged at the sizes that one rank holds. No weights are read. Whatever
    may bear a size and was not understood is named, and the answer is then not ok. With several
    engines, GPUs or TP degrees all their combinations are judged.

    Parameters
    ----------
    config
        A config.json or its values, a model's folder, or a model on the hub. Of a folder and the
        hub the headers of the weights are read too.
    engine
        vllm, sglang, tensorrt-llm, transformers or llama.cpp, or several of them; vllm==0.8.5
        names its version too.
    version
        The engine's version. By default the newest whose code was read for gacprof.
    gpu
        The GPU that is to serve it, or several: h100, b200, rtx4090, sm90 … With any, what depends
        on the GPU stays open.
    tp
        Tensor-parallel ranks, or several such numbers: how many GPUs share each matrix.
    ep
        Expert-parallel ranks: how many GPUs share out whole experts.
    dp
        Data-parallel ranks.
    quantisation
        How the weights are quantised: bf16, fp8, fp8-block, nvfp4, awq-g128, gguf-q4_k … By default
        as the config says.
    accept
        Keys or classes that were not understood, and that you know to be fine.
    sarif
        A file to write the findings to as well, as SARIF 2.1.0.

    Returns
    -------
    LintReport or LintGrid
        A verdict for each product, with its source, and what makes it better, tried; of several
        deployments a grid with such a report for each, the best first.

    Raises
    ------
    ConfigError
        For a config that is of a compressed model or holds what is no size, and for an engine, a
        GPU or a quantisation that isn't known.
    CheckpointError
        For a broken file of weights, or a model that the hub does not have.

    Examples
    --------
    >>> config = "tests/fixtures/configs/qwen3-30b-a3b.json"
    >>> report = gacprof.lint(config, gpu="h100", tp=8)
    >>> report.outcome, report.weights
    ('ok', '7.13 of 80 GiB')
    >>> grid = gacprof.lint(config, engine=["vllm", "sglang"], tp=[4, 8])
    >>> [(report.engine, report.tp) for report in grid.reports if report.ok]
    [('vllm', 4), ('vllm', 8), ('sglang', 4), ('sglang', 8)]
    """
    engines = [engine] if isinstance(engine, str) else list(engine)
    gpus = [gpu] if isinstance(gpu, str) else list(gpu)
    degrees = list(tp) if isinstance(tp, Sequence) else [tp]
    if version and len(engines) > 1:
        raise ConfigError(f"{version} is the version of one engine: write vllm==0.32 for each")
    name, values, stored = read_model(config)
    options: dict[str, Any] = {"version": version, "ep": ep, "dp": dp, "quantisation": quantisation}
    reports = []
    for chosen, gpu_name, degree in dict.fromkeys(product(engines, gpus, degrees)):
        deployment = deploy(values, engine=chosen, gpu=gpu_name, tp=degree, **options)
        reports.append(report_on(deployment, name, stored, accept))
    if not reports:
        raise ConfigError("nothing to judge: name an engine, a GPU and a number of ranks")
    reports.sort(key=from_best)
    if sarif is not None:
        write_json(Path(sarif), sarif_log(*reports))
    return LintGrid(tuple(reports)) if len(reports) > 1 else reports[0]


def report_on(
    deployment: ConfigDeployment, name: str, stored: Inventory | None, accept: Sequence[str]
) -> LintReport:
    """Judge one deployment of the model ``name``, with the headers of its checkpoint if they were
    read."""
    sizes, inventory, key = deployment.sizes, deployment.inventory, deployment.gpu.key
    judgements = deployment.judgements()
    every_gap = gaps_of(deployment, stored)
    gaps = tuple(gap for gap in every_gap if gap.name not in accept)
    engine_says: str = ""
    launches: Mapping[str, str] = {}
    remedies: list[Remedy] = []
    if all(gap.grade == "note" for gap in every_gap):  # the engine was asked of nothing else
        engine_says, launches = deployment.engine_answer(judgements)
    if not any(gap.grade in ("refused", "wrong") for gap in gaps):
        remedies = find_remedies(deployment, judgements)
    rules = Rules(key) if key in GPUS else None
    plain = plain_dtype(inventory)
    verdicts = []
    for judgement in judgements:
        if judgement.is_judged:
            alignment = alignment_of(judgement, rules, plain) if rules else ""
            verdicts += verdicts_of(judgement, alignment, launches.get(judgement.product.name, ""))
    kernels: tuple[str, ...] = ()
    if rules and deployment.engine.calls_sdpa:
        kernels = kernel_lines(Sharing(inventory, deployment), rules, plain)
    weights = deployment.weight_bytes
    return LintReport(
        model=name,
        model_type=sizes.model_type,
        engine=deployment.engine.name,
        version=deployment.engine.version,
        gpu=key,
        quantisation=deployment.storage.form,
        tp=deployment.tp,
        ep=deployment.ep,
        dp=deployment.dp,
        outcome=with_gaps(overall(judgements), gaps),
        products=tuple(verdicts),
        remedies=tuple(remedies),
        missing=tuple(sorted(set(sizes.missing))),
        gaps=gaps,
        accepted=tuple(gap.name for gap in every_gap if gap.name in accept),
        tensors=len(stored.tensors) if stored else 0,
        kernels=kernels,
        engine_says=engine_says,
        weights_gib=weights / GIB if weights else None,
        memory_gib=deployment.gpu.memory_gib,
    )


def alignment_of(judgement: Judgement, rules: Rules, plain: str) -> str:
    """Return the worse verdict of a GPU's rules on N and K as the engine pads them. Empty where
    there is none. ``plain`` is the type of weights that are not quantised."""
    subject, pads_to = judgement.product, judgement.pads_to
    dtype = {"none": plain, **LIBRARY_DTYPES}.get(subject.storage.form, "")
    n, k = pads_to.get("N", subject.N), pads_to.get("K", subject.K)
    if subject.role == "head":
        n = pads_to.get("global", subject.whole) // subject.ranks
    is_product = subject.kind == "dense" or subject.role == "head"
    if dtype not in rules.dtypes or not is_product or not n * k:
        return ""
    on_n = rules.judge(side_uses("N", k, {PREFILL_ROWS: 1.0}, dtype), [n])
    on_k = rules.judge(side_uses("K", n, {PREFILL_ROWS: 1.0}, dtype), [k])
    return max(on_n[0].verdict, on_k[0].verdict, key=BADNESS.index)

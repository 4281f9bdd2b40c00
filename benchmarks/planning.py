"""CPU seconds of whole processes that diagnose and plan factored Llamas of 8B and 70B by rules.

    python benchmarks/planning.py [CHECKOUT ...] [--budget]

A column for each checkout of gacprof, by default this one. The models are a config and a sparse
safetensors file: headers and holes. ``--budget`` plans one of 8B within a budget, too, for which
all of its factors are read (as zeros, 13 GB).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from compileall import compile_dir
from itertools import product
from pathlib import Path

HERE = Path(__file__).parents[1]
LLAMAS: Mapping[str, Mapping[str, int]] = {
    "8B": {"layers": 32, "hidden": 4096, "width": 14336, "heads": 32},
    "70B": {"layers": 80, "hidden": 8192, "width": 28672, "heads": 64},
}
KV_HEADS, HEAD_DIM, VOCABULARY = 8, 128, 128_256
VERBS = {
    "diagnose": "gacprof.diagnose(model, 'h100')",
    "plan pad": "gacprof.plan(model, 'h100', objective='pad')",
    "plan budget": "gacprof.plan(model, 'h100', budget=0.8)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkouts", nargs="*", type=Path, default=[HERE])
    parser.add_argument("--budget", action="store_true")
    options = parser.parse_args()
    rows = list(product(LLAMAS, ("diagnose", "plan pad")))
    if options.budget:
        rows.append(("8B", "plan budget"))
    for checkout in options.checkouts:
        compile_dir(checkout / "gacprof", quiet=1)
    print("| CPU s |", " | ".join(checkout.resolve().name for checkout in options.checkouts), "|")
    print("|---|" + "---:|" * len(options.checkouts))
    with tempfile.TemporaryDirectory() as folder:
        models = {name: write_model(Path(folder) / name, **LLAMAS[name]) for name in LLAMAS}
        for name, verb in rows:
            seconds = [cpu_seconds(root, VERBS[verb], models[name]) for root in options.checkouts]
            print(f"| {verb} {name} |", " | ".join(f"{s:.2f}" for s in seconds), "|", flush=True)


def cpu_seconds(checkout: Path, call: str, model: Path) -> float:
    """The CPU seconds of a process that does nothing but this call."""
    code = f"import sys, gacprof; model = sys.argv[1]; {call}"
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", code, str(model)]
    subprocess.run(command, env=environment, cwd=model, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def write_model(folder: Path, *, layers: int, hidden: int, width: int, heads: int) -> Path:
    """Write a Llama of which every linear layer is a factor pair of a rank of its own."""
    sides = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, hidden),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (width, hidden),
        "mlp.up_proj": (width, hidden),
        "mlp.down_proj": (hidden, width),
    }
    draw = random.Random(0)
    shapes = {"model.embed_tokens.weight": (VOCABULARY, hidden)}
    shapes["lm_head.weight"] = (VOCABULARY, hidden)
    for layer, (part, (rows, columns)) in product(range(layers), sides.items()):
        rank = round(rows * columns / (rows + columns) * draw.uniform(0.7, 0.95))
        shapes[f"model.layers.{layer}.{part}.ALinear.weight"] = (rows, rank)
        shapes[f"model.layers.{layer}.{part}.BLinear.weight"] = (rank, columns)
    header, end = {}, 0
    for tensor, (rows, columns) in shapes.items():
        start, end = end, end + 2 * rows * columns
        header[tensor] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    folder.mkdir()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": KV_HEADS,
        "vocab_size": VOCABULARY,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


if __name__ == "__main__":
    main()

"""Write Llama checkpoints of random weights on the spot, and bench them side by side.

    python tools/first_gpu/llamas.py FOLDER [--seconds 60] [--out bench.json]

``aligned`` has head_dim 112 and an MLP of 12,016. ``ragged-mlp`` and ``ragged-heads`` each differ
from it in one size, as a compressor might leave it; ``dense`` is what they came from. A captured
decode at head_dim 106 compares PyTorch's attention with a mask too, which engines have not. They
need no network and tell nothing of quality.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from gacprof.check.bench import bench
from gacprof.cli.app import print_result
from gacprof.reporting.sections import json_of

SIZES = {
    "aligned": (112, 12_016),
    "ragged-mlp": (112, 12_001),
    "ragged-heads": (106, 12_016),
    "dense": (128, 14_336),
}
"""(head_dim, width of the MLP)."""


def config_of(name: str, layers: int, hidden: int) -> LlamaConfig:
    head_dim, width = SIZES[name]
    return LlamaConfig(
        hidden_size=hidden,
        intermediate_size=width,
        num_attention_heads=hidden // 128,
        num_key_value_heads=max(1, hidden // 512),
        head_dim=head_dim,
        num_hidden_layers=layers,
        vocab_size=32_000,
        dtype="bfloat16",
    )


def write(folder: Path, layers: int, hidden: int, device: str) -> list[str]:
    """Write the checkpoints that are not there yet, and return their folders."""
    for name in SIZES:
        if (folder / name / "config.json").exists():
            continue
        config = config_of(name, layers, hidden)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model.save_pretrained(folder / f"{name}.new")
        (folder / f"{name}.new").rename(folder / name)
        print(f"{folder / name}: {model.num_parameters():,} parameters", flush=True)
    return [str(folder / name) for name in SIZES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", type=Path, help="a file for the result with all rounds")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--prefill", type=int, default=1024)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    models = write(options.folder, options.layers, options.hidden, options.device)
    result = bench(
        models,
        prefill=options.prefill,
        decode=32,
        seconds=options.seconds,
        device=options.device,
        dtype="bfloat16",
    )
    print_result(result)
    if options.out:
        options.out.write_text(json.dumps(json_of(result)), encoding="utf-8")


if __name__ == "__main__":
    main()

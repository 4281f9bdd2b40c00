"""How often bench tells equal models apart, and how small a real difference it finds.

    python benchmarks/bench_aa.py [--benches 100] [--seconds 5] [--power 20] [--dtype float32]

Each bench compares a small Llama with another of the same shapes: weights of another seed, so
that the two are not byte-identical, and fresh memory every time. Every ``faster`` or ``slower``
is a false verdict; of 100 benches at most 5 may hold one. For the power check the other model
is really slower: its feed-forward layers are wider by known shares. Benches run one after the
other. Prints JSON, then a line that names the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from statistics import median
from typing import Any

import torch
import transformers

from gacprof.devices.environment import cpu_name, native_bfloat16
from gacprof.evaluation import bench
from gacprof.evaluation.summary import BenchResult

HIDDEN, INTERMEDIATE, LAYERS, HEADS, VOCABULARY = 512, 1408, 4, 8, 1024
WIDER = (1.1, 1.3)
"""Feed-forward widths of the slower models."""
CLAIMS = ("faster", "slower")


def model(
    seed: int, dtype: torch.dtype, wider: float = 1.0, layers: int = LAYERS
) -> torch.nn.Module:
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=round(INTERMEDIATE * wider / 32) * 32,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        vocab_size=VOCABULARY,
    )
    return transformers.LlamaForCausalLM(config).to(dtype).eval()


def compared(seed: int, asked: argparse.Namespace, wider: float = 1.0) -> BenchResult:
    dtype = getattr(torch, asked.dtype)
    return bench(
        [model(seed, dtype), model(seed + 1, dtype, wider)],
        tokens=(asked.tokens,),
        decode_steps=4,
        device="cpu",
        time_cap_s=asked.seconds,
    )


def summary(results: list[BenchResult]) -> dict[str, Any]:
    """Verdicts counted by bench and by workload, A/A spreads and estimated ratios in order."""
    timings = [[t for t in result.timings if t.ratio is not None] for result in results]
    found: dict[str, Any] = {
        "benches": len(results),
        "with_a_claim": sum(any(t.verdict in CLAIMS for t in ts) for ts in timings),
        "rounds": sorted(result.rounds for result in results),
    }
    for i, replicate in enumerate(results[0].replicates):
        mine = [ts[i] for ts in timings]
        spreads = sorted(result.replicates[i].spread for result in results)
        found[replicate.workload] = {
            "verdicts": {v: [t.verdict for t in mine].count(v) for v in {t.verdict for t in mine}},
            "ratio_median": median(t.ratio[1] for t in mine if t.ratio),
            "ratio_lowest": min(t.ratio[1] for t in mine if t.ratio),
            "ratio_highest": max(t.ratio[1] for t in mine if t.ratio),
            "spread_median": median(spreads),
            "spread_highest": spreads[-1],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--benches", type=int, default=100)
    parser.add_argument("--power", type=int, default=20, help="benches of each slower model")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--tokens", type=int, default=256)
    usual = "bfloat16" if native_bfloat16() else "float32"
    parser.add_argument("--dtype", default=usual)
    asked = parser.parse_args()
    machine = f"{cpu_name()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    began, load = time.monotonic(), os.getloadavg()[0]
    equal = [compared(2 * i, asked) for i in range(asked.benches)]
    slower = {w: [compared(2 * i, asked, w) for i in range(asked.power)] for w in WIDER}
    same = summary(equal)
    found = {
        "equal": same,
        **{f"feed-forward × {w}": summary(each) for w, each in slower.items() if each},
        "seconds": round(time.monotonic() - began),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
    }
    print(json.dumps(found, indent=1))
    print(
        f"{same['with_a_claim']} of {asked.benches} benches of equal models claim a difference; "
        f"{machine}, Python {platform.python_version()}"
    )


if __name__ == "__main__":
    main()

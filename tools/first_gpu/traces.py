"""Record traces to be compared elsewhere: attention at random shapes, and Llamas of one layer.

    python tools/first_gpu/traces.py [--out FOLDER] [--calls 600]

``attention.json.gz`` holds calls that the dispatch table says FlashAttention-2 serves, each under a
label that is its question, ``batch=1 heads=8 …``, without quotes, which torch's export does not
escape: a trace has the grids, by which the split of the keys is seen.
``ragged.json.gz`` and ``aligned.json.gz`` hold a prefill of 1,024 tokens and decoded tokens.
"""

from __future__ import annotations

import argparse
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from llamas import config_of
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import AutoModelForCausalLM

from gacprof.hardware.datasheet import gpu_facts
from gacprof.kernels.dispatch import load_table
from gacprof.virtual.questions import attention_inputs

MODELS = {"aligned": "aligned", "ragged": "ragged-mlp", "ragged-heads": "ragged-heads"}


def questions(count: int) -> Iterator[dict[str, Any]]:
    """Calls of all head_dims, with few and many heads, queries and keys."""
    draw = random.Random(1)
    for _ in range(count):
        kv_heads, groups = draw.choice((1, 2, 8, draw.randint(1, 16))), draw.choice((1, 1, 3, 8))
        kv_len = draw.choice((1, draw.randint(2, 4000), draw.randint(2, 16_000)))
        q_len = draw.choice((1, min(kv_len, 4000), draw.randint(2, 300)))
        call = {"batch": draw.randint(1, 8), "heads": kv_heads * groups, "kv_heads": kv_heads}
        call |= {"q_len": q_len, "kv_len": kv_len, "causal": draw.random() < 0.5}
        call |= {"head_dim": draw.randint(1, 256), "dtype": draw.choice(("bfloat16", "float16"))}
        yield call


@contextmanager
def recorded(path: Path, **options: Any) -> Iterator[None]:
    """Write what happens meanwhile as a trace."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], **options) as profiler:
        yield
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))
    print(f"{path.name}: {path.stat().st_size / 2**20:.1f} MiB", flush=True)


def attend(call: dict[str, Any]) -> None:
    lengths = call["batch"], call["q_len"], call["kv_len"]
    heads = call["heads"], call["kv_heads"]
    query, key, _ = attention_inputs(call["head_dim"], call["dtype"], "none", lengths, heads)
    gqa = call["heads"] > call["kv_heads"]
    with record_function(" ".join(f"{name}={value}" for name, value in call.items())):
        scaled_dot_product_attention(query, key, key, is_causal=call["causal"], enable_gqa=gqa)


def run_llama(name: str, path: Path) -> None:
    """Trace a prefill and four decoded tokens of a Llama of random weights."""
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config_of(name, 1, 4096), dtype=torch.bfloat16)
    tokens = torch.randint(0, 32_000, (1, 1024), device="cuda")
    with torch.inference_mode():
        model(tokens)
        with recorded(path, record_shapes=True):
            with record_function("prefill"):
                cache = model(tokens, use_cache=True).past_key_values
            for _ in range(4):
                with record_function("decode"):
                    model(tokens[:, :1], past_key_values=cache)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--calls", type=int, default=600)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    options.out.mkdir(parents=True, exist_ok=True)
    release = torch.__version__.partition("+")[0]
    table = load_table(gpu_facts(torch.cuda.get_device_name()).key, release)
    if table is None:
        parser.error(f"no dispatch table of torch {release}")
    calls = [call for call in questions(options.calls) if table.sdpa(**call).backend == "flash"]
    attend(calls[0])
    with recorded(options.out / "attention.json.gz"):
        for call in calls:
            attend(call)
    for name, model in MODELS.items():
        run_llama(model, options.out / f"{name}.json.gz")


if __name__ == "__main__":
    main()

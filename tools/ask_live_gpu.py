"""The virtual GPU's questions of attention, asked of a real one, and the differences.

    python tools/ask_live_gpu.py [--gpu h100]

The shipped dispatch table of the GPU and of this PyTorch's release says which backend SDPA takes,
and which template and tile FlashAttention-2 launches. Here the live device is asked: the choice at
every head_dim, and kernels by torch.profiler at some. Exit code 1 where any answer differs.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

import torch
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from gacprof.extras.virtual import questions
from gacprof.kernels.dispatch import DispatchTable, load_table, shipped_tables

HEAD_DIMS = (32, 64, 72, 80, 96, 107, 112, 128, 160, 192, 256)
"""Head_dims at which kernels are launched: templates, and sizes between them."""


def differing_choices(table: DispatchTable) -> Counter[str]:
    """SDPA's choices that differ, counted by what the table says and what the device takes."""
    section = table.sections["sdpa"]
    differences: Counter[str] = Counter()
    for key in section.keys:
        dtype, mask, causal, gqa, shape = key
        heads = (questions.HEADS, questions.KV_HEADS if gqa else questions.HEADS)
        lengths = (1, *questions.SDPA_SHAPES[shape])
        for head_dim in questions.sizes(questions.SDPA_RANGE):
            live = questions.choice(head_dim, dtype, mask, causal, lengths, heads)
            recorded = section.lookup(head_dim, *key)
            if live != recorded:
                differences[f"{recorded} by the table, {live} here: {' '.join(map(str, key))}"] += 1
    return differences


def launched_kernels(head_dim: int, key: tuple) -> list[str]:
    """Symbols of the kernels of one call of SDPA."""
    dtype, mask, causal, gqa, shape = key
    heads = (questions.HEADS, questions.KV_HEADS if gqa else questions.HEADS)
    lengths = questions.SHAPES[shape]
    query, keys, bias = questions.attention_inputs(head_dim, dtype, mask, lengths, heads)
    with profile(activities=[ProfilerActivity.CUDA]) as trace:
        functional.scaled_dot_product_attention(
            query, keys, keys, bias, is_causal=causal, enable_gqa=gqa
        )
        torch.cuda.synchronize()
    return [event.name for event in trace.events()]


def differing_kernels(table: DispatchTable) -> Counter[str]:
    """FlashAttention-2's templates, tiles and warps that differ."""
    questions.only("flash")
    section = table.sections["fa2"]
    differences: Counter[str] = Counter()
    for key in section.keys:
        for head_dim in HEAD_DIMS:
            recorded = section.lookup(head_dim, *key)
            if not isinstance(recorded, dict):
                continue
            expected = [recorded["template"], *recorded["tile"], recorded["warps"]]
            names = launched_kernels(head_dim, key)
            traits = [numbers_of(name) for name in names if "flash_fwd" in name]
            if expected not in traits:
                differences[f"{expected} by the table, {traits} here: {head_dim} {key}"] += 1
    return differences


def numbers_of(name: str) -> list[int]:
    """Template, tile and warps in a kernel's name, as a symbol or as C++ writes it."""
    symbol = questions.FLASH_TRAITS.search(name)
    if symbol:
        return [int(number) for number in symbol.groups()]
    arguments = name.partition("Flash_fwd_kernel_traits<")[2].split(",")[:4]
    return [int(argument.strip(" ()int")) for argument in arguments if argument.strip()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="h100", help="a GPU with a shipped table")
    options = parser.parse_args()
    release = torch.__version__.partition("+")[0]
    table = load_table(options.gpu, release)
    if table is None:
        sys.exit(f"no table of {options.gpu} and torch {release}, of {shipped_tables()}")
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}; asked before: {table.device}"
    )
    differences = {"choices": differing_choices(table), "kernels": differing_kernels(table)}
    for name, counts in differences.items():
        print(f"{name}: {sum(counts.values())} answers differ")
        for text, count in counts.most_common(20):
            print(f"  {count} × {text}")
    sys.exit(any(differences.values()))


if __name__ == "__main__":
    main()

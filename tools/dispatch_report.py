"""Write ``reports/dispatch.md``: attention by head_dim and GPU, and what changed between releases.

    python tools/dispatch_report.py

Everything is read from the tables that ship in ``gacprof/dispatch``. Run it after
``tools/dispatch_tables.py``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from gacprof.kernels.dispatch import (
    FLASH_MULTIPLE,
    SCOPE,
    DispatchTable,
    Section,
    load_table,
    shipped_tables,
)

PAGE = Path(__file__).parents[1] / "reports" / "dispatch.md"
HEAD_DIMS = (64, 80, 96, 107, 112, 128, 160, 192, 256, 257, 264, 512)
CALLS: Mapping[str, Mapping[str, Any]] = {
    "Causal prefill, 1024 tokens": {"causal": True},
    "Decode, 1024 keys": {"q_len": 1},
    "Prefill with a float mask": {"mask": "float"},
}
SHOWN = 6
"""Changed questions that are named; of more their number is."""
HEADER = f"""# What PyTorch dispatches, GPU by GPU

By PyTorch's own dispatcher on virtual GPUs; no kernel was run. Written by
`tools/dispatch_report.py` from the tables in `gacprof/dispatch`; the page on them is
[a GPU that is not there](../docs/virtual-gpu.md).

bfloat16. *FA2 128: 128 × 64, 4* is FlashAttention-2's kernel for head_dim 128, its tile (queries ×
keys) and warps; *padded*: head_dim is padded to a multiple of 8 before it. *cuDNN* chooses a kernel
of its own, which is not known. *efficient* is the memory-efficient kernel; *math* is no fused
kernel. The tiles are those of one sequence with 32 heads. Of fewer heads or queries, where batch ×
heads × blocks of 64 queries fill less than four fifths of twice the multiprocessors, keys may be
split, and the tile is then that of decode: `gacprof/kernels/flash.py` computes it, and of 3,000
random questions on each of a virtual A100, H100, B200 and RTX 4090 (torch 2.13.0; 1 to 256 heads,
batch 1 to 64, lengths to 9,000, head_dim to 300) no backend, template, tile or number of parts
differed from the launch.

{SCOPE}
"""


def cell(table: DispatchTable, head_dim: int, call: Mapping[str, Any]) -> str:
    """How a head_dim is served, in a few words."""
    answer = table.sdpa(head_dim, **call)
    assert answer is not None, "the page shows what was asked"
    if answer.backend != "flash":
        return {"cudnn": "cuDNN"}.get(answer.backend, answer.backend)
    shape = "decode" if call.get("q_len") == 1 else "prefill"
    flash = table.fa2(head_dim, shape=shape, causal=call.get("causal", False))
    assert flash is not None, "flash serves what was asked"
    padded = ", padded" if head_dim % FLASH_MULTIPLE else ""
    tile = "FA2 {template}: {tile[0]} × {tile[1]}, {warps}".format_map(flash)
    return tile + padded


def by_head_dim(release: str) -> Iterator[str]:
    """A table a call: head_dims × GPUs, those with equal answers in one column."""
    tables = [load_table(gpu, release) for gpu in dict.fromkeys(g for g, _ in shipped_tables())]
    for title, call in CALLS.items():
        columns: dict[tuple[str, ...], list[str]] = {}
        for table in filter(None, tables):
            answers = tuple(cell(table, head_dim, call) for head_dim in HEAD_DIMS)
            columns.setdefault(answers, []).append(table.gpu)
        yield f"\n## {title} (torch {release})\n"
        yield row("head_dim", *(", ".join(gpus) for gpus in columns.values()))
        yield row(*["---"] * (1 + len(columns)))
        for i, head_dim in enumerate(HEAD_DIMS):
            yield row(str(head_dim), *(answers[i] for answers in columns))


def changes(gpu: str, before: str, after: str) -> list[str]:
    """What changed on a GPU: SDPA's backends with the number of answers, and other sections."""
    old, new = load_table(gpu, before), load_table(gpu, after)
    assert old is not None and new is not None
    section = old.sections["sdpa"]
    first, last = section.range
    counts: Counter[tuple[str, str]] = Counter()
    for key in section.keys:
        for size in range(first, last + 1):
            pair = section.lookup(size, *key), new.sections["sdpa"].lookup(size, *key)
            counts[pair] += 1
    texts = []
    for (was, becomes), count in counts.most_common():
        if was != becomes:
            texts.append(f"SDPA {was} → {becomes}: {count:,} of {counts.total():,} answers")
    for name in ("fa2", "rows", "products"):
        texts.append(f"{name}: {differing(old.sections[name], new.sections[name])}")
    return texts


def differing(old: Section, new: Section) -> str:
    """The keys of both releases that the later one answers otherwise, with the sizes of them."""
    first, last = new.range
    texts = []
    for key in old.keys.keys() & new.keys.keys():
        sizes = [n for n in range(first, last + 1) if old.lookup(n, *key) != new.lookup(n, *key)]
        if sizes:
            texts.append(f"{' '.join(map(str, key))} ({sizes[0]} to {sizes[-1]})")
    if len(texts) > SHOWN:
        return f"{len(texts)} of {len(new.keys)} questions, as {min(texts)}"
    return ", ".join(sorted(texts)) or "nothing"


CUDNN = Path(__file__).parents[1] / "reports" / "cudnn.json"
CUDNN_HEADER = """
## cuDNN's own plans

Written by `tools/ask_cudnn.py` {provenance} ({versions}), for GPUs that were described to it.
An engine is a family of kernels, of a number that means nothing in another operation; behind it,
how many plans it offers. Products y = x·Wᵀ of 4096 × 4096 × 4096, K contiguous, one side from 4033
to 4160. PyTorch's cuDNN is another version, and cuBLAS is another library: this is the vendor's
word on alignment, not the kernel of a product of PyTorch's. The output's own alignment never
changed cuDNN's engine, but it changes cuBLAS's kernel: of 3,944 kernels in
[public traces](traces.md) a rule of every dim that lies contiguous in A, B or the result holds in
3,940, one of the operands alone in 3,701.
"""
MULTIPLES = (1, 2, 4, 8, 16, 32)


def cudnn_plans() -> Iterator[str]:
    """A table of cuDNN's recorded answers: GPUs × questions, equal GPUs in one row."""
    record = json.loads(CUDNN.read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    yield CUDNN_HEADER.format(provenance=record["provenance"], versions=versions)
    sections = {name: Section(**section) for name, section in record["sections"].items()}
    gpus = dict.fromkeys(gpu for gpu, _ in shipped_tables())
    keys = [(name, *key[1:]) for name, s in sections.items() for key in s.keys if key[0] == "h100"]
    yield row("GPU", *(" ".join(key[1:]) for key in keys))
    yield row(*["---"] * (1 + len(keys)))
    by_answers: dict[tuple[str, ...], list[str]] = {}
    for gpu in gpus:
        texts = tuple(plans_text(sections[name], (gpu, *key)) for name, *key in keys)
        by_answers.setdefault(texts, []).append(gpu)
    for texts, alike in by_answers.items():
        yield row(", ".join(alike), *texts)


def plans_text(section: Section, key: tuple[str, ...]) -> str:
    """The engine and number of plans of each size: by the multiple that all of its sizes share."""
    first, last = section.range
    sizes_of: dict[str, list[int]] = {}
    for size in range(first, last + 1):
        sizes_of.setdefault(plan_text(section.lookup(size, *key)), []).append(size)
    texts = {}
    for text, sizes in sizes_of.items():
        multiple = max(m for m in MULTIPLES if not any(size % m for size in sizes))
        where = f"multiples of {multiple}" if multiple > 1 else "else"
        if sizes[-1] + MULTIPLES[-1] <= last:
            where = f"{where} up to {sizes[-1]}" if len(sizes) > 1 else str(sizes[0])
        texts[f"{text}: {where}"] = (-multiple, sizes[0])
    return "; ".join(sorted(texts, key=lambda text: texts[text])).removesuffix(": else")


def plan_text(answer: Any) -> str:
    if "tile" in answer:
        return f"tile {' × '.join(map(str, answer['tile']))}"
    return f"engine {answer['engine']} ({answer['plans']})" if "engine" in answer else "refused"


PACKAGES = Path(__file__).parents[1] / "reports" / "packages.json"
PACKAGES_HEADER = """
## FlashAttention-3 and SGLang's kernels (H100)

Written by `tools/ask_packages.py` {provenance} ({versions}). FlashAttention-3 by head_dim in
bfloat16: queries × keys × head_dim. SGLang's fp8 product by one side, the others of 1024 × 4096 ×
4096: M × N × K. Where multiples are named, other sizes are refused.
"""


def packages() -> Iterator[str]:
    """The tiles of packages beside PyTorch, by size."""
    record = json.loads(PACKAGES.read_text(encoding="utf-8"))
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    yield PACKAGES_HEADER.format(provenance=record["provenance"], versions=versions)
    yield row("of", "sizes", "kernel")
    yield row("---", "---", "---")
    for name, fields in record["sections"].items():
        section = Section(**fields)
        for first, last, pattern in section.runs[0]:
            text, *_ = sorted({plan_text(section.answers[number]) for number in pattern})[::-1]
            multiples = f", multiples of {len(pattern)}" if len(pattern) > 1 else ""
            yield row(name, f"{first} to {last}{multiples}", text)


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Write the page."""
    releases = {release for _, release in shipped_tables()}
    newest_first = sorted(releases, key=lambda text: [-int(part) for part in text.split(".")])
    lines = [HEADER, *by_head_dim(newest_first[0])]
    for after, before in pairwise(newest_first):
        lines += [f"\n## From torch {before} to {after}\n"]
        lines += [row("GPU", "what changed"), row("---", "---")]
        gpus_of: dict[str, list[str]] = {}
        for gpu in dict.fromkeys(gpu for gpu, _ in shipped_tables()):
            gpus_of.setdefault("; ".join(changes(gpu, before, after)), []).append(gpu)
        lines += [row(", ".join(gpus), text) for text, gpus in gpus_of.items()]
    lines += [*cudnn_plans(), *packages()]
    PAGE.write_text("\n".join(lines).replace("\n\n\n", "\n\n") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""The virtual GPU's questions, asked of the GPU at hand, and where its answers differ.

    python tools/ask_live_gpu.py [--gpu h100] [--out answers.json]

The shipped dispatch table of this GPU and this PyTorch's release says which backend SDPA takes,
which kernels serve attention and rows, and which products are refused. SDPA's choices are asked at
every head_dim; kernels of some sizes are launched in one session of torch.profiler. A kernel that
the tracer lost is *not seen*, which is no difference. Exit code 1 where any answer differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from gacprof.core.points import KernelRun
from gacprof.devices.tracing import traced_kernels
from gacprof.hardware.datasheet import gpu_facts
from gacprof.kernels.dispatch import DispatchTable, Section, load_table, shipped_tables
from gacprof.virtual import questions
from gacprof.virtual.ask import short_name

HEAD_DIMS = (32, 64, 72, 80, 96, 107, 112, 128, 160, 192, 256)
"""Templates, and sizes between them."""
ROW_SIZES = (1, 2, 3, 4, 8, 31, 32, 33, 64, 107, 128, 512, 1000, 1024, 1025, 2048, 4096, 4098, 8192)
PRODUCT_SIZES = (1, 8, 15, 16, 17, 20, 24, 32, 64, 100, 128, 256, 511, 512)
NOT_SEEN = "not seen"


@dataclass(frozen=True)
class Question:
    """A call and what the table says of its kernels."""

    section: str
    key: tuple
    size: int
    recorded: str
    call: Callable[[], object]


def live_choices(section: Section) -> list[tuple[tuple, int, str, str]]:
    """Ask SDPA's choice at every head_dim: (key, head_dim, recorded, live)."""
    choices = []
    for key in section.keys:
        *_, gqa, shape = key
        lengths = (1, *questions.SDPA_SHAPES[shape])
        for head_dim in questions.SDPA_SIZES:
            live = questions.choice(head_dim, key, lengths, questions.HEAD_COUNTS[gqa])
            choices.append((key, head_dim, section.lookup(head_dim, *key), live))
    return choices


def attend(backend: str, head_dim: int, key: tuple) -> None:
    """Call SDPA with one backend alone."""
    questions.only(backend)
    questions.attend(head_dim, key)


def kernel_questions(table: DispatchTable) -> Iterator[Question]:
    """Yield the questions that launch kernels."""
    for name, backend in (("fa2", "flash"), ("efficient", "efficient")):
        section = table.sections[name]
        for key in section.keys:
            for head_dim in HEAD_DIMS:
                recorded = section.lookup(head_dim, *key)
                if recorded is not None:
                    text = flash_text(recorded) if isinstance(recorded, dict) else recorded
                    call = partial(attend, backend, head_dim, key)
                    yield Question(name, key, head_dim, text, call)
    rows = table.sections["rows"]
    for key in rows.keys:
        operator, dtype, tokens = key
        call = questions.row_calls(dtype, tokens)[operator]
        for size in ROW_SIZES:
            yield Question("rows", key, size, rows.lookup(size, *key), partial(call, size))
    products = table.sections["products"]
    for key in products.keys:
        operator, axis = key
        for size in PRODUCT_SIZES:
            shape = questions.PRODUCT | {axis: size}
            call = partial(questions.PRODUCTS[operator], shape)
            yield Question("products", key, size, products.lookup(size, *key), call)


def flash_text(answer: dict) -> str:
    """FlashAttention-2's kernel of a table's answer, as :func:`live_text` says it."""
    numbers = [answer["template"], *answer["tile"], answer["warps"]]
    return f"{answer['kernel']} {numbers}"


def live_text(section: str, kernels: Sequence[KernelRun]) -> str:
    """The kernels of a call in a table's words."""
    names = [run.name for run in kernels if not run.name.startswith(("Memcpy", "Memset"))]
    if not names:
        return NOT_SEEN
    if section == "fa2":
        for name in names:
            if "flash_fwd" in name and "combine" not in name:
                kernel = "flash_fwd_splitkv_kernel" if "splitkv" in name else "flash_fwd_kernel"
                return f"{kernel} {numbers_of(name)}"
    short = ["cublas" if name.startswith("cublas ") else short_name(name) for name in names]
    if section == "efficient":
        short = [name for name in short if "fmha" in name]
    return " + ".join(dict.fromkeys(short))


def numbers_of(name: str) -> list[int]:
    """Template, tile and warps in a kernel's name, as a symbol or as C++ writes it."""
    symbol = questions.FLASH_KERNEL.search(name)
    if symbol:
        return [int(number) for number in symbol.groups()[1:]]
    arguments = name.partition("Flash_fwd_kernel_traits<")[2].split(",")[:4]
    return [int(argument.strip(" ()int")) for argument in arguments if argument.strip()]


def live_answers(asked: Sequence[Question]) -> list[str]:
    """Launch each question's call in one session; its kernels, its refusal, or *not seen*."""
    refusals: dict[int, str] = {}

    def call(number: int) -> None:
        try:
            asked[number].call()
        except torch.OutOfMemoryError:
            refusals[number] = NOT_SEEN
        except (RuntimeError, ValueError) as error:
            in_words = asked[number].section == "products"
            refusals[number] = questions.refusal(error) if in_words else "refused"

    kernels = traced_kernels([partial(call, number) for number in range(len(asked))])
    return [
        refusals.get(number) or live_text(question.section, kernels[number])
        for number, question in enumerate(asked)
    ]


def agrees(recorded: str, live: str) -> bool:
    """Tell whether an answer is the table's; which kernel cuBLAS takes no table knows."""
    return live == recorded or (recorded == "cublas" and not live.startswith("refused"))


def report(name: str, answers: Sequence[tuple[tuple, int, str, str]]) -> int:
    """Print how many answers differ, the most frequent differences first, and return it."""
    not_seen = sum(live == NOT_SEEN for *_, live in answers)
    differences: Counter[str] = Counter()
    for key, size, recorded, live in answers:
        if live != NOT_SEEN and not agrees(recorded, live):
            where = f"{' '.join(map(str, key))}, first at {size}"
            differences[f"{recorded} by the table, {live} here: {where}"] += 1
    total = sum(differences.values())
    print(f"{name}: {len(answers)} asked, {total} differ, {not_seen} not seen")
    for text, count in differences.most_common(20):
        print(f"  {count} × {text}")
    sys.stdout.flush()
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", help="a GPU with a shipped table (default: the one at hand)")
    parser.add_argument("--out", type=Path, help="a file for what was seen, as JSON")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    device, release = torch.cuda.get_device_name(), torch.__version__.partition("+")[0]
    gpu = options.gpu or gpu_facts(device).key
    table = load_table(gpu, release)
    if table is None:
        sys.exit(f"no table of {gpu} and torch {release}, of {shipped_tables()}")
    print(f"{device}, torch {torch.__version__}; asked before: {table.device}", flush=True)
    choices = live_choices(table.sections["sdpa"])
    differ = report("choices", choices)
    asked = list(kernel_questions(table))
    answers: dict[str, list[tuple[tuple, int, str, str]]] = {}
    for question, live in zip(asked, live_answers(asked), strict=True):
        answer = (question.key, question.size, question.recorded, live)
        answers.setdefault(question.section, []).append(answer)
    differ += sum(report(name, of_section) for name, of_section in answers.items())
    if options.out:
        record = {"device": device, "torch": torch.__version__, "table": table.gpu}
        record["choices that differ"] = [row for row in choices if row[2] != row[3]]
        options.out.write_text(json.dumps(record | {"answers": answers}), encoding="utf-8")
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()

"""Ask FlashAttention-3 and SGLang's kernels on a virtual H100, and write ``reports/packages.json``.

    pip install --no-deps --target asked fa3-fwd==0.0.3 sglang-kernel==0.4.10
    PYTHONPATH=asked gacprof virtual h100 -- python tools/ask_packages.py

The python has a CUDA build of PyTorch. No kernel is run; ``tools/dispatch_report.py`` prints what
was launched or refused.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1]))

from gacprof.virtual.ask import compressed, demangled
from gacprof.virtual.run import clear, launches

PAGE = Path(__file__).parents[1] / "reports" / "packages.json"
PACKAGES = ("torch", "fa3-fwd", "sglang-kernel")
HEADS, TOKENS = 32, 1024
PRODUCT = {"M": 1024, "N": 4096, "K": 4096}
RANGES = {"M": (1, 512), "N": (4033, 4160), "K": (4033, 4160)}
SHAPE = r"tuple<cute::C<(\d+)>, cute::C<(\d+)>, cute::C<(\d+)>"


def launched(call: Callable[[], Any]) -> dict[str, Any] | str:
    """The tile of the last CUTLASS kernel of a call; or "refused"."""
    clear()
    try:
        call()
    except (RuntimeError, NotImplementedError):
        return "refused"
    names = [demangled(launch.kernel) for launch in launches()]
    kernel = [name for name in names if "cutlass" in name and "Combine" not in name][-1]
    cluster_first = "flash::" in kernel
    shapes = [list(map(int, shape)) for shape in re.findall(SHAPE, kernel)[:2]]
    tile = shapes[1] if cluster_first else shapes[0]
    return {"tile": tile}


def flash(head_dim: int, queries: int) -> dict[str, Any] | str:
    """Attention by FlashAttention-3; decoding is not causal."""
    from fa3_fwd_interface import flash_attn_func

    key = torch.empty(1, TOKENS, HEADS, head_dim, dtype=torch.bfloat16, device="cuda")
    return launched(lambda: flash_attn_func(key[:, :queries], key, key, causal=queries > 1))


def product(sizes: dict[str, int]) -> dict[str, Any] | str:
    """SGLang's product of fp8 matrices with a scale for each row."""
    import sgl_kernel

    m, n, k = sizes["M"], sizes["N"], sizes["K"]
    x = torch.empty(m, k, dtype=torch.float8_e4m3fn, device="cuda")
    w = torch.empty(n, k, dtype=torch.float8_e4m3fn, device="cuda").t()
    scales = [torch.empty(rows, 1, dtype=torch.float32, device="cuda") for rows in (m, n)]
    return launched(lambda: sgl_kernel.fp8_scaled_mm(x, w, *scales, torch.bfloat16, None))


def questions() -> Iterator[tuple[str, str, tuple[int, int], Callable[[int], Any]]]:
    for call, queries in (("prefill", TOKENS), ("decode", 1)):
        yield "FlashAttention-3", call, (1, 264), lambda size, q=queries: flash(size, q)
    for axis, bounds in RANGES.items():
        yield (
            "SGLang fp8_scaled_mm",
            axis,
            bounds,
            lambda size, a=axis: product({**PRODUCT, a: size}),
        )


def main() -> None:
    sections: dict[str, Any] = {}
    for name, what, bounds, ask in questions():
        answers = [ask(size) for size in range(bounds[0], bounds[1] + 1)]
        rows = [[what, list(range(len(answers)))]]
        section = {"by": ["of"], "range": bounds, "answers": answers, "rows": rows}
        sections[f"{name}, {what}"] = compressed(section)
        print(name, what, flush=True)
    head = {
        "gpu": os.environ["GACPROF_VIRTUAL"],
        "provenance": "by the packages' own dispatchers on a virtual H100; no kernel was run",
        "versions": {package: version(package) for package in PACKAGES},
        "sections": sections,
    }
    PAGE.write_text(json.dumps(head, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

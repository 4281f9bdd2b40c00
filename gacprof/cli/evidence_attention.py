"""Verbs about attention's dispatch: ``evidence sdpa`` (which backend), ``evidence fa2``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gacprof.cli.printing import Json, print_json, print_table, say
from gacprof.core.errors import MapError

if TYPE_CHECKING:
    from gacprof.kernels.sdpa import Question


def register(app: typer.Typer) -> None:
    app.command()(sdpa)
    app.command()(fa2)


def sdpa(
    head_dim: Annotated[int, typer.Option("--head-dim", min=1)],
    arch: Annotated[
        str | None, typer.Option(help="By rules, for this chip: sm80 … Default: the GPU at hand.")
    ] = None,
    torch: Annotated[str | None, typer.Option(help="With --arch. Default: installed.")] = None,
    cudnn: Annotated[int | None, typer.Option(help="With --arch, as 91002.")] = None,
    v_head_dim: Annotated[int | None, typer.Option(min=1, help="Default: --head-dim.")] = None,
    dtype: Annotated[str, typer.Option(help="float16, bfloat16 or float32.")] = "float16",
    mask: Annotated[str, typer.Option(help="none, float or bool.")] = "none",
    causal: Annotated[bool, typer.Option("--causal")] = False,
    batch: Annotated[int, typer.Option(min=1)] = 1,
    heads: Annotated[int, typer.Option(min=1)] = 32,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Default: --heads.")] = None,
    q_len: Annotated[int, typer.Option(min=1)] = 2048,
    kv_len: Annotated[int | None, typer.Option(min=1, help="Default: --q-len.")] = None,
    as_json: bool = Json,
) -> None:
    """Say which backend serves an attention call, and why each of the others does not.

    With --arch by rules of that PyTorch release, for any chip; without, PyTorch itself is
    asked about the GPU at hand.
    """
    from gacprof.kernels.sdpa import Question, ask, choose

    if dtype not in ("float16", "bfloat16", "float32"):
        raise MapError(f"--dtype {dtype}: attention takes float16, bfloat16 or float32")
    keys = batch, kv_heads or heads, kv_len or q_len
    question = Question(
        arch=arch or "",
        q=(batch, heads, q_len, head_dim),
        k=(*keys, head_dim),
        v=(*keys, v_head_dim or head_dim),
        dtype=dtype,
        torch=torch or metadata.version("torch"),
        cudnn=cudnn,
        mask=mask,
        causal=causal,
    )
    choice = choose(question) if arch else ask(question)
    if as_json:
        print_json(choice.as_dict())
        return
    say(choice.explain())
    rows = [
        (name, "serves" if name == choice.backend else _stands(name, choice.refusals))
        for name in choice.order
    ]
    print_table(_title(question, choice.basis), ("backend", "why, or why not"), rows)
    for doubt in choice.doubts:
        say(f"note: {doubt}")


def fa2(
    library: Annotated[
        Path | None, typer.Argument(help="A libtorch_cuda.so. Default: the installed torch's.")
    ] = None,
    torch: Annotated[
        str | None, typer.Option(help="What was recorded of this release instead, as 2.9.1.")
    ] = None,
    as_json: bool = Json,
) -> None:
    """List the FlashAttention-2 templates that a PyTorch build holds: the head_dim steps."""
    from gacprof.kernels.fa2 import read, recorded

    found = recorded(torch) if torch else read(library)
    if as_json:
        print_json(found.as_dict())
        return

    def shown(tiles: tuple[tuple[int, int, int], ...]) -> str:
        return " ".join(f"{q}×{k}/{warps}" for q, k, warps in tiles)

    rows = [
        (size, shown(found.forward.get(size, ())), shown(found.split.get(size, ())))
        for size in found.templates
    ]
    columns = ("head_dim up to", "prefill: q × k rows / warps", "decode (split-KV)")
    print_table(f"torch {found.torch}, {found.source}".strip(), columns, rows)


def _stands(name: str, refusals: Mapping[str, str]) -> str:
    return refusals.get(name, "could serve; comes later in the order")


def _title(question: Question, basis: str) -> str:
    if basis == "live":
        return f"torch {question.torch}, asked on the GPU at hand"
    return f"torch {question.torch} on {question.arch}, by rules"

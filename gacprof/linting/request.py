"""What :func:`gacprof.lint` is asked, as one value: the command line and Python make the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gacprof.core.errors import LintError
from gacprof.core.request import Request, argument, option

MOST_RANKS = 4096
MODEL = "How the model is served"
TEXTS = ("engine", "version", "gpu", "quant")


def degrees(text: str) -> int | tuple[int, ...]:
    """``8`` as a number, ``1,2,4,8`` as several. Raises :class:`LintError`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) <= 5 and int(part) for part in parts):
        raise LintError(f"--tp {text[:40]}: give a whole number, with --design several: 1,2,4,8")
    found = tuple(int(part) for part in parts)
    return found if len(found) > 1 else found[0]


class ServingRequest(Request):
    """How a model is served. Several values of ``gpu``, ``tp`` and ``quant`` (``1,2,4,8``) are for
    a design."""

    error = LintError

    engine: str = option(
        default="vllm", group=MODEL,
        help="vllm, sglang, tensorrt-llm, transformers, llama.cpp; vllm==0.8.5.",
    )  # fmt: skip
    version: str = option(
        default="", group=MODEL,
        help="The engine's version; default: the newest that was read.",
    )  # fmt: skip
    gpu: str = option(
        default="any", group=MODEL,
        help="h100, b200, rtx4090, …; any leaves it open.",
    )  # fmt: skip
    tp: int = option(
        default=1, read=degrees, whole=True, least=1, most=MOST_RANKS, group=MODEL,
        help="Tensor-parallel ranks.",
    )  # fmt: skip
    ep: bool = option(
        default=False, group=MODEL,
        help="Expert parallelism: ranks share out whole experts.",
    )  # fmt: skip
    ep_size: int | None = option(
        default=None, read=int, least=1, most=MOST_RANKS, group=MODEL,
        help="Expert-parallel ranks, where they are not --tp.",
    )  # fmt: skip
    dp: int = option(
        default=1, read=int, least=1, most=MOST_RANKS, group=MODEL,
        help="Data-parallel ranks.",
    )  # fmt: skip
    quant: str | None = option(
        default=None, group=MODEL,
        help="bf16, fp8-block, nvfp4, awq-g128, gguf-q4_k, …; default: the config's.",
    )  # fmt: skip
    lora_rank: int | None = option(
        default=None, read=int, least=1, most=MOST_RANKS, group=MODEL,
        help="An adapter's rank.",
    )  # fmt: skip
    fully_sharded_loras: bool = option(default=False, group=MODEL, help="Ranks share adapters out.")
    draft: str | Path | Mapping[str, Any] | None = option(
        default=None, group=MODEL,
        help="A draft model's config, for speculative decoding.",
    )  # fmt: skip
    demands: Sequence[str | Path] = option(
        default=(), read=Path, many=True, group=MODEL,
        help="A file of own demands (repeatable).",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in TEXTS:
            text = getattr(self, name)
            if not isinstance(text, str) and (name != "quant" or text is not None):
                raise LintError(f"{name} is {text!r:.40}: give a text")
        object.__setattr__(self, "demands", tuple(self.demands))


class LintRequest(ServingRequest):
    """``source`` is a config.json, a folder with one, an id on the hub, or a config's values.

    ``engine`` may carry its version (``vllm==0.8.5``), else ``version`` says it, else the newest
    that was read. ``quant`` is by default the config's own. ``tp`` ranks share the model out, with
    ``ep`` they share out whole experts (``ep_size`` of them, by default as many as ``tp``); ``dp``
    is the data-parallel degree. ``lora_rank`` is an adapter's, ``draft`` the config of a draft
    model. ``demands`` are files of own demands.
    """

    source: str | Path | Mapping[str, Any] = argument(
        kw_only=False, metavar="config", help="config.json, a folder with one, or an id on the hub."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.source, str | Path | Mapping):
            raise LintError("lint takes the path of a config, a folder's, or a config's values")
        if isinstance(self.tp, tuple) or "," in f"{self.gpu}{self.quant or ''}":
            raise LintError("several GPUs, degrees or quantisations go with --design")
        if self.ep_size is not None and not self.ep:
            raise LintError("ep_size says over how many ranks --ep shares experts: give --ep too")
        if self.ep_size is not None and self.tp * self.dp % self.ep_size:
            raise LintError(
                f"{self.tp * self.dp} ranks are no multiple of an ep_size of {self.ep_size}"
            )

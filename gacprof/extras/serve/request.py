"""What an export is asked for, and what every format is: it says what it cannot express, writes,
and checks what it wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gacprof.checkpoint.inventory import Inventory
from gacprof.core import Progress
from gacprof.core.errors import CheckpointError
from gacprof.core.files import Record
from gacprof.core.request import hook, option
from gacprof.diagnosing.request import OnCheckpoint
from gacprof.evaluation.request import Tokenized

NAMES = ("transformers", "vllm", "vllm-native", "gguf", "uniform")
"""Of the formats."""
CHECKS = ("auto", "engine", "tensors")
ONLY = {"type": "gguf", "blocks_of": "vllm-native", "tokenizer_pre": "gguf"}
"""Option → the format that has it."""


class ExportRequest(OnCheckpoint):
    """What :func:`gacprof.export` is asked.

    ``to`` is ``transformers`` (factor pairs, widths and heads per layer, with its own model code),
    ``vllm`` (the same for its Transformers backend), ``vllm-native`` (DeciLM: widths only;
    ``blocks_of=256`` for SGLang, TensorRT-LLM, mlx-lm), ``gguf`` (llama.cpp; ``type`` is f32, f16,
    bf16, q8_0 or q4_0) or ``uniform`` (a plain config). ``out`` defaults to MODEL-TO in the
    current folder. ``check`` is ``engine`` (the same 32 greedy tokens), ``tensors`` (read back), or
    ``auto``: the engine where it is installed and memory suffices.
    """

    error = CheckpointError

    to: str = option(kw_only=False, choices=NAMES, help="The engine's format.")
    out: str | Path | None = option(
        default=None, kw_only=False, read=Path,
        help="The new folder; default: MODEL-FORMAT in this one.",
    )  # fmt: skip
    type: str | None = option(
        default=None, help="Of gguf: f32, f16 (the default), bf16, q8_0, q4_0."
    )
    blocks_of: int | None = option(
        default=None, read=int, least=1,
        help="Of vllm-native: 256 pads widths for SGLang, TensorRT-LLM, mlx.",
    )  # fmt: skip
    tokenizer: str | Path | None = option(default=None, like=Tokenized, group="")
    tokenizer_pre: str | None = option(
        default=None, help="Of gguf: llama.cpp's name of the pre-tokenizer."
    )
    check: str = option(
        default="auto", choices=CHECKS,
        help="engine runs it, tensors reads it back; auto: the engine if it can.",
    )  # fmt: skip
    progress: Progress | None = hook(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, only in ONLY.items():
            if getattr(self, name) is not None and self.to != only:
                raise CheckpointError(f"--{name.replace('_', '-')} goes with --to {only}")
        if self.tokenizer is not None and not Path(self.tokenizer).is_dir():
            raise CheckpointError(f"--tokenizer {self.tokenizer}: there is no such folder")

    def tokenizer_folder(self, inventory: Inventory) -> Path:
        """The folder of the tokenizer that is written too."""
        return Path(inventory.folder if self.tokenizer is None else self.tokenizer)


@dataclass(frozen=True)
class Written:
    """The files of an export and what they hold."""

    files: tuple[str, ...]
    parameters: int
    bytes_written: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Check(Record):
    """How an export was checked.

    ``tensors`` were read back and are what was to be written. Or ``engine`` (with its version)
    continued a prompt greedily for ``tokens`` tokens, of which the first ``same`` are those of
    gacprof.load_model in float32; ``error`` is the largest difference of its logits over our
    largest logit (transformers) or of its log-probabilities (llama.cpp). ``near_tie`` says that
    where they part, our two best logits differ by less than that error. Of another element type
    tokens and error are reported and not ``judged``.
    """

    passed: bool
    tensors: int = 0
    engine: str = ""
    tokens: int = 0
    same: int = 0
    error: float | None = None
    near_tie: bool = False
    judged: bool = True
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Export:
    """A checkpoint that a format can express.

    ``serve`` is how to run what it writes. ``engine`` is the package that runs it here, or
    ``no_engine`` says why there is none.
    """

    inventory: Inventory
    tokenizer: Path
    serve: str
    engine: str = "transformers"
    no_engine: str = ""

    def write(self, out: Path, progress: Progress | None) -> Written:
        """Write the folder ``out`` whole or not at all."""
        raise NotImplementedError

    def run(self, out: Path, progress: Progress | None) -> Check:
        """Compare what the engine computes with what the checkpoint does."""
        raise NotImplementedError

    def compare(self, out: Path) -> Check:
        """Read every tensor back. Raises :class:`CheckpointError` for one that differs."""
        raise NotImplementedError


Prepare = Callable[[Inventory, ExportRequest], Export]
"""A format: raises :class:`CheckpointError` for what it cannot express, before any writing."""

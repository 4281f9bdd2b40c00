"""What an export format is: it says what it cannot express, writes, and checks what it wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gacprof.checkpoint.inventory import Inventory
from gacprof.core import Progress
from gacprof.core.files import Record


@dataclass(frozen=True)
class Request:
    """What was asked for beside the format, as :func:`gacprof.export` takes it; ``tokenizer`` is
    the folder that has one."""

    type: str | None
    blocks_of: int | None
    tokenizer: Path
    tokenizer_pre: str | None


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

    def run(self, out: Path) -> Check:
        """Compare what the engine computes with what the checkpoint does."""
        raise NotImplementedError

    def compare(self, out: Path) -> Check:
        """Read every tensor back. Raises :class:`CheckpointError` for one that differs."""
        raise NotImplementedError


Prepare = Callable[[Inventory, Request], Export]
"""A format: raises :class:`CheckpointError` for what it cannot express, before any writing."""

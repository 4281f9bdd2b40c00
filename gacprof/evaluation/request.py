"""What ``verify``, ``bench`` and ``eval`` are asked, each as one value. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.core import Progress
from gacprof.core.errors import CheckpointError, MeasurementError
from gacprof.core.request import RUN, Request, argument, hook, option
from gacprof.core.texts import token_counts

if TYPE_CHECKING:
    import torch

    from gacprof.evaluation.models import Model

Inputs = Any
"""Token ids [batch, tokens]: a tensor, an array, or nested lists."""

FIRST_LOOK = 12
"""Rounds. Fewer tell too little of their own spread for a verdict."""
ROUNDS = 384
"""At most, by default: looks after 12, 24, 48, 96, 192 and 384."""
TEXT = "Text"
HARNESS = "lm-evaluation-harness"


class OnModels(Request):
    """A request that runs several models."""

    models: Sequence[Model] = argument(
        kw_only=False, many=True, help="Checkpoints; the first is the reference."
    )

    def __post_init__(self) -> None:
        if not isinstance(self.models, list | tuple):  # one model: a path or a module
            object.__setattr__(self, "models", (self.models,))
        super().__post_init__()


class Tokenized(Request):
    """A request that reads texts by a tokenizer."""

    tokenizer: str | Path | None = option(
        default=None, read=Path, group=TEXT,
        help="A folder with a tokenizer. Default: the models' own.",
    )  # fmt: skip


class OnText(Tokenized):
    """A request that measures perplexity on a text."""

    text: str | Path | None = option(
        default=None, read=Path, group=TEXT, help="A text file, for perplexity."
    )


class OnDevice(Request):
    """A request that computes on one device."""

    device: torch.device | str | None = option(
        default=None, group=RUN,
        help="cpu, cuda or cuda:N. Default: the first GPU, else the CPU.",
    )  # fmt: skip


class OnBatch(OnDevice):
    """A request that computes several sequences at once."""

    batch: int = option(default=1, read=int, least=1, help="Sequences at once.")
    dtype: torch.dtype | str | None = option(
        default=None, group=RUN, help="Computed in. Default: as stored."
    )


class VerifyRequest(OnText):
    """Two models, and on what they are compared: ``inputs`` are token ids [batch, tokens], by
    default 2×32 random ones from a fixed seed; ``text`` is a file whose perplexity is measured
    under both. ``dtype`` is what is computed in: a model's own where one is in memory, else
    float32 whatever is stored, because there rounding hides least."""

    error = CheckpointError

    a: Model = argument(kw_only=False, help="The reference checkpoint.")
    b: Model = argument(kw_only=False, help="The checkpoint to compare with it.")
    inputs: Inputs | None = hook(default=None)
    dtype: torch.dtype | str | None = option(
        default=None, group=RUN, help="Computed in. Default: float32."
    )
    device: torch.device | str | None = option(
        default="cpu", group=RUN, help="cpu, cuda or cuda:N."
    )


class TimedModels(OnModels):
    """What a bench is asked, of models run here or by an engine.

    A round holds one prefill of each length of ``tokens`` and ``decode_steps`` decode steps of
    every model; 0 leaves decoding out. It ends when every verdict is decided, looked at after 12,
    24, 48 … rounds, or after ``time_cap_s`` seconds (None: never) and at least 4 rounds; with
    fewer than 12 all verdicts are ``undecided``.
    """

    error = MeasurementError

    tokens: Sequence[int] = option(
        default=(128, 512, 1024), read=token_counts, metavar="M,…", help="Prefill lengths."
    )
    decode_steps: int = option(
        default=8, read=int, least=0,
        help="Decode steps of a model a round; 0 leaves decoding out.",
    )  # fmt: skip
    rounds: int = option(
        default=ROUNDS, read=int, least=FIRST_LOOK,
        help="At most; fewer where all verdicts are decided before.",
    )  # fmt: skip
    time_cap_s: float | None = option(
        default=300.0, name="--time-cap", read=float, least=0,
        help="Seconds; no round begins later.",
    )  # fmt: skip
    dtype: torch.dtype | str | None = option(default=None, like=OnBatch)
    progress: Progress | None = hook(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.models:
            raise MeasurementError(f"bench needs a model and at least {FIRST_LOOK} rounds")


class BenchRequest(OnBatch, TimedModels):
    """What :func:`gacprof.bench` is asked."""


class EvaluateRequest(OnBatch, OnText, OnModels):
    """Models, and the text whose perplexity is measured. ``models`` may be one.

    ``window`` is how many tokens a model sees at once, by default 1024 or what it has positions
    for; ``stride`` how far windows are apart, by default half a window.
    """

    error = CheckpointError

    window: int | None = option(
        default=None, read=int, least=1, group=TEXT,
        help="Tokens seen at once. Default: 1024, or the positions.",
    )  # fmt: skip
    stride: int | None = option(
        default=None, read=int, least=1, group=TEXT,
        help="Tokens from window to window. Default: half a window.",
    )  # fmt: skip
    limit_tokens: int | None = option(
        default=None, read=int, least=2, group=TEXT, help="Take only the first tokens of the text."
    )
    progress: Progress | None = hook(default=None)


def _names(text: str) -> list[str]:
    return text.split(",")


class OnTasks(Request):
    """Which tasks of lm-evaluation-harness are run. ``task_folder`` holds tasks of your own,
    ``limit`` is how many examples of a task to take."""

    error = CheckpointError

    tasks: Sequence[str] | None = option(
        default=None, kw_only=False, read=_names, group=HARNESS, metavar="TASK,…",
        help="Tasks of lm-evaluation-harness instead.",
    )  # fmt: skip
    task_folder: str | Path | None = option(
        default=None, read=Path, group=HARNESS, help="With --tasks: where yours are."
    )
    limit: int | None = option(
        default=None, read=int, least=1, group=HARNESS, help="With --tasks: examples of each."
    )


class TasksRequest(OnTasks, OnBatch, Tokenized, OnModels):
    """What :func:`gacprof.run_tasks` is asked."""


class OnEngine(Request):
    """How an engine is run."""

    python: str | Path | None = option(
        default=None, name="--engine-python", read=Path, group="Engine",
        help="The Python that the engine runs in (vllm has its own).",
    )  # fmt: skip
    threads: int | None = option(
        default=None, read=int, least=1, group="Engine",
        help="With --engine; default: all cores.",
    )  # fmt: skip
    trust_remote_code: bool = option(
        default=False, group="Engine", help="With --engine: run a checkpoint's own code."
    )


class EngineBenchRequest(OnEngine, TimedModels):
    """What :func:`gacprof.bench_engine` is asked: ``engine`` is ``transformers``, ``vllm`` or
    ``llama.cpp``. ``trust_remote_code`` lets a checkpoint's own code run; without it the engine
    gets the weights and what of the config names no code. llama.cpp takes the dtype that the file
    holds."""

    engine: str = option(
        kw_only=False, group="Engine",
        help="Time them in this engine: transformers, vllm or llama.cpp.",
    )  # fmt: skip

"""Does the engine compute what the checkpoint computes? Greedy tokens and logits, side by side.

An engine runs in a process of its own: transformers without gacprof, as a user would load the
folder, and llama.cpp because a failed assertion in it ends its process.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gacprof.checkpoint.folder import is_inside
from gacprof.core import Progress
from gacprof.core.errors import CheckpointError, MeasurementError
from gacprof.devices.environment import free_bytes, installed
from gacprof.extras.serve.engines.engine import SPARE_POSITIONS, EngineProcess, engine_of
from gacprof.extras.serve.request import Check

if TYPE_CHECKING:
    from gacprof.checkpoint.inventory import Inventory

TOKENS = 32
"""Length of the continuations that are compared."""

LOGIT_TOLERANCE = 1e-4
"""Largest difference of float32 logits over the largest logit: two orders of adding differ by
about 1e-6 in small models and 1e-5 in large ones."""

PROBABILITY_TOLERANCE = 1e-3
"""The same of llama.cpp's log-probabilities for F32 files. Its products add in another order and
its attention and activation functions are other ones."""

TEXT = "The capital of France is"
TIMEOUT_S = 3600


@dataclass(frozen=True)
class Reference:
    """What gacprof.load_model computes in float32.

    ``logits`` [prompt, vocabulary] are those of the prompt, ``steps`` [TOKENS, vocabulary] those
    that each of ``tokens`` was the best of.
    """

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logits: NDArray[np.float32]
    steps: NDArray[np.float32]

    def margin(self, step: int) -> float:
        """The difference of the two best logits of a step."""
        best = np.sort(self.steps[step])[-2:]
        return float(best[1] - best[0])


def cannot_run(inventory: Inventory, package: str) -> str:
    """Why the engine cannot be asked here; empty where it can."""
    for needed in dict.fromkeys(("transformers", package)):
        if installed(needed) is None:
            extra = "models" if needed == "transformers" else "engines"
            return f"{needed} is not installed (pip install 'gacprof[{extra}]')"
    free, needs = free_bytes("cpu"), 8 * inventory.parameters
    if free is not None and needs > free:
        return f"running it in float32 needs {needs / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
    return ""


def prompt_of(tokenizer: Path, vocabulary: int) -> tuple[int, ...]:
    """The token ids of a short text where there is a tokenizer.json, else some of the vocabulary's
    ids."""
    file = tokenizer / "tokenizer.json"
    if file.is_file() and is_inside(tokenizer, file.name):
        from tokenizers import Tokenizer

        try:
            ids = Tokenizer.from_file(str(file)).encode(TEXT).ids
        except Exception:  # whatever the library raises for a file that is none
            ids = []
        if ids and max(ids) < vocabulary:
            return tuple(ids)
    rng = np.random.default_rng(0)
    return tuple(int(i) for i in rng.integers(vocabulary, size=8))


def reference(path: str, prompt: Sequence[int], progress: Progress | None = None) -> Reference:
    """Continue ``prompt`` greedily by gacprof.load_model in float32: half of a check's work."""
    import torch

    from gacprof.checkpoint.load import load_model

    model: Any = load_model(path, "float32")
    ids, tokens, steps, cache = torch.tensor([list(prompt)]), [], [], None
    first: NDArray[np.float32] = np.zeros((0, 0), np.float32)
    with torch.no_grad():
        for _ in range(TOKENS):
            out = model(ids, past_key_values=cache, use_cache=True)
            cache, logits = out.past_key_values, out.logits[0].numpy()
            first = first if first.size else logits
            steps.append(logits[-1])
            tokens.append(int(logits[-1].argmax()))
            ids = torch.tensor([tokens[-1:]])
            if progress is not None:
                progress(len(tokens), 2 * TOKENS, "tokens of the check")
    return Reference(tuple(prompt), tuple(tokens), first, np.stack(steps))


def check_in_transformers(ours: Reference, out: Path, *, own_code: bool) -> Check:
    """Load ``out`` by AutoModelForCausalLM in a process that cannot import gacprof.

    Code in the folder is run only if it is ours (``own_code``), never a foreign checkpoint's.
    """
    with tempfile.TemporaryDirectory(prefix="gacprof-") as folder:
        logits = Path(folder) / "logits.npy"
        more = {"HF_MODULES_CACHE": folder, "HF_HUB_OFFLINE": "1"}
        said = _probed(
            "transformers", out, len(ours.prompt), more, own_code, ids=ours.prompt, count=TOKENS,
            file=str(logits),
        )  # fmt: skip
        theirs = np.load(logits)
    error = float(np.abs(theirs - ours.logits).max() / np.abs(ours.logits).max())
    return _judged(
        ours, said, error, LOGIT_TOLERANCE, f"transformers {said['version']}",
        error * float(np.abs(ours.logits).max()),
    )  # fmt: skip


def check_in_llama_cpp(ours: Reference, file: Path, exact: bool) -> Check:
    """Continue the prompt in llama.cpp. Of a type that is not ``exact`` (F32) the tokens and the
    error are reported and nothing is asked of them."""
    said = ask_llama_cpp(file, ours.prompt, TOKENS, forced=ours.tokens)
    error = 0.0
    for step, theirs in zip(ours.steps, said["logprobs"], strict=True):
        known = step - np.logaddexp.reduce(step.astype(np.float64))
        error = max([error, *(abs(float(known[int(i)]) - p) for i, p in theirs.items())])
    tolerance = PROBABILITY_TOLERANCE if exact else float("inf")
    return _judged(
        ours, said, error, tolerance, f"llama.cpp (xllamacpp {said['version']})", 2 * error
    )


def ask_llama_cpp(
    file: Path,
    prompt: Sequence[int],
    tokens: int,
    forced: Sequence[int] = (),
    texts: Sequence[str] = (),
) -> dict[str, Any]:
    """What llama.cpp says of a file: greedy ``tokens``; for each of the ``forced`` tokens that
    follow the prompt the ``logprobs`` of the ten best ids in its place; and the ``ids`` that it
    splits each of ``texts`` into."""
    return _probed(
        "llama.cpp", file, len(prompt) + tokens, {}, False, ids=list(prompt), count=tokens,
        forced=list(forced), texts=list(texts),
    )  # fmt: skip


def _judged(
    ours: Reference,
    said: Mapping[str, Any],
    error: float,
    tolerance: float,
    engine: str,
    slack: float,
) -> Check:
    """Passed where the error is small and the tokens are ours, or part where ours nearly tie."""
    tokens = said["tokens"]
    same = next(
        (i for i, pair in enumerate(zip(tokens, ours.tokens, strict=False)) if pair[0] != pair[1]),
        len(tokens),
    )
    exact, near = tolerance < float("inf"), error <= tolerance
    near_tie = exact and near and same < len(tokens) and ours.margin(same) <= slack
    agrees = same == len(tokens) > 0 or near_tie
    passed = near and (agrees or not exact)
    return Check(passed, 0, engine, len(tokens), same, error, near_tie, exact, said["notes"])


def _probed(
    name: str, what: Path, positions: int, more: Mapping[str, str], own_code: bool, **asked: Any
) -> dict[str, Any]:
    """What an engine's process, without gacprof, answers of what was written, in float32."""
    engine, threads = engine_of(name), len(os.sched_getaffinity(0))
    try:
        with EngineProcess(engine, Path(sys.executable), threads, more) as process:
            process.open(what.resolve(), positions + SPARE_POSITIONS, "float32", own_code)
            found: dict[str, Any] = process.ask("probe", TIMEOUT_S, **asked)
            version = process.facts["version"]
            note = engine.version_note(version)
            return found | {"version": version, "notes": (note,) if note else ()}
    except MeasurementError as error:
        raise CheckpointError(
            f"{what} was written, and {error}; please report this (--check tensors reads it back)"
        ) from None

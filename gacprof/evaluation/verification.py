"""Same function? Two models, the same inputs, and by how much their outputs differ."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gacprof.core.errors import CheckpointError
from gacprof.evaluation.perplexity import Perplexity, encode, perplexity
from gacprof.evaluation.subject import (
    Inputs,
    Model,
    chosen_dtype,
    device_of,
    layers,
    name_of,
    ready,
    vocabulary,
)
from gacprof.evaluation.tolerance import tolerance_of

SHAPE = (2, 32)
"""Sequences × tokens of the default inputs."""

SEED = 0


@dataclass(frozen=True)
class Verification:
    """By how much the logits of ``b`` differ from those of ``a``, over all positions.

    ``max_abs_error`` is the largest difference of a logit, ``scale`` the largest logit of a,
    ``max_rel_error`` their quotient, ``rms_rel_error`` the same for root mean squares. The KL
    divergences are of b's next-token distribution from a's, in nats. ``argmax_agreement`` is
    the share of positions with the same most likely token. ``passed``: ``max_rel_error`` is at
    most ``tolerance`` (see ``tolerance.py``) and everything is finite. The sizes of the errors
    are what counts; that two outputs are equal to the bit is never claimed. ``finite_a`` and
    ``finite_b`` say whether all logits of each are finite: where not, nothing can be compared.
    """

    a: str
    b: str
    dtype: str
    device: str
    inputs: str
    positions: int
    max_abs_error: float | None
    scale: float
    max_rel_error: float | None
    rms_rel_error: float | None
    mean_kl: float | None
    max_kl: float | None
    argmax_agreement: float
    tolerance: float
    passed: bool
    perplexity_a: Perplexity | None = None
    perplexity_b: Perplexity | None = None
    finite_a: bool = True
    finite_b: bool = True

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def verify(
    a: Model,
    b: Model,
    *,
    inputs: Inputs | None = None,
    dtype: torch.dtype | str | None = None,
    text: str | Path | None = None,
    tokenizer: str | Path | None = None,
    device: torch.device | str | None = "cpu",
) -> Verification:
    """Run both models on the same inputs and compare.

    ``inputs`` are token ids [batch, tokens]; by default 2×32 random ones from a fixed seed.
    ``dtype`` is what is computed in: float32 by default whatever is stored, because there
    rounding hides least. ``text`` is a file whose perplexity is measured under both models, with
    the tokenizer of the folder ``tokenizer``, else of a's folder, else of b's. The models are
    held one after the other.

    Raises :class:`CheckpointError` for models that cannot be compared.
    """
    where = device_of(device)
    numbers = _dtype(a, b, dtype)
    asked = None if inputs is None else _ids(inputs)
    folders = [m for m in (a, b) if isinstance(m, str | Path)]
    tokens = None if text is None else encode(text, [tokenizer] if tokenizer else folders)
    first = _Run(a, numbers, where, asked, tokens)
    second = _Run(b, numbers, where, first.ids, tokens)
    return _compare(first, second, numbers, where, given=asked is not None)


class _Run:
    """One model's logits, on the CPU; the model itself is let go."""

    def __init__(
        self,
        model: Model,
        dtype: torch.dtype,
        device: torch.device,
        ids: torch.Tensor | None,
        text: torch.Tensor | None,
    ) -> None:
        self.name = name_of(model)
        loaded = ready(model, dtype, device)
        self.layers, self.vocabulary = layers(loaded), vocabulary([loaded])
        self.ids = _random_ids(self.vocabulary) if ids is None else ids
        for what, given in (("the inputs have", self.ids), ("the text has", text)):
            if given is not None and int(given.max()) >= self.vocabulary:
                raise CheckpointError(
                    f"{self.name} knows {self.vocabulary} tokens, {what} {int(given.max())}"
                )
        self.logits = _logits(loaded, self.ids.to(device))
        self.perplexity = None if text is None else perplexity(loaded, text, device)
        alive = weakref.ref(loaded)
        del loaded
        if alive() is not None and not isinstance(model, nn.Module):
            gc.collect()  # the next model needs the memory


def _compare(
    a: _Run, b: _Run, dtype: torch.dtype, device: torch.device, *, given: bool
) -> Verification:
    if a.logits.shape != b.logits.shape:
        raise CheckpointError(
            f"{a.name} and {b.name} cannot be compared: logits {list(a.logits.shape)} and "
            f"{list(b.logits.shape)}"
        )
    x, y = a.logits.double(), b.logits.double()
    scale, error = float(x.abs().max()), float((x - y).abs().max())
    rms = float((x - y).square().mean().sqrt() / x.square().mean().sqrt())
    log_p, log_q = x.log_softmax(-1), y.log_softmax(-1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1).clamp(min=0)
    tolerance = tolerance_of(dtype, max(a.layers, b.layers))
    relative = error / scale if scale else error
    return Verification(
        a=a.name,
        b=b.name,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        inputs=f"{'given' if given else f'random, seed {SEED}'}, {list(a.ids.shape)} tokens",
        positions=int(a.ids.numel()),
        max_abs_error=_finite(error),
        scale=scale if math.isfinite(scale) else 0.0,
        max_rel_error=_finite(relative),
        rms_rel_error=_finite(rms),
        mean_kl=_finite(float(kl.mean())),
        max_kl=_finite(float(kl.max())),
        argmax_agreement=float((x.argmax(-1) == y.argmax(-1)).double().mean()),
        tolerance=tolerance,
        passed=math.isfinite(relative) and relative <= tolerance,
        perplexity_a=a.perplexity,
        perplexity_b=b.perplexity,
        finite_a=bool(x.isfinite().all()),
        finite_b=bool(y.isfinite().all()),
    )


def _dtype(a: Model, b: Model, asked: torch.dtype | str | None) -> torch.dtype:
    """What is asked for; else a model's own where one is in memory; else float32."""
    if asked is not None:
        return chosen_dtype(asked) or torch.float32
    for model in (a, b):
        if isinstance(model, nn.Module):
            return next(model.parameters()).dtype
    return torch.float32


def _ids(inputs: Inputs) -> torch.Tensor:
    try:
        ids = torch.as_tensor(inputs).long().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"inputs are not token ids: {error}") from None
    if ids.dim() != 2 or ids.numel() == 0 or int(ids.min()) < 0:
        raise CheckpointError(
            f"inputs are token ids [batch, tokens], not negative, not {list(ids.shape)}"
        )
    return ids


def _random_ids(vocabulary_size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(vocabulary_size, SHAPE, generator=generator)


def _logits(model: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits
        return logits.cpu()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

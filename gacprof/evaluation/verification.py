"""Same function? Two models, the same inputs, and by how much their outputs differ.

Zero padding changes nothing in real arithmetic but may change the order in which a matrix
product is summed, hence its rounding. What one operation may differ by is what
``torch.testing.assert_close`` allows it by default; a model rounds its residual stream a few
times a layer, and independent roundings add up like the square root of their number.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from gacprof.checkpoint import inventory_for
from gacprof.checkpoint.load import dtype_of
from gacprof.core.dtypes import of_computing, of_merging
from gacprof.core.errors import CheckpointError
from gacprof.core.files import Record
from gacprof.evaluation.models import (
    Model,
    device_of,
    name_of,
    ready,
    running,
    text_config,
    vocabulary,
)
from gacprof.evaluation.perplexity import (
    Perplexity,
    Scorer,
    common_tokenizer,
    encode,
    perplexity_of,
    read_text,
    score_windows,
    windows,
)
from gacprof.evaluation.request import Inputs, VerifyRequest

SHAPE = (2, 32)
"""Sequences × tokens of the default inputs."""

SEED = 0

WINDOW = 512
"""Tokens a model sees at once for the perplexity; windows do not overlap, so the first tokens of
each have little context. The number serves to compare two models, not to compare with published
ones."""

LARGEST = 16_384
"""Tokens read of a long text."""


@dataclass(frozen=True)
class Verification(Record):
    """By how much the logits of ``b`` differ from those of ``a``, over all positions.

    ``max_abs_error`` is the largest difference of a logit, ``scale`` the largest logit of a,
    ``max_rel_error`` their quotient, ``rms_rel_error`` the same for root mean squares. The KL
    divergences are of b's next-token distribution from a's, in nats. ``argmax_agreement`` is
    the share of positions with the same most likely token. ``passed``: ``max_rel_error`` is at
    most ``tolerance`` (:func:`tolerance_of`) and everything is finite. The sizes of the errors
    are what counts; that two outputs are equal to the bit is never claimed. ``finite_a`` and
    ``finite_b`` say whether all logits of each are finite: where not, nothing can be compared.
    ``merged`` counts the layers that are factored in one model and dense in the other: rounding
    their products is in the tolerance.
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
    merged: int = 0


def tolerance_of(dtype: torch.dtype, layers: int, merged: Sequence[str] = ()) -> float:
    """The largest error of any logit that passes, as a share of the largest logit's size.

    ``merged`` are the stored dtypes of weights that are factors in only one of the two models.
    """
    computing = of_computing(str(dtype).removeprefix("torch."), layers)
    return math.hypot(computing, of_merging(merged))


def merged_weights(a: Model, b: Model) -> list[str]:
    """The stored dtypes of the layers that are factored in one of the models and dense, with the
    same sides, in the other: their product was rounded."""
    first, second = ({m.name: m for m in inventory_for(x).modules if m.gemms} for x in (a, b))
    pairs = [(m, second[m.name]) for m in first.values() if m.name in second]
    return [
        (x if x.kind == "dense" else y).dtype
        for x, y in pairs
        if (x.kind == "dense") != (y.kind == "dense")
        and (x.out_features, x.in_features) == (y.out_features, y.in_features)
    ]


def verify_models(request: VerifyRequest) -> Verification:
    """:func:`gacprof.verify`. The models are held one after the other."""
    a, b, dtype, text = request.a, request.b, request.dtype, request.text
    where = device_of(request.device)
    own = [next(m.parameters()).dtype for m in (a, b) if isinstance(m, nn.Module)]
    numbers = dtype_of(dtype) if dtype is not None else (*own, torch.float32)[0]
    given = None if request.inputs is None else _token_ids(request.inputs)
    folders = [m for m in (a, b) if isinstance(m, str | Path)]
    tokens = None
    if text is not None:
        content = read_text(text)
        tokens = encode(common_tokenizer(folders, request.tokenizer, content), content, LARGEST)
    first = _Run(a, numbers, where, given, tokens)
    second = _Run(b, numbers, where, first.ids, tokens)
    source = "given" if given is not None else f"random, seed {SEED}"
    source += f", {list(first.ids.shape)} tokens"
    return _compare(first, second, numbers, where, source, merged_weights(a, b))


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
        with running(self.name, "a smaller dtype or inputs"):
            loaded = ready(model, dtype, device)
            self._run(loaded, ids, text)
        if not isinstance(model, nn.Module):
            del loaded
            gc.collect()  # the next model needs the memory

    def _run(self, loaded: nn.Module, ids: torch.Tensor | None, text: torch.Tensor | None) -> None:
        self.layers = int(text_config(loaded).num_hidden_layers)
        known = vocabulary([loaded])
        if ids is None:
            ids = torch.randint(known, SHAPE, generator=torch.Generator().manual_seed(SEED))
        self.ids = ids
        for what, given in (("the inputs have", ids), ("the text has", text)):
            if given is not None and int(given.max()) >= known:
                raise CheckpointError(
                    f"{self.name} knows {known} tokens, {what} {int(given.max())}"
                )
        with torch.inference_mode():
            where = next(loaded.parameters()).device
            self.logits = loaded(input_ids=ids.to(where), use_cache=False).logits.cpu()
        self.perplexity: Perplexity | None = None
        if text is not None:
            nll = score_windows(Scorer(loaded), text, windows(len(text), WINDOW, WINDOW))
            self.perplexity = perplexity_of(nll, len(text) - 1)


def _compare(
    a: _Run,
    b: _Run,
    dtype: torch.dtype,
    device: torch.device,
    inputs: str,
    merged: Sequence[str],
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
    tolerance = tolerance_of(dtype, max(a.layers, b.layers), merged)
    relative = error / scale if scale else error
    return Verification(
        a=a.name,
        b=b.name,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        inputs=inputs,
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
        merged=len(merged),
    )


def _token_ids(inputs: Inputs) -> torch.Tensor:
    try:
        ids = torch.as_tensor(inputs).long().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"inputs are not token ids: {error}") from None
    if ids.dim() != 2 or ids.numel() == 0 or int(ids.min()) < 0:
        raise CheckpointError(
            f"inputs are token ids [batch, tokens], not negative, not {list(ids.shape)}"
        )
    return ids


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

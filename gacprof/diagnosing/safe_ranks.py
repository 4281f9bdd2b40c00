"""Safe ranks of a factor pair, for a compressor's loop."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gacprof.core.errors import ConfigError, MapError
from gacprof.core.formatting import percent
from gacprof.core.sizes import SizeSource, Use, advice
from gacprof.core.verdicts import as_verdicts
from gacprof.diagnosing.source import choose_dtype, known_rows, open_source, rows_text
from gacprof.workload.deployment import Tokens
from gacprof.workload.products import side_uses


def safe_ranks(
    layer: Any,
    source: str | Path | SizeSource,
    *,
    tokens: Tokens | None = None,
    dtype: object = None,
    low: int | None = None,
    high: int | None = None,
) -> list[int]:
    """Return, ascending, the ranks at which both products of a linear layer's factors are served
    well.

    They are the ranks that a plan may choose (:func:`~gacprof.core.sizes.seems_safe`). Where there
    is none, a warning says why.

    Parameters
    ----------
    layer
        An ``nn.Linear``, a weight, or its shape (out, in).
    source
        A map (file, run folder or shipped name) or a GPU's name.
    tokens
        Token counts, whose times are added; by default those of the map that hold such ranks.
    dtype
        The type of the products; by default the layer's, else the map's only one.
    low, high
        The first and the last rank; by default 1 and the largest at which the pair is smaller
        than the dense weight.

    Raises
    ------
    MapError
        Where the source knows no rank of such a pair.
    ConfigError
        Where no rank lies from ``low`` to ``high``.

    Examples
    --------
    >>> gacprof.safe_ranks((1024, 1024), "h100", low=80, high=128)
    [80, 96, 112, 128]
    >>> # of one CPU, measured
    >>> gacprof.safe_ranks((1024, 1024), "cpu-example", low=80, high=128)
    [80, 82, 83, 84, 86, 88, 89, 90, 96, 112, 128]
    """
    shape = getattr(layer, "shape", layer)
    if hasattr(layer, "in_features"):
        shape = layer.out_features, layer.in_features
    out_features, in_features = map(int, shape)
    size_source = open_source(source)
    stored = getattr(getattr(layer, "weight", layer), "dtype", "float16")
    used_dtype = choose_dtype(size_source, dtype, stored)
    first = low or 1
    last = min(high or break_even_rank(out_features, in_features), out_features, in_features)
    if not 1 <= first <= last:
        raise ConfigError(f"ranks from {first} to {last}: there is none for {shape}")

    def uses_at(rows: Mapping[int, float]) -> list[Use]:
        first_factor = side_uses("N", in_features, rows, used_dtype)
        return first_factor + side_uses("K", out_features, rows, used_dtype)

    rows = known_rows(tokens, size_source, uses_at, first, last)
    uses = uses_at(rows)
    ranks = size_source.sizes(uses, first, last)
    if not ranks:
        raise MapError(
            f"{size_source.name} knows no rank from {first} to {last} of {out_features}×"
            f"{in_features} in {used_dtype} at {rows_text(rows)}: name other tokens, or "
            f"{advice(size_source, f' --ranks {first} {last}')}"
        )
    verdicts = as_verdicts(size_source.judge(uses, ranks), size_source.tolerance)
    safe = verdicts.offered.tolist()
    if not safe:
        counts = Counter(verdict.verdict for verdict in verdicts)
        warnings.warn(
            f"{size_source.name}: no rank from {first} to {last} is safe: {counts['misaligned']} "
            f"lose to a larger one, {counts['undecided']} are undecided at a tolerance of "
            f"{percent(size_source.tolerance)} (gacprof.explain says why of one)",
            stacklevel=2,
        )
    return safe


def break_even_rank(out_features: int, in_features: int) -> int:
    """Return the largest rank at which two factors are smaller than the dense weight."""
    return max(1, (out_features * in_features - 1) // (out_features + in_features))

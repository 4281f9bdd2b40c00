"""Option values that several verbs share."""

from __future__ import annotations

from gacprof.errors import SuiteError


def token_counts(text: str) -> list[int]:
    """``1,1024`` → [1, 1024]. Raises :class:`SuiteError`."""
    return list(workload(text))


def workload(text: str) -> dict[int, float]:
    """``1:0.9,1024:0.1`` → {1: 0.9, 1024: 0.1}; a count without a weight weighs 1.

    Raises :class:`SuiteError` for anything that is no list of positive counts.
    """
    tokens: dict[int, float] = {}
    for part in text.split(","):
        count, _, weight = part.strip().partition(":")
        try:
            tokens[int(count)] = float(weight) if weight else 1.0
        except ValueError:
            raise SuiteError(
                f"'{part.strip()}' is no token count: write them as 1,1024 or 1:0.9,1024:0.1"
            ) from None
    if any(m <= 0 or not 0 < w < float("inf") for m, w in tokens.items()):
        raise SuiteError(f"token counts and weights must be positive, not '{text}'")
    return tokens

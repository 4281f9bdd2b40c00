"""Option values that several verbs share."""

from __future__ import annotations

from collections.abc import Sequence

from gacprof.core.errors import PlanError, SuiteError


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
            if int(count) in tokens:
                raise SuiteError(f"the token count {int(count)} is there twice in '{text}'")
            tokens[int(count)] = float(weight) if weight else 1.0
        except ValueError:
            raise SuiteError(
                f"'{part.strip()}' is no token count: write them as 1,1024 or 1:0.9,1024:0.1"
            ) from None
    if any(m <= 0 or not 0 < w < float("inf") for m, w in tokens.items()):
        raise SuiteError(f"token counts and weights must be positive, not '{text}'")
    return tokens


def by_pattern(texts: Sequence[str] | None, option: str) -> dict[str, int]:
    """``["*q_proj:rank=128"]`` → {"*q_proj:rank": 128}. Raises :class:`PlanError`."""
    sizes: dict[str, int] = {}
    for text in texts or ():
        pattern, _, size = text.rpartition("=")
        if not pattern or not (size.isascii() and size.isdigit()) or int(size) == 0:
            raise PlanError(f"--{option} {text}: write it as PATTERN=SIZE, such as '*:rank=128'")
        sizes[pattern] = int(size)
    return sizes

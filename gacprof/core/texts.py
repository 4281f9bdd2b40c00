"""Texts of options as people write them: token counts, bytes, durations, sizes by pattern."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from numbers import Real
from typing import Any, Literal

from gacprof.core.errors import MapError, PlanError, SuiteError, short

DIGITS = 24
"""Of a size in a text."""


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


def budget_seconds(text: str) -> float:
    """``90``, ``90s``, ``8m``, ``1.5h`` as seconds. Raises :class:`SuiteError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None or not 0 < float(match[1]) < 1e9:
        raise SuiteError(f"'{text}' is no time budget: give a time such as 90s, 8m or 1h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{kind}": base ** (power + 1)
    for kind, base in (("b", 1000), ("ib", 1024))
    for power, prefix in enumerate("kmgt")
}


def byte_count(text: str) -> int:
    """``6GB`` → 6,000,000,000, ``512MiB`` → 536,870,912; without a unit, bytes.

    Raises :class:`PlanError`.
    """
    compact = text.strip().lower().replace(",", "").replace("_", "")
    number = compact.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = compact[len(number) :].strip()
    try:
        amount = float(number)
        if unit not in _UNITS or not 0 < amount < 1e30:
            raise ValueError
    except ValueError:
        raise PlanError(
            f"--memory {text}: write a positive number of bytes, with kB, MB, GB, TB or KiB, MiB, "
            "GiB, TiB after it, such as 6GB or 512MiB"
        ) from None
    return int(amount * _UNITS[unit])


def by_pattern(
    texts: Sequence[str] | None, option: str, words: Sequence[str] = ()
) -> dict[str, Any]:
    """``["*q_proj:rank=128"]`` → {"*q_proj:rank": 128}; one of the ``words`` may stand for a size.
    Raises :class:`PlanError`, also for a pattern that is given twice."""
    sizes: dict[str, Any] = {}
    for text in texts or ():
        pattern, _, size = text.rpartition("=")
        if not pattern or not (size in words or _is_size(size)):
            raise PlanError(f"--{option} {text}: write it as PATTERN=SIZE, such as '*:rank=128'")
        if pattern in sizes:
            raise PlanError(f"--{option} is given twice for '{pattern}'")
        sizes[pattern] = size if size in words else int(size)
    return sizes


def sizes(texts: Sequence[str] | None, option: str = "--fixed") -> dict[str, int]:
    """``["M=1024", "K=64,N=8"]`` as a dict. Raises :class:`MapError` for anything else."""
    found: dict[str, int] = {}
    for text in (part for texts_ in texts or () for part in texts_.split(",")):
        name, _, size = text.strip().partition("=")
        if not name.isidentifier() or not _is_size(size):
            raise MapError(f"{option} takes a dim and its size, as M=1024, not '{text}'")
        if name in found:
            raise MapError(f"{option} gives {name} twice")
        found[name] = int(size)
    return found


def _is_size(text: str) -> bool:
    """A whole number from 1, of no more digits than any size has."""
    return len(text) <= DIGITS and text.isascii() and text.isdigit() and int(text) > 0


def flags(texts: Sequence[str] | None) -> Mapping[str, Any] | None:
    """``["bias=true"]`` as a dict: true and false, whole numbers, else the text itself."""
    found: dict[str, Any] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not name or not equals or not value:
            raise MapError(f"--flag takes a name and a value, as bias=true, not '{text}'")
        word = {"true": True, "false": False}.get(value.lower())
        number = value == "0" or _is_size(value)
        found[name] = word if word is not None else int(value) if number else value
    return found or None


def first_and_last(ranks: str) -> tuple[int, int]:
    """``64:256`` → (64, 256). Raises :class:`SuiteError`."""
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", ranks.strip())
    if not match:
        raise SuiteError(f"--range is '{ranks}': give the first and the last rank, as 64:256")
    return int(match[1]), int(match[2])


def window(text: str | None) -> int | tuple[int, int] | None:
    """``16`` (a half-width) or ``96:160`` (first and last)."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    ends = [int(end) for end in (first, last) if end == "0" or _is_size(end)]
    if len(ends) == 1 and not colon:
        return ends[0]
    if len(ends) == 2 and ends[0] <= ends[1]:
        return ends[0], ends[1]
    raise MapError(f"--window is a half-width, as 16, or a range, as 96:160, not '{text}'")


Reference = Literal["given", "own", "dense"]
WORKLOAD = re.compile(r"prefill:(?P<prefill>[1-9]\d{0,8})|decode(:(?P<decode>[1-9]\d{0,8}))?")
AMOUNT = re.compile(
    r"(?P<number>\d+\.?\d*(e[+-]?\d+)?)\s*(?P<unit>us|µs|ms)?"
    r"|(?P<of>own|dense)?(?P<share>[+-]?\d+\.?\d*)%|(?P<alone>own|dense)",
    re.IGNORECASE,
)
LIKE = "write for example prefill:256=-5%,decode=0% or decode=900us"


@dataclass(frozen=True)
class LatencyLimit:
    """At most ``amount`` µs, or by that share more than the time ``of`` a reference takes.
    ``tokens`` are the rows of every product; None: the plan's own workload."""

    text: str
    amount: float
    tokens: int | None = None
    of: Reference | None = None


def latency_limits(given: float | str | None) -> tuple[LatencyLimit, ...]:
    """Limits on time: a number of µs, or text ``WORKLOAD=AMOUNT``, several with commas between:
    ``prefill:256=-5%,decode=0%``.

    A workload is ``prefill:TOKENS``, ``decode`` or ``decode:SEQUENCES``: so many rows go through
    every product. An amount is a time (``900``, ``900us``, ``1.2ms``) or a change against the model
    as it is given (``-5%``), the sizes that the compressor chose (``own-5%``), or the uncompressed
    model (``dense+2%``). An amount without a workload is over the plan's own token counts.

    Raises :class:`PlanError`.
    """
    if given is None:
        return ()
    if isinstance(given, Real) and not isinstance(given, bool):
        if not 0 < given < float("inf"):
            raise PlanError(f"--latency-limit {given}: it must be positive; {LIKE}")
        return (LatencyLimit(f"{float(given):g}us", float(given)),)
    if not isinstance(given, str) or not given.strip():
        raise PlanError(f"--latency-limit {given!r}: it must be a time in µs or text; {LIKE}")
    found = [_limit(part.strip()) for part in given.split(",")]
    twice = next((f.text for i, f in enumerate(found) if f.tokens in {
        g.tokens for g in found[:i]}), None)  # fmt: skip
    if twice is not None:
        raise PlanError(f"--latency-limit '{twice}' is the second for its workload: {LIKE}")
    return tuple(found)


def _limit(text: str) -> LatencyLimit:
    name, equals, amount = text.rpartition("=")
    tokens = workload_tokens(name.strip()) if equals else None
    read = AMOUNT.fullmatch(amount.strip())
    if read is None or (equals and tokens is None):
        raise PlanError(f"--latency-limit '{short(text)}' is not understood: {LIKE}")
    if read["number"] is not None:
        us = float(read["number"]) * (1e3 if read["unit"] == "ms" else 1.0)
        if not 0 < us < float("inf"):
            raise PlanError(f"--latency-limit '{short(text)}' must be positive; {LIKE}")
        return LatencyLimit(text, us, tokens)
    share = float(read["share"] or 0.0) / 100
    if not isfinite(share) or share <= -1:
        raise PlanError(f"--latency-limit '{short(text)}' leaves no time: {LIKE}")
    of: Reference = (read["of"] or read["alone"] or "given").lower()  # type: ignore[assignment]
    return LatencyLimit(text, share, tokens, of)


def workload_tokens(name: str) -> int | None:
    """The rows of every product of ``prefill:TOKENS``, ``decode`` (1) or ``decode:SEQUENCES``; None
    for another name."""
    read = WORKLOAD.fullmatch(name)
    return None if read is None else int(read["prefill"] or read["decode"] or 1)


def workload_name(tokens: int) -> str:
    """What :func:`workload_tokens` reads."""
    return "decode" if tokens == 1 else f"prefill:{tokens}"


def multiple_of(text: str) -> int:
    """The multiple of ``rounded-8``. Raises :class:`PlanError` for another baseline."""
    read = re.fullmatch(r"rounded-([1-9]\d{0,4})", text) if isinstance(text, str) else None
    if read is None:
        raise PlanError(f"no baseline is called {short(text)!r}: ask for --dominate rounded-8")
    return int(read[1])


def shapes_or_name(text: str) -> str | list[tuple[int, int]]:
    """``4096x4096,11008x4096`` as pairs; anything else is a checkpoint's name."""
    found = re.findall(r"([1-9]\d{0,8})x([1-9]\d{0,8})(?:,|$)", text)
    if ",".join(f"{o}x{i}" for o, i in found) != text:
        return text
    return [(int(o), int(i)) for o, i in found]

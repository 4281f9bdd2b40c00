"""Numbers, durations and lists as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from gacprof.core.sizes import Interval


def microseconds(value: float) -> str:
    """Write a duration given in µs in a unit that suits its size: ``4.3 ms``."""
    if value < 1e3:
        return f"{value:.1f} µs"
    if value < 1e6:
        return f"{value / 1e3:.2f} ms"
    return f"{value / 1e6:.2f} s"


def time_interval(interval: Interval) -> str:
    """Write a duration in µs with its bounds: ``4.31 ms (4.02 to 4.61)``."""
    unit, divisor = ("ms", 1e3) if interval.value >= 1e3 else ("µs", 1.0)
    low, value, high = (x / divisor for x in (interval.low, interval.value, interval.high))
    return f"{value:.3g} {unit} ({low:.3g} to {high:.3g})"


def percent(value: float, decimals: int = 1) -> str:
    """Write a fraction as ``2.0 %``."""
    return f"{100 * value:.{decimals}f} %"


def percent_interval(interval: Interval) -> str:
    """Write a fraction with its bounds: ``-2.7 % (-4.2 to -1.1)``."""
    low, value, high = (100 * x for x in (interval.low, interval.value, interval.high))
    return f"{value:+.1f} % ({low:+.1f} to {high:+.1f})"


def counted(number: int, noun: str) -> str:
    """Write a number with its noun: ``1 curve``, ``2 curves``."""
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"


def sizes_text(values: Sequence[int]) -> str:
    """Write ascending sizes, even steps shortened: ``96, 104 … 160 (by 8)``; or all of a range that
    are no multiple of a power of two: ``1 … 31 but multiples of 8``."""
    if not values:
        return "none"
    for multiple in (2, 4, 8, 16):
        between = range(values[0], values[-1] + 1) if len(values) > multiple else ()
        if list(values) == [size for size in between if size % multiple]:
            return f"{values[0]} … {values[-1]} but multiples of {multiple}"
    parts: list[str] = []
    start = 0
    while start < len(values):
        end = start
        step = values[min(start + 1, len(values) - 1)] - values[start]
        while end + 1 < len(values) and values[end + 1] - values[end] == step:
            end += 1
        if end - start >= 3:
            parts.append(f"{values[start]} … {values[end]}" + (f" (by {step})" if step > 1 else ""))
            start = end + 1
        else:
            parts.append(str(values[start]))
            start += 1
    return ", ".join(parts)


def one_line(text: str) -> str:
    """Escape the control characters of a text, line ends among them."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)

"""Results as people read them: numbers, durations, lists, and tables in a notebook."""

from __future__ import annotations

import re
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar

from gacprof.core import Progress

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


def visible(text: str) -> str:
    """A text of strangers as a terminal may show it: control characters and halves of characters
    are escaped (``\\x1b[31m``), which would colour, hide or rewrite what is said."""
    if text.isprintable():
        return text
    return "".join(
        repr(c)[1:-1] if unicodedata.category(c).startswith("C") and c not in "\n\t" else c
        for c in text
    )


def slug(name: str) -> str:
    """``NVIDIA H100 80GB`` as ``nvidia-h100-80gb``: a name for a folder."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def workload(tokens: Mapping[int, float]) -> str:
    """Token counts with their weights: ``1 token × 1, 256 tokens × 0.5``."""
    return ", ".join(f"{m} token{'s' * (m != 1)} × {w:g}" for m, w in tokens.items())


def microseconds(value: float | None) -> str | None:
    """A duration given in µs, with a unit that suits its size."""
    if value is None:
        return None
    if value < 1e3:
        return f"{value:.1f} µs"
    return f"{value / 1e3:.2f} ms" if value < 1e6 else f"{value / 1e6:.2f} s"


def bounded_time(low: float, value: float, high: float) -> str:
    """A time in µs with its bounds: ``4.31 ms (4.02 to 4.61)``."""
    if low == value == high == 0.0:
        return "0"
    unit, size = ("ms", 1e3) if max(abs(value), abs(high)) >= 1e3 else ("µs", 1.0)
    ends = (end / size for end in (low, value, high))
    low_, value_, high_ = (f"{e:,.0f}" if abs(e) >= 100 else f"{e:.3g}" for e in ends)
    return f"{value_} {unit} ({low_} to {high_})"


def duration(seconds: float) -> str:
    """A duration given in seconds, for a person who waits: ``41 s``, ``12 min``."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def counted(number: int, word: str, plural: str = "") -> str:
    """``1 curve``, ``2 curves``; ``plural`` where it is no added s."""
    return f"{number:,} {word if number == 1 else plural or word + 's'}"


def listed(values: Sequence[object], most: int, between: str = ", ") -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(values) - most} more" if len(values) > most else ""
    return between.join(map(str, values[:most])) + more


def percent(value: float | None, signed: bool = False, decimals: int = 1) -> str | None:
    """A share as ``2.0 %`` or ``+2.0 %``."""
    return None if value is None else f"{value * 100:{'+' if signed else ''}.{decimals}f} %"


def interval(low: float, value: float, high: float, decimals: int = 1) -> str:
    """A share with its bounds: ``-2.7 % (-4.2 to -1.1)``."""
    ends = (f"{100 * end:+.{decimals}f}" for end in (low, high))
    return f"{percent(value, True, decimals)} ({' to '.join(ends)})"


def at_most(bound: float | None) -> str:
    """The upper bound of a penalty; *open* where nothing comparable is larger."""
    return percent(bound) or "open"


def dims(listed: Sequence[int]) -> str:
    """Dims in ascending order, even runs shortened: 96, 104 … 160 (by 8)."""
    parts: list[str] = []
    i = 0
    while i < len(listed):
        j = i + 1
        while j + 1 < len(listed) and listed[j + 1] - listed[j] == listed[i + 1] - listed[i]:
            j += 1
        if j - i >= 3:
            step = listed[i + 1] - listed[i]
            by = "" if step == 1 else f" (by {step})"
            parts.append(f"{listed[i]} … {listed[j]}{by}")
            i = j + 1
        else:
            parts.append(str(listed[i]))
            i += 1
    return ", ".join(parts) or "none"


SHOWN_ROWS = 20
"""Of a table in a notebook; ``to_frame()`` has all."""

REDRAWN_S = 0.25
"""A bar is drawn anew no more often than this."""


def notebook_progress(title: str) -> Progress | None:
    """A bar with the time left below the running cell; None outside a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is None:
        return None
    from IPython.display import HTML, display

    begun = drawn = time.monotonic()
    handle = display(HTML(escape(title)), display_id=True)

    def advance(done: float, total: float, what: object = "") -> None:
        nonlocal drawn
        now = time.monotonic()
        if handle is None or (now - drawn < REDRAWN_S and done < total):
            return
        drawn, passed = now, now - begun
        left = f"{duration(passed * (total / done - 1))} left" if 0 < done < total else ""
        words = left or f"{duration(passed)}"
        bar = f'<progress value="{done}" max="{total}"></progress>'
        handle.update(HTML(f"{bar} {escape(title)}: {words}"))

    return advance


class Framed:
    """A result whose parts are the rows of a table."""

    def frame_rows(self) -> Iterable[Mapping[str, Any]]:
        """A row for each part: its fields by name, times in µs, shares as fractions."""
        raise NotImplementedError

    def frame_title(self) -> str:
        """What a notebook prints above the table."""
        raise NotImplementedError

    def to_frame(self) -> pd.DataFrame:
        """The rows as a pandas table."""
        import pandas as pd

        return pd.DataFrame(list(self.frame_rows()))

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(max_rows=SHOWN_ROWS, float_format="{:.4g}".format)
        return f"<p>{escape(self.frame_title())}</p>{table}"


class Listed(Framed, list[T]):
    """Results of one kind, each with ``as_dict``: a list that is a table too."""

    def __init__(self, rows: Iterable[T] = (), title: str = "") -> None:
        super().__init__(rows)
        self.title = title

    def frame_rows(self) -> Iterable[Mapping[str, Any]]:
        return (one.as_dict() for one in self)  # type: ignore[attr-defined]

    def frame_title(self) -> str:
        return self.title

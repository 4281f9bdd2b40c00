"""What a notebook shows: results as tables (pandas for who goes on with them), and progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from gacprof.core import Progress
from gacprof.core.formatting import duration

if TYPE_CHECKING:
    import pandas as pd

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

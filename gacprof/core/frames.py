"""Results as tables: pandas for who goes on with them, HTML for a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

SHOWN_ROWS = 20
"""Of a table in a notebook; ``to_frame()`` has all."""


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

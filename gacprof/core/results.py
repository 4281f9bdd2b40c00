"""What the results of verbs have in common: they print as one screen, their rows are a table."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from gacprof.core.files import plain

if TYPE_CHECKING:
    import pandas as pd


class Result:
    """A result that prints as on the command line; ``repr`` has all fields."""

    def __str__(self) -> str:
        # by its name: all sentences are made in the last package, which imports this one
        return str(import_module("gacprof.reporting.terminal").screen_of(self))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print as on the command line in a notebook, too."""
        printer.text(str(self))


class Table(Result):
    """A result whose ``rows_in`` names the field that holds its rows."""

    rows_in: ClassVar[str]

    def rows(self) -> Sequence[Any]:
        """Return the rows: dataclasses, or mappings with some inside."""
        rows: Sequence[Any] = getattr(self, self.rows_in)
        return rows

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each dim, product, size or timing; a column for each of its numbers."""
        import pandas as pd

        return pd.json_normalize(plain(list(self.rows())))

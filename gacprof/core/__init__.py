"""What every room stands on: points, errors, files, dtypes, and the fit of blocks."""

from collections.abc import Callable

Progress = Callable[[float, float, object], None]
"""Called while something long goes on, with (done, total, what comes next)."""

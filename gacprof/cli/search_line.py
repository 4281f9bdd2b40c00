"""A line on the terminal while a plan is searched for: the best so far, and what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gacprof.cli.printing import err


@contextmanager
def search_line(objective: str) -> Iterator[Callable[[float, float], None]]:
    """Call what it gives with the incumbent's value and the bound; gone when the search is."""
    from rich.live import Live
    from rich.spinner import Spinner

    spinner = Spinner("dots", f"planning for {objective}: reading")
    with Live(
        spinner, console=err, transient=True, refresh_per_second=8, auto_refresh=err.is_terminal
    ) as live:
        if not err.is_terminal:
            live.stop()

        def tell(value: float, bound: float) -> None:
            spinner.update(
                text=f"planning for {objective}: best {value:.8g}, bound {bound:.8g}, "
                f"gap {bound - value:.2g}; Ctrl-C keeps it"
            )

        yield tell

"""The whole chain once, on the device at hand, with a model that shows what it is for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gacprof.core import Progress
from gacprof.core.request import Request, hook, option
from gacprof.evaluation.request import OnDevice


class DemoRequest(Request):
    """Where the demo is made, and of which ``model``: a small trained model's folder with its
    tokenizer. Without one the demo makes factors of random weights, and pads them in place of
    compressing anew. ``tell`` is called with a line for each result."""

    out: str | Path = option(
        kw_only=False, read=Path, help="The demo's folder; an earlier demo is replaced."
    )
    model: str | Path | None = option(
        default=None, read=Path,
        help="A small dense model to compress. Default: factors of random weights.",
    )  # fmt: skip
    device: str | None = option(default=None, like=OnDevice, group="")
    tell: Callable[[str], None] | None = hook(default=None)
    progress: Progress | None = hook(default=None)

"""What ``realign`` and ``import-gguf`` are asked, each as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from gacprof.core import Progress
from gacprof.core.dtypes import full_name
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.core.request import Request, argument, hook, option
from gacprof.diagnosing.request import OnCheckpoint
from gacprof.resizing.sizes import Asked, Fuse

if TYPE_CHECKING:
    import torch

    from gacprof.diagnosing.request import Model

ONE_OF = "One of"


class RealignRequest(OnCheckpoint):
    """What :func:`gacprof.realign` is asked: sizes, in one of five ways, and where to write.

    ``asked`` is a plan or its file, sizes by dim name (None: multiply out), a word (``minimal``,
    ``optimal``, ``uniform``, ``fuse``), or :class:`Padding`, :class:`Uniform` or :class:`Fuse`
    with other multiples or of some modules. ``strategy``, ``uniform``, and ``fuse`` with its
    ``module`` say the words. Without ``out`` the checkpoint is a model in memory: a resized copy
    is returned, or with ``inplace`` the model itself is changed.
    """

    error = PlanError

    asked: Asked | None = option(
        default=None, kw_only=False, name="--plan", read=Path, group=ONE_OF, help="A plan's file."
    )
    out: str | Path | None = option(
        default=None, kw_only=False, read=Path,
        help="The new checkpoint's folder; must not exist.",
    )  # fmt: skip
    strategy: str | None = option(
        default=None, choices=("minimal", "optimal"), group=ONE_OF,
        help="Without a map: minimal pads to 8, optimal to 16.",
    )  # fmt: skip
    uniform: bool = option(default=False, group=ONE_OF, help="One common width: a plain config.")
    fuse: bool = option(
        default=False, group=ONE_OF, help="Multiply factor pairs out into dense weights."
    )
    module: Sequence[str] | None = option(
        default=None, many=True, group=ONE_OF, help="With --fuse: only this module (repeatable)."
    )
    base: Model | None = option(
        default=None, help="The dense original: raised ranks get what it has, not zeros."
    )
    inplace: bool = field(default=False)
    progress: Progress | None = hook(default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        if sum((self.asked is not None, self.strategy is not None, self.uniform, self.fuse)) != 1:
            raise PlanError(
                "give one of --plan FILE, --strategy minimal|optimal, --uniform and --fuse"
            )
        if self.base is not None and (self.uniform or self.fuse):
            raise PlanError("--base raises ranks: it goes with --plan or --strategy")
        if self.module and not self.fuse:
            raise PlanError("--module names what --fuse fuses: give --fuse too")

    @property
    def sizes(self) -> Asked:
        """What is asked, in one form."""
        if self.fuse:
            return Fuse(tuple(self.module) if self.module else None)
        if self.asked is not None:
            return self.asked
        return self.strategy or "uniform"


class ImportRequest(Request):
    """What :func:`gacprof.import_gguf` is asked."""

    error = CheckpointError

    source: str | Path = argument(
        kw_only=False, read=Path, metavar="GGUF", help="A *.gguf file, or a folder with one."
    )
    out: str | Path = option(
        kw_only=False, read=Path, help="The new checkpoint's folder; must not exist."
    )
    dtype: torch.dtype | str = option(
        default="bfloat16", read=full_name, help="Of the weights written."
    )

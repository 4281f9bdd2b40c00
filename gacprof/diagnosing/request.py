"""What the verbs that judge a model's sizes are asked alike: model, source, workload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.cliffmap.request import CandidatesRequest, OnSizes
from gacprof.cliffmap.source import SizeSource, Tokens
from gacprof.core.dtypes import full_name
from gacprof.core.errors import PlanError
from gacprof.core.request import Request, argument, option
from gacprof.core.texts import workload

if TYPE_CHECKING:
    import torch as pytorch

    from gacprof.checkpoint import Inventory

    Model = str | Path | Inventory | pytorch.nn.Module

SOURCE = "Where good sizes are known from"
WORKLOAD = "Workload"


def gpu_names() -> list[str]:
    """The GPUs that have rules, for completion."""
    from gacprof.devices.datasheet import sheets

    return list(sheets())


class OnCheckpoint(Request):
    """A request on one model."""

    checkpoint: Model = argument(kw_only=False, help="A checkpoint's folder or weights file.")


class OnSource(Request):
    """A request that rests on a source of sizes: a map, a rule table, or a GPU's rules."""

    cliff_map: SizeSource | str | Path | None = option(
        default=None, kw_only=False, like=OnSizes, name="--map", metavar=None, group=SOURCE
    )  # fmt: skip
    gpu: str | None = option(
        default=None, group=SOURCE, suggested=gpu_names,
        help="Instead: the rules of this GPU (h100, l40s …), which need no measurement; with times "
        "by others' measurements where the extra 'elsewhere' is installed.",
    )  # fmt: skip
    torch: str | None = option(
        default=None, group=SOURCE,
        help="With --gpu: the PyTorch release, as 2.11. Default: the newest.",
    )  # fmt: skip
    engine: str | None = option(
        default=None, group=SOURCE,
        help="With --gpu: times of this engine (vllm, sglang, trtllm). Default: of all.",
    )  # fmt: skip
    tokens: Tokens | None = option(
        default=None, read=workload, metavar="M[:W],…", group=WORKLOAD,
        help="Token counts served, with weights: 1:0.9,1024:0.1. Default: those that the map's "
        "products of this model were measured at.",
    )  # fmt: skip

    def open_source(self) -> SizeSource:
        """Raises :class:`MapError` for none or two, and for a GPU or release without rules."""
        from gacprof.diagnosing.sources import open_source

        return open_source(self.cliff_map, gpu=self.gpu, torch=self.torch, engine=self.engine)

    @property
    def has_source(self) -> bool:
        named = self.cliff_map, self.gpu, self.torch, self.engine
        return any(given is not None for given in named)


class OnDtype(OnSource):
    """A request that judges sizes in a dtype."""

    dtype: str | None = option(
        default=None, read=full_name, group=WORKLOAD, help="Default: the checkpoint's."
    )


class OnWorkload(OnDtype, OnCheckpoint):
    """A request that judges a checkpoint's sizes."""


class OnConfig(Request):
    """A request for which a config alone may do."""

    checkpoint: Model | Mapping[str, Any] = argument(
        kw_only=False, help="A checkpoint's folder or weights file; for --gpu a config.json."
    )


class DiagnoseRequest(OnDtype, OnConfig):
    """What :func:`gacprof.diagnose` is asked."""

    error = PlanError

    tp: int = option(default=1, like=CandidatesRequest, group=WORKLOAD)

"""What a compression is asked for, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import CompressionError, short
from gacprof.core.files import plain
from gacprof.core.plugins import names_brought
from gacprof.core.request import RUN, Request, argument, hook, option
from gacprof.core.tasks import Tasks
from gacprof.diagnosing.request import OnDtype
from gacprof.evaluation.request import OnDevice, Tokenized
from gacprof.extras.compress.calibration import LENGTH, WINDOWS
from gacprof.planning.request import LIMITS, Constraints, OnTimes

if TYPE_CHECKING:
    import torch as pytorch

    from gacprof.diagnosing.request import Model
    from gacprof.extras.compress.state import Tell

OBJECTIVES = ("loss", "gscalar", "energy", "gac")
BY_LOSS = ("loss", "gscalar")
"""The objectives that estimate what a cut adds to the loss, by a backward pass."""
SCORES = ("magnitude", "activation", "gradient", "fisher")
BACKWARD = ("gradient", "fisher")
"""The scores that need a backward pass."""
TAYLOR = "taylor"
"""What pruning ranks by unless a score is asked for."""

METHOD = "Method"
CALIBRATION = "Calibration"
OWN = ("alpha", "group_size", "scope")
"""Options of one method alone."""
_WHERE = ("model", "out", "cliff_map", "gpu", "torch", "engine", "calib", "tokenizer", "device")
OF_THE_RUN = frozenset((*_WHERE, "work", "bench", *OWN))
"""Fields that say on what and where, not what is made: the record has them elsewhere or not."""


_FILES = "gacprof.extras.compress.methods"
METHODS = {
    "asvd": f"{_FILES}.asvd:ActivationAware",
    "svd-llm": f"{_FILES}.method:Whitened",
    "kfac-svd": f"{_FILES}.method:TwoSided",
    "palu": f"{_FILES}.palu:GroupedHeads",
    "llm-pruner": f"{_FILES}.llmpruner:TaylorPruning",
    "drop-layers": "gacprof.extras.compress.depth:DropLayers",
    "svd": f"{_FILES}.method:PlainSvd",
}
"""Our methods by name, each imported when it is run."""


def method_names() -> list[str]:
    """All methods: ours, then those of other packages by entry points."""
    return [*METHODS, *names_brought("methods")]


class OnDense(Request):
    """A request that makes a smaller model of one."""

    model: Model = argument(
        kw_only=False, help="The folder or weights file of a dense model, or of factor pairs."
    )
    out: str | Path = option(
        kw_only=False, read=Path, help="The compressed model's folder; must not exist."
    )


class CompressRequest(OnTimes, OnDtype, OnDense):
    """What :func:`gacprof.compress` is asked.

    ``ratio`` is a share of the parameters of the layers that the method compresses; of a model of
    factor pairs it counts from what these have, and 0 only chooses their sizes anew. ``calib`` is a
    text file or token ids [windows, tokens]. ``tell`` is called with a line for each step;
    ``tasks`` decompose the layers elsewhere, with the same result to the last bit.
    ``objective`` is ``loss`` (the least second-order estimate of the loss that the cuts add, by the
    covariance of the gradients of each layer's outputs), ``gscalar`` (the same by their mean square
    alone), ``energy`` (most energy of the original weights kept) or ``gac`` (the paper's Eq. 4, by
    ``score``); by default ``loss`` for a low-rank method with a text and no score, else ``energy``.
    One that is named chooses among the multiples of ``round_to`` too. ``options`` are the method's
    own by name, those of methods that other packages bring among them.

    Raises :class:`CompressionError` for a value out of range.
    """

    error = CompressionError

    method: str = option(
        group=METHOD, suggested=method_names, help=f"One of {', '.join(method_names())}.",
    )  # fmt: skip
    ratio: float = option(
        group=METHOD, read=float,
        help="Share of the parameters to remove from the layers it compresses; by palu of the "
        "entries in the cache.",
    )  # fmt: skip
    round_to: int | None = option(
        default=None, name="--round", read=int, least=1, group=METHOD,
        help="In place of a map: the tool's own rounding, or by an --objective multiples of this.",
    )  # fmt: skip
    calib: str | Path | pytorch.Tensor | None = option(
        default=None, read=Path, group=CALIBRATION, help="A calibration text (svd needs none)."
    )
    score: str | None = option(
        default=None, choices=SCORES, group=METHOD,
        help="magnitude, activation, gradient or fisher.",
    )  # fmt: skip
    objective: str | None = option(
        default=None, choices=OBJECTIVES, group=METHOD,
        help="loss (the default with a text): least loss added, by a backward pass; gscalar: the "
        "same by one number a layer; energy: most energy kept; gac: the paper's Eq. 4.",
    )  # fmt: skip
    preset: str | None = option(default=None, like=Constraints, group=LIMITS)
    window: float | None = option(
        default=None, read=float, least=0, group=LIMITS,
        help="± share that a size may move, and 32 at least. Default: 0.25; by loss no limit.",
    )  # fmt: skip
    windows: int = option(
        default=WINDOWS, read=int, least=1, group=CALIBRATION, help="Windows read of the text."
    )
    length: int = option(
        default=LENGTH, read=int, least=2, group=CALIBRATION, help="Tokens in a window."
    )
    alpha: float | None = option(
        default=None, read=float, least=0, most=4, group=METHOD,
        help="asvd: exponent of the scaling; 0.5.",
    )  # fmt: skip
    group_size: int | None = option(
        default=None, read=int, least=1, group=METHOD, help="palu: most heads in a group; 4."
    )
    scope: str | None = option(
        default=None, group=METHOD,
        help="llm-pruner: local (one share for all layers) or global.",
    )  # fmt: skip
    tokenizer: str | Path | None = option(default=None, like=Tokenized, group=CALIBRATION)
    device: str | None = option(default=None, like=OnDevice)
    work: str | Path | None = option(
        default=None, read=Path, group=RUN,
        help="Keep what is worked out here, for other ratios and maps of this method.",
    )  # fmt: skip
    options: Mapping[str, Any] = field(default_factory=dict)
    tell: Tell | None = hook(default=None)
    tasks: Tasks | None = hook(default=None)

    def __post_init__(self) -> None:
        self._check_types()
        given = {name: getattr(self, name) for name in OWN}
        own = {name: value for name, value in given.items() if value is not None}
        object.__setattr__(self, "options", {**own, **self.options})
        for name in OWN:
            object.__setattr__(self, name, self.options.get(name))
        if self.objective in ("latency", "pad"):
            raise CompressionError(
                f"compress has no objective {self.objective}: 'gacprof plan --objective "
                f"{self.objective}' has it; --latency-limit holds compress to a time"
            )
        super().__post_init__()
        object.__setattr__(self, "out", Path(self.out))
        if not 0 <= self.ratio < 1:
            meant = f": was {self.ratio / 100:g} meant?" if 2 <= self.ratio < 100 else ""
            raise CompressionError(
                f"the ratio {short(self.ratio)} is not between 0 and 1: it is the share to "
                f"remove{meant}"
            )
        self._check_source()

    def _check_types(self) -> None:
        """Raises :class:`CompressionError` for an argument that is none of the kind."""
        paths = {name: isinstance(getattr(self, name), str | Path) for name in ("model", "out")}
        in_memory = hasattr(self.model, "state_dict") or hasattr(self.model, "tensors")
        kinds = {
            "model": (paths["model"] or in_memory, "a folder, a weights file or a model"),
            "out": (paths["out"], "the path of a new folder"),
            "calib": (True, "a text file or token ids [windows, tokens]"),
            "options": (isinstance(self.options, Mapping), "values by name"),
        } | {n: (getattr(self, n) is not None, "a number") for n in ("ratio", "windows", "length")}
        for name, (fits, kind) in kinds.items():
            value = getattr(self, name)
            if not fits or (isinstance(value, str) and not value):
                raise CompressionError(f"{name} is {short(repr(value))}: it must be {kind}")

    def _check_source(self) -> None:
        """Raises :class:`CompressionError` for what goes with a source of sizes alone, or not."""
        if self.has_source and self.round_to is not None:
            raise CompressionError(
                "a map or rules say which sizes are good: give these or round_to, not both"
            )
        if self.objective == "gac" and self.round_to is not None:
            raise CompressionError(
                "the objective gac (Eq. 4) chooses between the safe sizes next to the method's "
                "own: give a map, or of multiples (--round) let loss, gscalar or energy choose"
            )
        if self.preset is not None and not self.has_source:
            raise CompressionError(
                "an engine's preset chooses among good sizes: give --map or --gpu too"
            )
        of_source = {"window": self.window, "tokens": self.tokens, "dtype": self.dtype}
        for name, value in of_source.items():
            if value is not None and not self.has_source:
                raise CompressionError(f"--{name} is about sizes of a source: give --map or --gpu")
        if (self.latency_limit_us or self.dominate or self.bench) and not self.has_source:
            raise CompressionError("a limit on latency needs a map, which predicts it")

    def recorded(self) -> dict[str, Any]:
        """What the output's record says of the request."""
        names = [f.name for f in fields(self) if f.compare and f.name not in OF_THE_RUN]
        asked = {name: plain(getattr(self, name)) for name in names}
        if self.tokens is not None and not isinstance(self.tokens, Mapping):
            asked["tokens"] = list(self.tokens)
        return asked

"""What a plan is asked for: objective, budgets, limits, and what the user holds fixed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Literal

from gacprof.core import Progress
from gacprof.core.errors import PlanError
from gacprof.core.files import read_json
from gacprof.core.request import Request, hook, nested, option
from gacprof.core.texts import by_pattern, byte_count, latency_limits, multiple_of
from gacprof.diagnosing.request import OnWorkload

WINDOW = 0.25
"""How far around a dim's size other sizes are offered, as a fraction."""

BUDGET = "the budget "
"""How the note on a budget that may not be meant begins."""

OBJECTIVES = ("pad", "energy", "gac", "latency", "loss")

Pin = int | Literal["keep"]


def read_scores(path: str | Path) -> dict[str, float]:
    """Importance by dim name. Raises :class:`PlanError` for anything but an object of numbers."""
    try:
        data = read_json(Path(path))
        if not isinstance(data, dict):
            raise ValueError(f"it is a {type(data).__name__}")
    except (OSError, ValueError) as error:
        raise PlanError(f"{path} is no JSON object of numbers by dim name: {error}") from None
    for name, score in data.items():
        if isinstance(score, bool) or not isinstance(score, int | float):
            raise PlanError(f"{path}: the score of '{name}' is {score!r}, which is no number")
        if isinstance(score, int) and abs(score) > 2**1000:
            raise PlanError(f"{path}: the score of '{name}' is beyond any scale")
    return data


HELD = "Held fixed"
LIMITS = "Limits"
SEVERAL = "May be repeated; all hold."


class Constraints(Request, kw_only=False):
    """What the user holds fixed. Patterns are shell-style, over dim names.

    ``uniform`` shares one size over the dims of one weight (``module``: PaLU's groups), of a
    role in all layers (``role``), of a kind (``kind``), or over all that match a pattern
    (``*:width``: one width for a plain config); it may be several of these, the first that
    matches a dim counts. ``pinned`` maps patterns to sizes, or to ``"keep"`` for the size that
    a dim has; a pin is obeyed whether or not the map calls the size safe. ``least`` and
    ``most`` bound sizes, of all patterns that match a dim; they reach beyond the window.
    ``untouched`` lets dims stay as they are, misaligned or not, where that is worth more;
    ``fuse`` offers the dense weight in place of a factor pair, as far as ``most`` allows its rank,
    or with ``dense`` whatever ``most`` says. ``preset`` names an engine and how it is to
    serve the model (``vllm,tp=4,marlin``, :mod:`gacprof.planning.presets`): only sizes that it
    takes are offered.
    """

    error = PlanError

    uniform: str | Sequence[str] = option(
        kw_only=False, default="none", many=True, group=HELD,
        help="One size over a 'module' (PaLU's groups), a 'role', a 'kind', or a PATTERN such as "
        "'*:width'; may be repeated.",
    )  # fmt: skip
    pinned: Mapping[str, Pin] | None = option(
        kw_only=False, default=None, name="--pin", many=True, group=HELD,
        read=partial(by_pattern, option="pin", words=("keep",)), metavar="PATTERN=SIZE|keep",
        help="Over dim names; may be repeated.",
    )  # fmt: skip
    least: Mapping[str, int] | None = option(
        kw_only=False, default=None, many=True, group=HELD, metavar="PATTERN=SIZE", help=SEVERAL,
        read=partial(by_pattern, option="least"),
    )  # fmt: skip
    most: Mapping[str, int] | None = option(
        kw_only=False, default=None, many=True, group=HELD, metavar="PATTERN=SIZE", help=SEVERAL,
        read=partial(by_pattern, option="most"),
    )  # fmt: skip
    untouched: bool = option(
        kw_only=False, default=False, name="--allow-untouched", group=HELD,
        help="Let misaligned dims stay where that pays.",
    )  # fmt: skip
    fuse: bool = option(
        kw_only=False, default=True, group=HELD, help="Whether a factor pair may become dense."
    )
    preset: str | None = option(
        kw_only=False, default=None, name=("--for", "--preset"), metavar="ENGINE[,…]", group=HELD,
        help="Only sizes that this engine takes: vllm,tp=4,marlin, gguf,q4_k, gptq,group=128, "
        "trt-llm, sglang.",
    )  # fmt: skip
    dense: bool = field(default=False)


class OnTimes(Request):
    """A request whose plan keeps to times. ``latency_limit_us`` is the most that workloads may take
    in the planned weights' products, all of them resized together
    (:func:`gacprof.core.texts.latency_limits`); ``dominate`` names a baseline that the plan is to
    be no larger and no slower than; ``bench`` is what tells of whole steps."""

    latency_limit_us: float | str | None = option(
        default=None, name="--latency-limit", metavar="WORKLOAD=AMOUNT,…", group=LIMITS,
        help="Most predicted time of the planned weights, by workload: prefill:256=-5%,decode=own "
        "or decode=1.2ms; µs over --tokens where it is a number. -5% is against the model given: "
        "in compress the uncompressed one; dense-5% and own-5% say which.",
    )  # fmt: skip
    dominate: str | None = option(
        default=None, metavar="rounded-8", group=LIMITS,
        help="No larger than with all sizes rounded down to multiples, nor slower at any of "
        "--tokens.",
    )  # fmt: skip
    bench: Path | None = option(
        default=None, read=Path, metavar="FILE", group=LIMITS,
        help="What 'bench --json' printed of this model or the uncompressed one: times and "
        "relative limits are of whole steps then.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        latency_limits(self.latency_limit_us)
        if self.dominate is not None:
            multiple_of(self.dominate)


class SizesRequest(OnTimes, OnWorkload):
    """What ``plan`` and ``pareto`` are asked alike; all limits that are given hold.

    ``quality_floor`` is the least mean share of energy kept.
    ``tokens`` and ``dtype`` are the workload; ``scores`` are importances by dim name, for the
    objective ``gac``. ``progress(value, bound, what)`` is called while the search goes on.
    """

    error = PlanError

    objective: str = option(
        default="energy",
        choices=OBJECTIVES,
        help="pad, energy, gac, latency, or loss: compress only.",
    )
    window: float = option(
        default=WINDOW, read=float, least=0, help="± share of a dim, and 32 at least."
    )
    scores: Mapping[str, float] | None = option(
        default=None, read=read_scores, metavar="FILE",
        help="JSON of importance by dim name, for gac.",
    )  # fmt: skip
    quality_floor: float | None = option(
        default=None, read=float, least=0, most=1, group=LIMITS,
        help="Least mean share of energy kept.",
    )  # fmt: skip
    constraints: Constraints = nested(factory=Constraints)
    progress: Progress | None = hook(default=None)

    @property
    def has_budget(self) -> bool:
        return False

    @property
    def least_kept(self) -> float | None:
        """The quality floor: where latency alone is asked for and nothing limits it, all of it."""
        fastest = self.objective == "latency" and not self.has_budget
        return 1.0 if fastest and self.quality_floor is None else self.quality_floor

    @property
    def notes(self) -> list[str]:
        """What the user may not have meant."""
        if self.least_kept == self.quality_floor:
            return []
        return ["no quality floor was given: nothing is cut (--quality-floor allows cuts)"]


class PlanRequest(SizesRequest):
    """What a plan is asked for.

    ``budget`` is a fraction of the dense size of the planned weights, ``budget_parameters``
    a count for the whole checkpoint, ``memory`` the bytes of all its weights as stored. With
    none, memory is not limited, and nothing is lost unless a limit on time asks for it.
    ``time_limit`` (seconds) ends a search early with its best plan.

    Raises :class:`PlanError` for a value that is out of range or no number.
    """

    budget: float | None = option(
        default=None, read=float, above=0, group=LIMITS,
        help="Parameters, as a share of the dense weights.",
    )  # fmt: skip
    budget_parameters: float | None = option(
        default=None, name="--budget-params", read=float, above=0, group=LIMITS,
        help="Parameters of the whole checkpoint.",
    )  # fmt: skip
    memory: int | None = option(
        default=None, read=byte_count, above=0, metavar="BYTES", group=LIMITS,
        help="Of all weights as stored: 6GB, 512MiB.",
    )  # fmt: skip
    time_limit: float | None = option(
        default=None, read=float, above=0, group=LIMITS,
        help="Seconds; then the best so far, and its gap.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budget is not None and self.budget_parameters is not None:
            raise PlanError("give either a budget fraction or a number of parameters, not both")

    @property
    def has_budget(self) -> bool:
        return any(b is not None for b in (self.budget, self.budget_parameters, self.memory))

    @property
    def notes(self) -> list[str]:
        notes = super().notes
        if self.budget is not None and self.budget > 1:
            meant = f": was {self.budget / 100:g} meant?" if 2 <= self.budget <= 100 else ""
            notes.append(
                f"{BUDGET}{self.budget:g} is above 1, the size of the dense weights{meant}"
            )
        return notes


class ParetoRequest(SizesRequest):
    """What a front of plans is asked for: ``budgets`` from the least that can be had to what never
    binds."""

    budgets: int = option(
        default=15, read=int, least=1, most=1000, group=LIMITS, help="How many budgets of ours."
    )

"""Any choice of sizes, whoever made it, judged by the same map and the same spectra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gacprof.checkpoint.inventory import Dim
from gacprof.diagnosing.companions import companions
from gacprof.diagnosing.landscape import landscape
from gacprof.diagnosing.predict import Predictor
from gacprof.planning.classes import share_kept
from gacprof.planning.memory import Sizes, footprint


@dataclass(frozen=True)
class Variant:
    """One way to size the dims: of the whole checkpoint ``parameters`` and ``nbytes``, of the
    workload ``latency_us`` in the planned weights' products, None where the map lacks one.

    ``energy_kept`` is the mean share over all dims, 1 for padding, None where a dim is cut
    that has no spectrum; ``aligned`` the share of dims on a safe size, None where the map
    cannot tell. ``proved`` says of a solver's choice whether it is the best there is.
    """

    method: str
    parameters: int
    nbytes: int
    latency_us: float | None
    energy_kept: float | None
    aligned: float | None
    note: str = ""
    proved: bool | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Judge:
    """Parameters, latency, energy and alignment of any choice of sizes."""

    def __init__(
        self, predictor: Predictor, dims: Sequence[Dim], kept: Mapping[str, Sequence[float]]
    ) -> None:
        self._predictor = predictor
        self._dims = dims
        self._kept = kept
        self._known: dict[tuple[object, ...], bool | None] = {}
        self._beside = {
            dim.name: [
                companions(predictor.inventory, [dim], [dim], crossing=crossing)
                for crossing in (True, False)
            ]
            for dim in dims
        }

    def variant(
        self, method: str, sizes: Sizes, note: str = "", proved: bool | None = None
    ) -> Variant:
        takes = footprint(self._predictor.inventory, sizes)
        kept, safe = [], []
        for dim in self._dims:
            after = sizes.get(dim.name, dim.size)
            kept.append(share_kept(dim, after, self._kept))
            safe.append(True if after is None else self._is_safe(dim, after, sizes))
        return Variant(
            method,
            takes.parameters,
            takes.nbytes,
            self._predictor.weights(sizes).latency_us,
            _mean(kept),
            _mean(safe),
            note,
            proved,
        )

    def _is_safe(self, dim: Dim, size: int, sizes: Sizes) -> bool | None:
        """The map's word on the size, beside the new sizes of dims that share its products; of
        those on its axis alone where the map does not hold all of them together."""
        across, along = self._beside[dim.name]
        for dims in ([*along, *across], along):
            others = {d.name: sizes.get(d.name, d.size) or d.size for d in dims}
            key = dim.name, size, *others.items()
            if key not in self._known:
                land = landscape(self._predictor.beside(others), dim, size, size)
                place = land.place(size)
                judged = place is not None and land.penalty_high[place] is not None
                self._known[key] = size in land.safe if judged else None
            if self._known[key] is not None:
                return self._known[key]
        return None


def _mean(shares: Sequence[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return sum(known) / len(known) if known and len(known) == len(shares) else None

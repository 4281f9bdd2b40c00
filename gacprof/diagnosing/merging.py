"""Factor pairs that would be faster multiplied out: the device's break-even, not the parameters'.

A pair of rank r has r·(in + out) parameters where its dense product has in·out, and fewer
operations. It is two products, though: at one token each takes as long as its weights are read and
its call costs, so that the dense product may be the faster one long before it is the smaller one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from gacprof.checkpoint.inventory import Gemm, Inventory, Module, NewSizes
from gacprof.cliffmap.estimate import NOTHING
from gacprof.core.formatting import bounded_time, counted, percent
from gacprof.diagnosing.predict import Estimate, Predictor
from gacprof.stats.judge import SURE_LEVEL


@dataclass(frozen=True)
class Merge:
    """At ``tokens``: the ``weights`` whose pairs are surely slower than their dense products, of so
    many ``pairs`` of known time. ``saved_us`` is what merging them saves, within ``low_us`` and
    ``high_us`` (95 %); ``of_us`` what all products of the model take, None where one is not known.
    """

    tokens: int
    weights: tuple[str, ...]
    pairs: int
    low_us: float
    saved_us: float
    high_us: float
    of_us: float | None


def pairs_of(inventory: Inventory) -> Iterator[Module]:
    """The factor pairs that can be multiplied out: two products, one rank between them."""
    for module in inventory.modules:
        dims = [inventory.dim(name) for name in module.dims]
        ranks = [dim for dim in dims if dim.kind == "rank" and dim.padding != "refused"]
        if len(module.gemms) == 2 and len(ranks) == 1:
            yield module


def merges(predictor: Predictor, changes: NewSizes | None = None) -> Iterator[Merge]:
    """What merging pairs would save, at each token count of the workload, where that is sure: of
    the model as it is, or with these dims resized.

    Only of times that the device itself was measured for, none of them interpolated, and of a model
    that one rank holds whole.
    """
    source, sizes, inventory = predictor.source, dict(changes or {}), predictor.inventory
    fused = {name for name, size in sizes.items() if size is None}
    pairs = [pair for pair in pairs_of(inventory) if not fused.intersection(pair.dims)]
    if not pairs or not source.timed or source.estimated or predictor.ranks.tp > 1:
        return
    ranks = {n: None for pair in pairs for n in pair.dims if inventory.dim(n).kind == "rank"}
    for tokens in sorted(predictor.tokens):
        at = predictor.at(tokens)
        factors, dense = at.planned(sizes, pairs), at.planned({**sizes, **ranks}, pairs)
        known = [
            _Pair(pair.name, (first, last), at.gemms([first, last]), at.gemms([one]))
            for pair, first, last, one in zip(
                pairs, factors[::2], factors[1::2], dense, strict=True
            )
        ]
        known = [pair for pair in known if _exact(pair.factors) and _exact(pair.dense)]
        slower = [pair for pair in known if pair.is_slower]
        if slower:
            rest = [gemm for m in inventory.modules if not m.dims for gemm in m.gemms]
            every = at.gemms([*at.planned(sizes), *rest])
            yield _merge(tokens, slower, len(known), every.latency_us)


@dataclass(frozen=True)
class _Pair:
    """A factor pair's time, and that of the dense product in its place."""

    name: str
    products: tuple[Gemm, Gemm]
    factors: Estimate
    dense: Estimate

    @property
    def lost(self) -> Estimate:
        return self.factors + self.dense.times(-1)

    @property
    def is_slower(self) -> bool:
        """Surely so."""
        return (self.lost.latency_us or 0.0) > self.lost.half_width(SURE_LEVEL)

    @property
    def shape(self) -> tuple[tuple[int, int, bool], ...]:
        return tuple((gemm.N, gemm.K, gemm.bias) for gemm in self.products)


def _exact(time: Estimate) -> bool:
    return time.latency_us is not None and time.variance is not None and not time.scaled


def _merge(tokens: int, slower: Sequence[_Pair], pairs: int, every_us: float | None) -> Merge:
    total = NOTHING
    for _, equal in groupby(sorted(slower, key=lambda pair: pair.shape), lambda pair: pair.shape):
        # Equal pairs share the errors of one measurement: these add up as they are.
        first, *others = equal
        total += first.lost.times(1 + len(others))
    saved, half = total.latency_us or 0.0, total.half_width(0.025)
    names = tuple(pair.name for pair in slower)
    return Merge(tokens, names, pairs, saved - half, saved, saved + half, every_us)


MERGING = "merging factor pairs into dense weights saves "


def merging(found: Sequence[Merge]) -> str:
    """What merging saves at each token count, in a clause; empty where nothing is sure."""
    said = []
    for merge in found:
        us = merge.low_us, merge.saved_us, merge.high_us
        saved = bounded_time(*us)
        if merge.of_us is not None:
            low, value, high = (percent(each / merge.of_us) for each in us)
            saved = f"{value} ({low} to {high}) of all products"
        pairs = f"{len(merge.weights)} of {counted(merge.pairs, 'pair')}"
        said.append(f"{saved} at {counted(merge.tokens, 'token')} ({pairs})")
    return f"{MERGING}{', '.join(said)}: 'plan --objective latency' does so" if said else ""


def left_apart(predictor: Predictor, changes: NewSizes) -> list[str]:
    """What merging the pairs that a plan with these ``changes`` leaves would save."""
    said = merging(tuple(merges(predictor, changes)))
    return [said] if said else []

"""Factor pairs that would be faster multiplied out: the device's break-even, not the parameters'.

A pair of rank r has r·(in + out) parameters where its dense product has in·out, and fewer
operations. It is two products, though: at one token each takes as long as its weights are read and
its call costs, so that the dense product may be the faster one long before it is the smaller one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from gacprof.checkpoint.inventory import Inventory, Module
from gacprof.core.formatting import bounded_time, counted, percent
from gacprof.diagnosing.predict import Estimate, Predictor

SURELY = 3.0
"""Standard errors beyond which a pair counts as slower: of 200 pairs none by chance."""
WITHIN = 1.96
"""Standard errors on either side of the time saved: an interval of 95 %."""


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


def merges(predictor: Predictor) -> Iterator[Merge]:
    """What merging pairs would save, at each token count of the workload, where that is sure.

    Only of times that the device itself was measured for, none of them interpolated, and of a model
    that one rank holds whole.
    """
    source, pairs = predictor.source, list(pairs_of(predictor.inventory))
    if not pairs or not source.timed or source.basis or predictor.ranks.tp > 1:
        return
    for tokens in sorted(predictor.tokens):
        at = predictor.at(tokens)
        known = [(pair, at.gemms(pair.gemms), at.dense(pair)) for pair in pairs]
        known = [each for each in known if _exact(each[1]) and _exact(each[2])]
        slower = [each for each in known if _lost(*each[1:]) > 0]
        if slower:
            yield _merge(at, tokens, slower, len(known))


def _exact(time: Estimate) -> bool:
    return time.latency_us is not None and time.variance is not None and not time.scaled


def _lost(pair: Estimate, dense: Estimate) -> float:
    """µs by which the pair surely takes longer; negative where that is not sure."""
    assert pair.latency_us is not None and dense.latency_us is not None
    error = sqrt((pair.variance or 0.0) + (dense.variance or 0.0))
    return pair.latency_us - dense.latency_us - SURELY * error


def _merge(
    at: Predictor, tokens: int, slower: Sequence[tuple[Module, Estimate, Estimate]], pairs: int
) -> Merge:
    saved, errors = 0.0, dict[object, float]()
    for module, pair, dense in slower:
        saved += (pair.latency_us or 0.0) - (dense.latency_us or 0.0)
        shape = tuple((gemm.N, gemm.K, gemm.bias) for gemm in module.gemms)
        # Equal pairs share the errors of one measurement: these add up as they are.
        errors[shape] = errors.get(shape, 0.0) + sqrt((pair.variance or 0) + (dense.variance or 0))
    half = WITHIN * sqrt(sum(error**2 for error in errors.values()))
    every = at.gemms([gemm for module in at.inventory.modules for gemm in module.gemms])
    names = tuple(module.name for module, _, _ in slower)
    return Merge(tokens, names, pairs, saved - half, saved, saved + half, every.latency_us)


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


def left_apart(predictor: Predictor, changes: Mapping[str, int | None]) -> list[str]:
    """What a plan with these ``changes`` has to say of merging, where it merges nothing."""
    said = "" if None in changes.values() else merging(tuple(merges(predictor)))
    return [said] if said else []

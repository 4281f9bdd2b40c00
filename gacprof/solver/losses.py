"""What each candidate loses against the dual bound, and the exact integers behind it.

With multipliers y and a reference choice that is best there, a candidate's *loss* is
ρ = y·Δweight − Δvalue ≥ 0 (Δ: against the reference's candidate of the same class), and a
choice's value is f(y) − (Σρ + y·slack).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gacprof.solver.problem import Floats, Ints, Knapsack

ROUNDING = 2.0**-50
TINY = 2.0**-1000
"""Relative error allowed for a computed loss (at most seven roundings of 2^-53), and an absolute
one: values are scaled well above it."""


@dataclass(frozen=True)
class Losses:
    """Candidates other than the reference's, least loss first: all with a loss up to ``reach``.

    ``tied`` bounds how far below zero the losses of one choice may truly add up, ``slop`` adds
    to it the rounding of any single candidate: whatever has a loss l, no choice with it loses
    less than l − slop.
    """

    multipliers: Floats
    reference: Ints
    items: Ints
    loss: Floats
    reach: float
    tied: float
    slop: float


def losses(
    knapsack: Knapsack,
    multipliers: Floats,
    reference: Ints,
    most: float,
    count: int,
    ids: Ints | None = None,
) -> Losses:
    """Candidates with a loss up to ``most``, or some ``count`` least ones if those are more.

    ``ids``: the only candidates there are, the reference's among them.
    """
    take = slice(None) if ids is None else ids
    base = reference[knapsack.owner[take]]
    loss = knapsack.values[base] - knapsack.values[take]
    widest = float(np.abs(loss).max())
    for price, weight in zip(multipliers, knapsack.weights, strict=True):
        if price:
            loss += price * (weight[take] - weight[base])
            widest += price * float(weight[take].max())
    loss[reference if ids is None else np.searchsorted(ids, reference)] = np.inf
    level = np.flatnonzero(loss <= ROUNDING * widest)
    tied_items = level if ids is None else ids[level]
    below = sizes(knapsack, multipliers, reference, tied_items) - loss[level]
    tied = per_class(knapsack, tied_items, below)
    tied += ROUNDING * float(multipliers @ np.abs(knapsack.slack(reference))) + TINY
    slop = tied + ROUNDING * widest
    reach = most + 4 * slop
    items = np.flatnonzero(loss <= reach)
    if len(items) > count:
        reach = float(np.partition(loss[items], count)[count])
        items = items[loss[items] <= reach]
    loss = loss[items]
    items = items if ids is None else ids[items]
    items, loss = _least_first(items, loss, slop)
    return Losses(multipliers, reference, items, loss, reach, tied, slop)


def _least_first(items: Ints, loss: Floats, slop: float) -> tuple[Ints, Floats]:
    """By loss; those tied for nothing lost in golden-ratio order, so that any few of them come
    from all over the classes."""
    turn = np.where(loss <= slop, items * 0.6180339887498949 % 1.0 - 2.0, loss)
    order = np.argsort(turn, kind="stable")
    return items[order], loss[order]


def sizes(knapsack: Knapsack, multipliers: Floats, reference: Ints, items: Ints) -> Floats:
    """How far rounding may have moved each candidate's loss."""
    base = reference[knapsack.owner[items]]
    size = np.abs(knapsack.values[items] - knapsack.values[base])
    for price, weight in zip(multipliers, knapsack.weights, strict=True):
        size += price * np.abs(weight[items] - weight[base])
    return size * ROUNDING


def per_class(knapsack: Knapsack, items: Ints, amounts: Floats) -> float:
    """Σ over classes of the largest amount, if positive, among ``items``."""
    largest = np.zeros(knapsack.classes)
    np.maximum.at(largest, knapsack.owner[items], amounts)
    return float(largest.sum())


def tied_to(
    knapsack: Knapsack, multipliers: Floats, reference: Ints, choice: Ints, ids: Ints | None
) -> Ints:
    """The reference, but with the candidates of ``choice`` wherever they are just as good."""
    differs = choice != reference
    here = np.flatnonzero(differs if ids is None else differs & np.isin(choice, ids))
    items, base = choice[here], reference[here]
    loss = knapsack.values[base] - knapsack.values[items]
    for price, weight in zip(multipliers, knapsack.weights, strict=True):
        loss += price * (weight[items] - weight[base])
    same = loss <= sizes(knapsack, multipliers, reference, items)
    nearer = reference.copy()
    nearer[here[same]] = items[same]
    return nearer


def loss_of(knapsack: Knapsack, multipliers: Floats, reference: Ints, choice: Ints) -> float:
    """What a choice loses, summed over the classes where it differs, so that no digits cancel."""
    here = np.flatnonzero(choice != reference)
    items, base = choice[here], reference[here]
    loss = knapsack.values[base] - knapsack.values[items]
    for price, weight in zip(multipliers, knapsack.weights, strict=True):
        loss += price * (weight[items] - weight[base])
    return float(loss.sum() + multipliers @ knapsack.slack(choice))

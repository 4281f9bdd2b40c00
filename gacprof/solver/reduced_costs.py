"""What each candidate loses against the dual bound, and how far rounding can be off.

With multipliers y and a reference choice that is best there, a candidate's reduced cost, or
*loss*, is ρ = y·Δweight − Δvalue ≥ 0 (Δ: against the reference's candidate of the same class),
and a choice's value is f(y) − (Σρ + y·slack).
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
class Active:
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


def active_items(
    knapsack: Knapsack,
    multipliers: Floats,
    reference: Ints,
    most: float,
    count: int,
    ids: Ints | None = None,
) -> Active:
    """Candidates with a loss up to ``most``, or some ``count`` least ones if those are more.

    ``ids``: the only candidates there are, the reference's among them.
    """
    take = slice(None) if ids is None else ids
    loss = knapsack.reduced_costs(multipliers, take, reference[knapsack.owner[take]])
    widest = float(np.abs(loss).max())
    for price, weight in zip(multipliers, knapsack.weights, strict=True):
        widest += 2 * float(price) * float(weight[take].max())
    loss[reference if ids is None else np.searchsorted(ids, reference)] = np.inf
    level = np.flatnonzero(loss <= ROUNDING * widest)
    tied_items = level if ids is None else ids[level]
    below = loss_errors(knapsack, multipliers, reference, tied_items) - loss[level]
    tied = sum_over_classes(knapsack, tied_items, below)
    tied += ROUNDING * float(multipliers @ np.abs(knapsack.slack(reference))) + TINY
    slop = tied + ROUNDING * widest
    reach = most + 4 * slop
    items = np.flatnonzero(loss <= reach)
    if len(items) > count:
        reach = float(np.partition(loss[items], count)[count])
        items = items[loss[items] <= reach]
    loss = loss[items]
    items = items if ids is None else ids[items]
    # Of those that lose nothing, any few shall come from all over the classes: golden-ratio order.
    rank = np.where(loss <= slop, items * 0.6180339887498949 % 1.0 - 2.0, loss)
    order = np.argsort(rank, kind="stable")
    return Active(multipliers, reference, items[order], loss[order], reach, tied, slop)


def loss_errors(knapsack: Knapsack, multipliers: Floats, reference: Ints, items: Ints) -> Floats:
    """How far rounding may have moved each candidate's loss."""
    base = reference[knapsack.owner[items]]
    size = np.abs(knapsack.values[items] - knapsack.values[base])
    for price, weight in zip(multipliers, knapsack.weights, strict=True):
        size += price * np.abs(weight[items] - weight[base])
    return size * ROUNDING


def sum_over_classes(knapsack: Knapsack, items: Ints, amounts: Floats) -> float:
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
    items = choice[here]
    loss = knapsack.reduced_costs(multipliers, items, reference[here])
    same = loss <= loss_errors(knapsack, multipliers, reference, items)
    nearer = reference.copy()
    nearer[here[same]] = items[same]
    return nearer


def loss_of(knapsack: Knapsack, multipliers: Floats, reference: Ints, choice: Ints) -> float:
    """What a choice loses, summed over the classes where it differs, so that no digits cancel."""
    here = np.flatnonzero(choice != reference)
    loss = knapsack.reduced_costs(multipliers, choice[here], reference[here])
    return float(loss.sum() + multipliers @ knapsack.slack(choice))

"""Inventory × map → what each weight's dims cost, and what to do about them.

Penalties come from measurements, never from a rule about multiples of 8; the papers' rule
(d % 8) is counted beside them so that both can be read. What the map does not hold is
``unknown``, with the sweep that would fill it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from gacprof.checkpoint import inventory_for
from gacprof.checkpoint.inventory import Dim
from gacprof.checkpoint.products import check_heads
from gacprof.cliffmap.source import Asked, SizeCost, SizeSource
from gacprof.core.errors import LintError, MapError
from gacprof.core.request import verb
from gacprof.core.tasks import no_collection
from gacprof.diagnosing.findings import (
    Diagnosis,
    DimFinding,
    WeightFinding,
    highest_penalty,
)
from gacprof.diagnosing.fixed import fixed_findings, head_finding, head_findings, verdicts_of
from gacprof.diagnosing.merging import merges
from gacprof.diagnosing.predict import Estimate, Predictor, workload_of
from gacprof.diagnosing.profiles import CoupledDims, around
from gacprof.diagnosing.request import DiagnoseRequest
from gacprof.diagnosing.sources import NEWEST, times_elsewhere
from gacprof.elsewhere.model import StepTimes, sizes_by_rules, step_times
from gacprof.elsewhere.needs import Found, needs_of_config, needs_of_weights
from gacprof.linting import LintRequest, lint
from gacprof.linting.reading import config_named, is_config
from gacprof.rules.target import target

HEADS = ("heads", "kv_heads", "head_dim")
WINDOW = 0.25
"""How far around a dim's size better sizes are looked for, as a fraction."""


@no_collection()
def _diagnose(request: DiagnoseRequest) -> Diagnosis:
    """Judge a checkpoint's dims by a map, or by the rules of a GPU
    (:func:`gacprof.open_source`). Reads headers only; imports no torch.

    ``checkpoint`` is a path, a hub id, an inventory, or a model in memory; for times on a GPU that
    others measured a ``config.json`` alone, or its values, will do. ``tokens`` are counts,
    or maps counts to weights; by default those that the map measured this model at, else one
    decode step and one prefill of 1024.
    Raises :class:`CheckpointError`, :class:`MapError` or :class:`PlanError`.
    """
    checkpoint, source, tp = request.checkpoint, request.open_source(), request.tp
    if isinstance(checkpoint, Mapping) or (
        source.gpu and isinstance(checkpoint, str | Path) and is_config(checkpoint)
    ):
        return _of_config(checkpoint, source, request)
    inventory = inventory_for(checkpoint)
    check_heads(inventory, tp)
    predictor = Predictor(source, inventory, request.tokens, request.dtype, tp)
    dims = _judge_dims(predictor)
    fixed = {finding.name: finding for finding in fixed_findings(predictor)}
    weights = tuple(_judge_weights(predictor, dims, fixed))
    heads = list(head_findings(predictor))
    found = (*dims.values(), *(f for f in fixed.values() if f.verdict == "misaligned"), *heads)
    notes = [*inventory.notes, *predictor.ranks.notes, *predictor.view.notes]
    notes += _remarks(predictor, found, weights)
    times = None
    if source.gpu:
        try:
            times = _steps(source, needs_of_weights(inventory, tp, request.dtype), request)
        except MapError as error:
            notes.append(f"no times: {error}")
    return Diagnosis(
        inventory.path, inventory.layout, source.name, source.environment.name,
        predictor.dtype, dict(predictor.tokens), predictor.tolerance or None, inventory.parameters,
        weights, found, tuple(notes), source.basis, tp, times, tuple(merges(predictor)),
        source.busy,
    )  # fmt: skip


def _steps(source: SizeSource, found: Found, request: DiagnoseRequest) -> StepTimes:
    """Raises as :func:`times_elsewhere`."""
    return step_times(times_elsewhere(source), found, request.tokens, request.tp)


def _of_config(
    config: str | Path | Mapping[str, Any], source: SizeSource, request: DiagnoseRequest
) -> Diagnosis:
    """The times of a config alone, and its sizes by rules; :func:`gacprof.lint` judges them for an
    engine."""
    named = config_named(config)
    if not source.gpu:
        raise MapError(
            f"{named.name} is a config alone: a map judges weights; --gpu takes others' times of a "
            "GPU ('gacprof gpus' lists them), 'gacprof lint' judges its sizes"
        )
    needs = needs_of_config(named.config, request.tp, request.dtype)
    notes = [*named.notes, "a config alone: 'gacprof lint' judges its sizes for an engine"]
    times, untimed = _times_or_sizes(named.name, source, needs, request)
    notes += [f"no times: {untimed}"] if untimed else []
    view = source.view(Asked(named.name, frozenset(), "bfloat16", request.tokens))
    shapes = {tuple(n.shape[name] for name in HEADS) for n in needs[0] if n.kind == "attention"}
    heads = tuple(f for shape in sorted(shapes) if (f := head_finding(view, *shape)) is not None)
    too_large = ""
    if request.dtype is None:
        with suppress(LintError):  # a model that lint cannot judge: its size is not known
            too_large = lint(LintRequest(config, gpu=source.gpu, tp=request.tp)).too_large
    return Diagnosis(
        named.name, "config", source.name, source.environment.name, ", ".join(times.dtypes),
        workload_of(request.tokens), None, 0, (), heads, tuple(notes), source.basis, request.tp,
        times, too_large=too_large,
    )  # fmt: skip


def _times_or_sizes(
    name: str, source: SizeSource, needs: Found, request: DiagnoseRequest
) -> tuple[StepTimes, str]:
    """The times of a config's steps; where nobody measured them its sizes by rules, and why no
    times. Raises :class:`MapError` where there are neither."""
    try:
        return _steps(source, needs, request), ""
    except MapError as error:
        why = str(error)
    if request.dtype is None:  # else its times were asked for by name
        try:
            return sizes_by_rules(target(source.gpu or "", NEWEST), needs, request.tp), why
        except MapError as error:
            why = f"{why}, and {error}"
    if "gacprof lint" not in why:
        why += f"; 'gacprof lint {name} --gpu {source.gpu}' judges its sizes"
    raise MapError(why)


diagnose = verb("diagnose", DiagnoseRequest, _diagnose)


def _judge_dims(predictor: Predictor) -> dict[str, DimFinding]:
    """The finding on every dim. Equal ones (of experts, say) are judged once."""
    coupled = CoupledDims(predictor, WINDOW)
    known: dict[object, DimFinding] = {}
    judged: dict[str, DimFinding] = {}
    for dim in predictor.inventory.dims:
        like = _likeness(coupled, dim)
        if like not in known:
            known[like] = _judge(coupled, dim)
        judged[dim.name] = replace(known[like], **_described(dim))
    return judged | _padded_together(coupled, judged)


def _likeness(coupled: CoupledDims, dim: Dim) -> object:
    """What the finding on a dim follows from, besides what :func:`_described` says: its own name
    where it meets others in a product, which differ."""
    if coupled.of(dim):
        return dim.name
    return dim.kind, dim.padding, dim.why, dim.dense_size, coupled.predictor.shape_of(dim)


def _described(dim: Dim) -> dict[str, Any]:
    """The part of a finding that says which dim it is."""
    feeds = tuple(f"linear.{feed.axis} of {feed.weight}" for feed in dim.feeds)
    return {"name": dim.name, "layer": dim.layer, "role": dim.role, "feeds": feeds}


def _judge(coupled: CoupledDims, dim: Dim) -> DimFinding:
    """The dim judged beside aligned ones, as a plan judges it: two odd ones that are good beside
    each other may both gain by being aligned together, and PaLU's groups add up in one product,
    which is aligned only where all of them are.

    It is safe only if it is so beside the others as they are, too.
    """
    here, near = _judge_dim(coupled.predictor, dim), coupled.aligned(dim)
    there = _judge_dim(near, dim)
    if near is coupled.predictor or there.verdict == "unknown" or there.best_size is None:
        return here
    if there.verdict == "safe" and here.verdict == "misaligned":
        advice = "keep: whether another size is faster depends on the dims of its product"
        return replace(there, verdict="undecided", advice=advice)
    alike = (here.verdict, here.best_size) == (there.verdict, there.best_size)
    if there.advice.startswith("pad") and not alike:
        there = replace(there, advice=f"{there.advice}, once the dims beside it are aligned")
    return there


def _padded_together(
    coupled: CoupledDims, judged: Mapping[str, DimFinding]
) -> dict[str, DimFinding]:
    """The findings on dims that are to be padded and meet others: what all of them gain together.

    What a product gains counts once, in equal parts for its dims. Where a dim's products grow by
    more than their alignment is worth, nothing is gained; whether another choice gains anything is
    not known then.
    """
    predictor, found = coupled.predictor, dict[str, DimFinding]()
    padded = {
        name: finding.best_size
        for name, finding in judged.items()
        if finding.advice.startswith("pad") and finding.best_size is not None
    }
    then, fed = predictor.with_sizes(padded), Counter[str]()
    weights = {name: {f.weight for f in predictor.inventory.dim(name).feeds} for name in padded}
    for name in padded:
        fed.update(weights[name])
    for name in (name for name in padded if coupled.of(predictor.inventory.dim(name))):
        times = {w: (predictor.product(w), then.product(w)) for w in weights[name]}
        gains = {
            w: (now.latency_us, now.latency_us - after.latency_us)
            for w, (now, after) in times.items()
            if now.latency_us is not None and after.latency_us is not None
        }
        if len(gains) < len(times):
            continue
        now_us = sum(now for now, _ in gains.values())
        if sum(gain for _, gain in gains.values()) <= predictor.tolerance * now_us:
            advice = "keep: padded with the others of its product it gains nothing"
            found[name] = replace(judged[name], verdict="undecided", advice=advice)
        else:
            best = now_us - sum(gain / fed[w] for w, (_, gain) in gains.items())
            found[name] = replace(judged[name], latency_us=now_us, best_latency_us=best)
    return found


def _judge_dim(predictor: Predictor, dim: Dim) -> DimFinding:
    profile = predictor.profile(dim, *around([dim], WINDOW))
    here, best = profile.costs.get(dim.size), profile.best_padding(dim.size)
    finding = DimFinding(
        **_described(dim), kind=dim.kind, size=dim.size, divisible_by_8=dim.size % 8 == 0,
        verdict="unknown", penalty=None, latency_us=here.latency_us if here else None,
        best_size=None, best_latency_us=None, tier=None, tolerance=profile.tolerance or None,
        advice=profile.missing or "the map holds no larger size to compare it with",
    )  # fmt: skip
    # A size that nothing larger was measured beside cannot be judged.
    alone = here and here.verdict == "undecided" and here.tier is None
    if not here or (alone and here.penalty_high is None and dim.size == max(profile.costs)):
        return finding
    best = here if here.verdict == "safe" or best is None else best
    now_us, then_us = here.latency_us, best.latency_us
    if predictor.source.timed and here.penalty is None:  # judged by tiers
        now, then = predictor.dim(dim, dim.size), predictor.dim(dim, best.size)
        saved = now.saved(then)
        now_us, then_us = now.latency_us, then.latency_us if saved and saved.low > 0 else None
    return replace(
        finding, verdict=here.verdict or "unknown", penalty=here.penalty, best_size=best.size,
        latency_us=now_us, best_latency_us=then_us, tier=here.mechanism or predictor.mechanism(dim),
        scaled=profile.scaled,
        penalty_low=here.penalty_low, penalty_high=here.penalty_high, relative=here.relative,
        relative_from=here.relative_from, advice=_advice(dim, here, best.size),
    )  # fmt: skip


def _advice(dim: Dim, here: SizeCost, best_size: int) -> str:
    if here.verdict == "safe":
        return "keep"
    if here.verdict == "undecided":
        if here.why:
            return f"keep: {here.why}"
        if here.penalty_high is None:
            return "keep: too little above it was measured to tell"
        high = f"{here.penalty_high:.1%}"
        return f"keep: it may cost up to {high}, a quieter or longer sweep would tell"
    if dim.padding == "refused":
        return f"cannot be padded: {dim.why}"
    if best_size == dim.size:
        full = dim.most is not None and dim.most <= around([dim], WINDOW)[1]
        at_most = f" (the dense weight's rank is {dim.dense_size})" if full else ""
        return f"keep: larger sizes are faster, but none within reach{at_most}"
    return f"pad to {best_size}"


def _judge_weights(
    predictor: Predictor, dims: Mapping[str, DimFinding], fixed: Mapping[str, DimFinding]
) -> Iterator[WeightFinding]:
    """The finding on every weight with products. Equal ones are judged once."""
    known: dict[object, tuple[Any, ...]] = {}
    for module in predictor.inventory.modules:
        if not module.gemms:
            continue
        sizes = tuple((gemm.N, gemm.K, gemm.bias) for gemm in module.gemms)
        own = tuple((dims[name].size, dims[name].verdict) for name in module.dims)
        sides = tuple(v for gemm in module.gemms for v in verdicts_of(predictor, gemm, fixed))
        key = sizes, own, sides, tuple(predictor.ranks.key(gemm) for gemm in module.gemms)
        if key not in known:
            known[key] = _judged(predictor.gemms(module.gemms), sizes, own, sides)
        products, latency_us, aligned, verdict, missing = known[key]
        yield WeightFinding(
            module.name, module.role, module.layer, module.kind, module.dtype, products,
            latency_us, module.dims, aligned, verdict, missing,
        )  # fmt: skip


def _judged(
    total: Estimate,
    sizes: Sequence[tuple[int, int, bool]],
    own: Sequence[tuple[int, str]],
    sides: Sequence[str],
) -> tuple[Any, ...]:
    """What a finding says of products of these ``sizes`` (N, K, bias), which take ``total``, where
    their dims have a size and a verdict each, and the ``sides`` that no dim feeds a verdict."""
    verdicts = {verdict for _, verdict in own}
    verdict = next((v for v in ("misaligned", "unknown", "undecided") if v in verdicts), "safe")
    if not own:  # nothing adjustable: it is reported where it surely loses time, else not judged
        unknown = total.latency_us is None and set(sides) <= {"unknown"}
        verdict = "unknown" if unknown else "fixed"
        verdict = "safe" if sides and set(sides) == {"safe"} else verdict
    if "misaligned" in sides:
        verdict = "misaligned"
    stored = [size for n, k, _ in sizes for size in (n, k)] + [size for size, _ in own]
    aligned = all(size % 8 == 0 for size in stored)
    products = tuple(f"{n}×{k}" for n, k, _ in sizes)
    return products, total.latency_us, aligned, verdict, total.missing


def _remarks(
    predictor: Predictor, dims: Collection[DimFinding], weights: Sequence[WeightFinding]
) -> list[str]:
    """What a user should know besides the numbers."""
    source = predictor.source
    judged = [d for d in dims if d.verdict != "unknown"]
    remarks = []
    if judged and all(d.verdict == "safe" for d in judged):
        remarks.append(_all_safe(judged, len(judged) == len(dims), source))
    undecided = [d for d in judged if d.verdict == "undecided" and d.tolerance]
    if undecided:
        bound = highest_penalty(undecided)
        most = "" if bound is None else f", none is off by more than {bound:.1%}"
        count = "1 dim is" if len(undecided) == 1 else f"{len(undecided)} dims are"
        remarks.append(
            f"{count} undecided: the map's errors leave open whether more than "
            f"{undecided[0].tolerance:.0%} is lost{most}"
        )
    surprising = [d for d in judged if d.divisible_by_8 and d.verdict == "misaligned"]
    if surprising:
        remarks.append(
            f"{len(surprising)} dims are multiples of 8 and still penalised: being a multiple "
            "of 8 does not make a dim safe"
        )
    if any(w.verdict == "unknown" for w in weights):
        remarks.append(predictor.tokens_note or f"some weights are unknown: {_what_knows(source)}")
    return remarks


def _what_knows(source: SizeSource) -> str:
    sweep = "sweep the checkpoint's own shapes with 'gacprof sweep --for CHECKPOINT'"
    return f"{source.instead}; on the GPU itself, {sweep}" if source.instead else sweep


def _all_safe(judged: Sequence[DimFinding], everything: bool, source: SizeSource) -> str:
    """That dims are not to blame is said only where the map excludes it for every one."""
    most = max(d.tolerance or 0.0 for d in judged)
    if not most:  # judged by tiers
        best = "every dim that can be changed and that is known is of the best tier"
        return f"{best}, {source.basis}"
    safe = (
        "every dim that can be changed and that the map knows is safe, none loses more than "
        f"{most:.0%}"
    )
    if not everything:
        return safe
    return (
        f"{safe}: if this model is slow, they are not why (two small products in place of one, "
        "launch-bound or memory-bound decode, or dims that only another model would have: hidden "
        "size, heads)"
    )

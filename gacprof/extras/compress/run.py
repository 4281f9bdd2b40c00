"""From a dense model to a compressed one whose sizes the device serves well, in one call.

1. the method's own sizes and the importance of what they hold, from weights and calibration text;
2. the sizes that the map knows to be good around them, at every layer's true shapes;
3. a plan: one of those for each, within the parameters that the ratio allows;
4. the final factors or widths at those sizes, from the original weights.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gacprof.checkpoint.inventory import Inventory, NewSizes
from gacprof.checkpoint.tensors import tensors_of
from gacprof.cliffmap.source import SizeSource
from gacprof.core.errors import (
    CompressionError,
    MemoryExhaustedError,
    PlanError,
    is_out_of_memory,
)
from gacprof.core.request import verb
from gacprof.core.tasks import Tasks
from gacprof.core.texts import multiple_of
from gacprof.devices.device import present_device
from gacprof.diagnosing.predict import Estimate, Predictor
from gacprof.extras.compress.calibration import calibration_of
from gacprof.extras.compress.choosing import (
    choose,
    multiples,
    only,
    refuse_unreachable_limits,
    weighted,
)
from gacprof.extras.compress.decomposing import BACK
from gacprof.extras.compress.depth import Depth, DropLayers, refuse_sizes
from gacprof.extras.compress.factoring import Factoring
from gacprof.extras.compress.gradients import Gather
from gacprof.extras.compress.methods import Method, method_named
from gacprof.extras.compress.methods.llmpruner import TaylorPruning
from gacprof.extras.compress.methods.method import LowRank
from gacprof.extras.compress.outcome import (
    CompressResult,
    PhaseTime,
    card_of,
    record_of,
)
from gacprof.extras.compress.pruning import Pruning
from gacprof.extras.compress.request import BACKWARD, BY_LOSS, TAYLOR, CompressRequest
from gacprof.extras.compress.state import Work, key_of, remove_leftovers, state_for
from gacprof.extras.compress.writing import PLAN, inventory_of_output, write_folder
from gacprof.planning import Plan
from gacprof.planning.limits import References, refuse_unmeasured
from gacprof.planning.presets import Preset, parse_preset, refuse_counts
from gacprof.resizing.output import PROVENANCE
from gacprof.resizing.workspace import lies_in, refuse_existing

if TYPE_CHECKING:
    pass

Family = Factoring | Pruning

COMPRESSED = ("factored", "grouped")

REUSED = tuple(Gather(inputs=True, outputs=outputs) for outputs in ("whole", "trace"))
"""What a pass back may have gathered, whose factors are those of a forward pass to the last bit."""


def _compress(request: CompressRequest) -> CompressResult:
    """Compress a dense model by a ratio with a published method, and write it to ``out``.

    With a map or rules every size is one that they know to be served well at ``tokens``, and the
    model has no more parameters than the ratio allows. Without, the sizes are the method's own, or
    by ``round_to`` those of its own rounding. ``calib`` is a text file or token ids
    [windows, tokens]; plain SVD needs none.

    ``out`` appears whole or not at all. What is worked out on the way lies beside it until then, so
    that the same call goes on after an interrupt; in a folder ``work`` of your own it stays, for
    other ratios and maps. ``tell`` is called with a line for each step; ``tasks`` decompose the
    layers elsewhere, as :mod:`gacprof.extras.fleet.on_ray` does.

    Raises :class:`CompressionError`, :class:`CheckpointError`, :class:`MapError`,
    :class:`PlanError` or :class:`SolverError`.
    """
    out = Path(request.out)
    if (out / PROVENANCE).is_file():  # killed between the output's last step and this
        remove_leftovers(out)
    refuse_existing(out)
    reader = tensors_of(request.model)
    inventory = reader.inventory
    _refuse_all_but_dense(inventory)
    if lies_in(out, inventory):
        raise CompressionError(f"{out} lies in the model's folder {inventory.path}: name another")
    loaded = request.open_source() if request.has_source else None
    calibration = None
    if request.calib is not None:
        calibration = calibration_of(
            request.calib, inventory, windows=request.windows, length=request.length,
            tokenizer=request.tokenizer,
        )  # fmt: skip
    where = present_device(request.device)
    chosen = method_named(request.method, dict(request.options))
    if isinstance(chosen, DropLayers):
        refuse_sizes(request)
    if loaded is not None:
        by = "--ranks" if isinstance(chosen, LowRank) else "--for"
        refuse_unmeasured(loaded, inventory, request, by)
    if request.preset is not None:
        asked = parse_preset(request.preset)
        if isinstance(chosen, LowRank):
            _refuse_pairs(asked, chosen)
        refuse_counts(inventory, asked)
    needs = needs_of(chosen, request, calibration is not None, loaded is not None)
    if not needs.text:
        calibration = None
    elif calibration is None:
        raise CompressionError(f"{needs.why} needs a calibration text (--calib FILE)")
    facts = {  # what the work depends on; the ratio and the map are no part of it
        "method": request.method,
        "options": request.options,
        "passes": needs.passes,
        "calibration": None if calibration is None else calibration.digest,
        "device": where.partition(":")[0],
    }
    work = Path(request.work) if request.work else None
    key = f"{request.method}-{key_of(inventory, facts)}"
    if needs.passes == "forward" and work is not None:  # a pass back gives the same factors
        for more in REUSED:
            other = f"{request.method}-{key_of(inventory, facts | {'passes': f'backward {more}'})}"
            key = other if (work / other / BACK).is_file() else key
    tell = request.tell or (lambda line: None)
    with _memory_errors(where), state_for(out, work, key) as state:
        setting = Work(reader, state, calibration, where, tell, request.tasks or Tasks())
        family: Family | Depth
        if isinstance(chosen, DropLayers):
            family = Depth(setting)
        elif isinstance(chosen, TaylorPruning):
            family = Pruning(setting, chosen, needs.score or TAYLOR, needs.gather)
        else:
            family = Factoring(setting, chosen, needs.score, needs.gather)
            if loaded is not None:
                _refuse_limits(family, request, loaded)
        family.prepare()
        return _finish(family, request, needs.objective, loaded, out, key, setting)


compress = verb("compress", CompressRequest, _compress)


def _refuse_all_but_dense(inventory: Inventory) -> None:
    """Raise :class:`CompressionError` for a model that is compressed or packed already."""
    done = next((m.name for m in inventory.modules if m.kind in COMPRESSED), None)
    if done is not None:
        raise CompressionError(
            f"{inventory.path} is compressed already ('{done}' is a factor pair, layout "
            f"{inventory.layout}): give the dense model that it was made from"
        )
    if inventory.is_quantised:
        raise CompressionError(
            f"{inventory.path} is quantised: compress the model before, then quantise it again"
        )
    if not inventory.config:
        raise CompressionError(
            f"{inventory.path} has no config.json: nothing says what it computes"
        )


def _refuse_pairs(preset: Preset, method: LowRank) -> None:
    """Raises :class:`PlanError` before anything is worked out where the engine holds no pairs."""
    if preset.no_factors:
        raise PlanError(
            f"the preset '{preset.text}' cannot express the factor pairs that {method.name} makes: "
            f"{preset.no_factors}"
        )


def _refuse_limits(family: Factoring, request: CompressRequest, source: SizeSource) -> None:
    """Raises :class:`SolverError` for limits on time that no ranks meet, whatever they lose."""
    dense, most = family.reader.inventory, family.most
    tensors = family.tensors(dict(most))
    inventory = inventory_of_output(dense.path, tensors, family.config(dict(most)))
    refuse_unreachable_limits(inventory, dense, source, request, most, family.fuses)


@dataclass(frozen=True)
class Needs:
    """What a compression needs: the ``objective`` that chooses its sizes, the importance to be
    gathered, whether a ``text`` is run, and what a backward pass gathers, if there is one. ``why``
    names who asks for the text."""

    objective: str
    score: str | None
    text: bool
    gather: Gather | None
    why: str

    @property
    def passes(self) -> str:
        """What the work depends on, as text."""
        if self.gather is None:
            return "backward" if self.score == TAYLOR else "forward" if self.text else "none"
        return f"backward {self.gather}"


def needs_of(method: Method, request: CompressRequest, has_text: bool, chooses: bool) -> Needs:
    """``chooses`` says whether a source of sizes is given. Raises :class:`CompressionError` for an
    objective that the method does not know."""
    asked, score = request.objective, request.score
    if isinstance(method, DropLayers):
        return Needs("energy", None, True, None, method.name)
    if isinstance(method, TaylorPruning):
        score = score or TAYLOR
        if asked not in BY_LOSS:
            return Needs(asked or "energy", score, score == TAYLOR, None, method.name)
        if score != TAYLOR:
            raise CompressionError(
                f"{method.name} by {score} has no estimate '{asked}': name no score, or the "
                "objective energy"
            )
        of = Gather(True, True, "trace" if asked == "gscalar" else "whole")
        return Needs(asked, score, True, of, f"the objective {asked}")
    by_loss = has_text and chooses and score is None
    objective = asked or ("loss" if by_loss else "energy")
    follows = score or method.scored or ("magnitude" if objective == "gac" else None)
    outputs: Literal["", "trace", "whole"] = ""
    if objective in BY_LOSS or method.two_sided:
        outputs = "trace" if objective == "gscalar" and not method.two_sided else "whole"
    inputs = bool(outputs) or method.reads == "moments"
    backward = bool(outputs) or follows in BACKWARD
    gather = Gather(follows in BACKWARD, inputs, outputs) if backward else None
    text = backward or method.reads != "nothing" or follows == "activation"
    why = f"{method.name} by the score {score}" if score else method.name
    if objective in BY_LOSS:
        why = f"the objective {objective}"
    return Needs(objective, follows, text, gather, why)


def _finish(
    family: Family | Depth,
    request: CompressRequest,
    objective: str,
    cliff_map: SizeSource | None,
    out: Path,
    key: str,
    work: Work,
) -> CompressResult:
    """Choose the sizes and write the model."""
    requested = family.requested_sizes(request.ratio)
    source = family.reader.inventory
    plan, sizes, as_requested = None, dict(requested), source
    if isinstance(family, Depth):
        pass  # no size changes
    elif request.round_to is not None:
        if request.objective is None:
            sizes = family.rounded(requested, request.round_to)
        else:
            sizes = dict(_of_multiples(family, request, objective, requested))
    elif cliff_map is not None:
        plan, as_requested = _planned(family, request, objective, cliff_map, requested)
        work.tell("sizes are chosen")
        sizes = dict(requested) | {choice.dim: choice.after for choice in plan.choices}
    tensors, config = family.tensors(sizes), family.config(sizes)
    inventory = inventory_of_output(str(out), tensors, config)
    result = CompressResult(
        source=source.path,
        out=str(out),
        method=request.method,
        layout=inventory.layout,
        ratio=request.ratio,
        parameters_before=source.parameters,
        parameters_after=inventory.parameters,
        compressed_before=family.parameters,
        requested=requested,
        sizes=sizes,
        energy_kept=_mean_kept(family.kept, sizes),
        energy_of_requested=_mean_kept(family.kept, requested),
        left=family.left,
        plan=plan,
        predicted=_times(cliff_map, plan, source, as_requested, inventory),
        objective=objective if cliff_map is not None or request.objective else None,
        thin=family.thin,
        loss_added=_loss_added(family, sizes, work),
        loss_of_requested=_loss_added(family, requested, work),
    )
    record = record_of(result, request, work.calibration, source)
    files: dict[str, Any] = {"config.json": config, PROVENANCE: record}
    if plan is not None:
        files[PLAN] = plan.as_dict()
    card = card_of(result, request, work.calibration)
    write_folder(out, key, family.reader, tensors, files, card)
    return result


def _of_multiples(
    family: Family, request: CompressRequest, objective: str, requested: NewSizes
) -> NewSizes:
    """By the objective among the multiples of ``round_to``, whatever the device."""
    if isinstance(family, Pruning) or objective == "gac":
        raise CompressionError(
            "an objective chooses among multiples (--round) for low-rank methods, by loss, gscalar "
            "or energy: name none for the tool's own rounding, or give a map"
        )
    by_loss = objective in BY_LOSS
    kept = weighted(family.kept, family.weights(), list(family.most))
    lost = family.lost if by_loss else {n: [1 - s for s in kept[n]] for n in kept}
    dense = by_loss and family.fuses
    multiple = request.round_to or 1
    return multiples(
        family.targets, lost, family.most, multiple, family.budget(request.ratio, requested), dense
    )


def _planned(
    family: Family,
    request: CompressRequest,
    objective: str,
    cliff_map: SizeSource,
    requested: NewSizes,
) -> tuple[Plan, Inventory]:
    """The plan, and the inventory at the method's own sizes."""
    path = f"{family.reader.inventory.path} at the method's own sizes"
    as_requested = inventory_of_output(path, family.tensors(requested), family.config(requested))
    rest = family.reader.inventory.parameters - family.parameters
    wide = objective in BY_LOSS and request.window is None
    start, base = requested, as_requested
    if wide and any(size is None for size in requested.values()):  # the dense may be cut
        start = {n: family.most[n] if size is None else size for n, size in requested.items()}
        base = inventory_of_output(path, family.tensors(start), family.config(start))
    moved = {name for name, size in start.items() if size is not None}
    names = [dim.name for dim in base.dims if dim.name in moved]
    scores = family.scores() if objective == "gac" else None
    by_loss = objective in BY_LOSS
    plan = choose(
        only(base, names),
        cliff_map,
        request,
        objective="loss" if by_loss else objective,
        budget_parameters=rest + family.budget(request.ratio, requested),
        kept=family.kept if by_loss else weighted(family.kept, family.weights(), names),
        lost=family.lost if by_loss else None,
        most=family.most,
        scores=None if scores is None else {name: scores[name] for name in names},
        fuse=family.fuses,
        references=References(
            "dense",
            family.reader.inventory,
            as_requested,
            _rounded(family, request, requested, names),
        ),
    )
    return plan, as_requested


def _rounded(
    family: Family, request: CompressRequest, requested: NewSizes, names: Sequence[str]
) -> NewSizes | None:
    """The method's own rounding that the model is to dominate; None where it is not asked for."""
    if request.dominate is None:
        return None
    rounded = family.rounded(requested, multiple_of(request.dominate))
    return {name: rounded[name] for name in names}


def _loss_added(family: Family | Depth, sizes: NewSizes, work: Work) -> float | None:
    """Half of Σ tr(G·ΔW·(Σ x·xᵀ)·ΔWᵀ) for each token of the text, in nats; without whole layers it
    is measured."""
    if isinstance(family, Depth):
        return family.loss_added(sizes)
    if isinstance(family, Pruning) or family.gather is None or not family.gather.outputs:
        return None  # of heads that are pruned nothing is estimated
    assert work.calibration is not None
    total = sum(family.lost[n][size] for n, size in sizes.items() if size is not None)
    return total / (2 * work.calibration.ids.numel())


def _times(
    cliff_map: SizeSource | None,
    plan: Plan | None,
    dense: Inventory,
    own: Inventory,
    written: Inventory,
) -> tuple[PhaseTime, ...]:
    """What the source predicts of the layers that were changed, a token count by itself."""
    if plan is None or cliff_map is None or not cliff_map.timed:
        return ()
    shapes = [
        {m.name: tuple((g.N, g.K, g.bias) for g in m.gemms) for m in each.modules if m.gemms}
        for each in (dense, own, written)
    ]
    changed = {
        name for name, shape in shapes[0].items() if any(s.get(name) != shape for s in shapes)
    }

    def predicted(inventory: Inventory, count: int) -> Estimate:
        by = Predictor(cliff_map, inventory, {count: 1.0}, plan.workload.dtype)
        return by.gemms([g for m in inventory.modules if m.name in changed for g in m.gemms])

    found = []
    for count in sorted(plan.workload.tokens):
        before, as_requested, after = (predicted(each, count) for each in (dense, own, written))
        saved = before.saved(after) if plan.basis else None
        bounds = None if saved is None else (saved.low, saved.value, saved.high)
        us = before.latency_us, as_requested.latency_us, after.latency_us
        found.append(PhaseTime(count, us[0], us[1], us[2], bounds))
    return tuple(found)


def _mean_kept(kept: dict[str, list[float]], sizes: NewSizes) -> float:
    shares = [1.0 if size is None else kept[name][size] for name, size in sizes.items()]
    return sum(shares) / len(shares)


@contextlib.contextmanager
def _memory_errors(device: str) -> Iterator[None]:
    """Running out of memory is reported in words; what was worked out stays."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error) or "out of memory" in str(error).lower():
            raise MemoryExhaustedError(
                f"{device} is out of memory: shorter windows (--length) need less, and so does "
                "--device cpu; the same command goes on where it stopped"
            ) from None
        raise

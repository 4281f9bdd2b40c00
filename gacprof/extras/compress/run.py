"""From a dense model to a compressed one whose sizes the device serves well, in one call.

1. the method's own sizes and the importance of what they hold, from weights and calibration text;
2. the sizes that the map knows to be good around them, at every layer's true shapes;
3. a plan: one of those for each, within the parameters that the ratio allows;
4. the final factors or widths at those sizes, from the original weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from gacprof.checkpoint.inventory import Inventory, NewSizes
from gacprof.checkpoint.scanning import TensorReader, tensors_of
from gacprof.cliffmap.source import SizeSource
from gacprof.core.errors import (
    CompressionError,
    MemoryExhaustedError,
    PlanError,
    SolverError,
    is_out_of_memory,
)
from gacprof.core.request import verb
from gacprof.core.tasks import Tasks
from gacprof.core.texts import multiple_of
from gacprof.devices.opening import present_device
from gacprof.diagnosing.predict import Predictor
from gacprof.extras.compress.calibration import Calibration, calibration_of
from gacprof.extras.compress.choosing import (
    Family,
    multiples_of,
    plan_of,
    refuse_unreachable_limits,
)
from gacprof.extras.compress.decomposing import BACK
from gacprof.extras.compress.depth import Depth, DropLayers, refuse_sizes
from gacprof.extras.compress.factoring import Factoring
from gacprof.extras.compress.gradients import Gather
from gacprof.extras.compress.methods import Method, method_named
from gacprof.extras.compress.methods.llmpruner import TaylorPruning
from gacprof.extras.compress.methods.method import LowRank
from gacprof.extras.compress.outcome import CompressResult, card_of, record_of, times
from gacprof.extras.compress.pruning import Pruning
from gacprof.extras.compress.request import BACKWARD, BY_LOSS, TAYLOR, CompressRequest
from gacprof.extras.compress.state import State, Work, key_of, remove_leftovers, state_for
from gacprof.extras.compress.writing import PLAN, inventory_of_output, write_folder
from gacprof.planning.presets import parse_preset
from gacprof.planning.problem import refuse_unmeasured
from gacprof.planning.requirements import refuse_counts
from gacprof.resizing.output import PROVENANCE
from gacprof.resizing.run import realign
from gacprof.resizing.workspace import lies_in, refuse_existing
from gacprof.solver import InfeasibleBudget

WHOLE, TRACE = (Gather(inputs=True, outputs=outputs) for outputs in ("whole", "trace"))
REUSED = {"forward": (WHOLE, TRACE), f"backward {TRACE}": (WHOLE,)}
"""Which passes back serve for others: their factors are the same to the last bit."""


def _compress(request: CompressRequest) -> CompressResult:
    """Compress a model by a ratio with a published method, and write it to ``out``.

    With a map or rules every size is one that they know to be served well at ``tokens``, and the
    model has no more parameters than the ratio allows. Without, the sizes are the method's own, or
    by ``round_to`` those of its own rounding. ``calib`` is a text file or token ids
    [windows, tokens]; plain SVD needs none. Of a model of factor pairs their products are
    compressed: its ratio counts from what the pairs have, and 0 only chooses their sizes anew.

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
    given = tensors_of(request.model)
    inventory = given.inventory
    chosen = method_named(request.method, dict(request.options))
    _refuse_unfit(inventory, chosen, request, out)
    loaded = request.open_source() if request.has_source else None
    calibration = None if request.calib is None else calibration_of(
        request.calib, inventory, windows=request.windows, length=request.length,
        tokenizer=request.tokenizer,
    )  # fmt: skip
    where = present_device(request.device)
    if loaded is not None:
        by = "--ranks" if isinstance(chosen, LowRank) else "--for"
        refuse_unmeasured(loaded, inventory, request, by)
    needs = needs_of(chosen, request, calibration is not None, loaded is not None)
    if not needs.text:
        calibration = None
    elif calibration is None:
        raise CompressionError(f"{needs.why} needs a calibration text (--calib FILE)")
    work = Path(request.work) if request.work else None
    key = _key_of(request, inventory, needs, calibration, where, work)
    tell = request.tell or (lambda line: None)
    with _memory_errors(where), state_for(out, work, key) as state:
        reader = _multiplied_out(request.model, state) if _pair_in(inventory) else given
        setting = Work(reader, state, calibration, where, tell, request.tasks or Tasks())
        family = _family(chosen, needs, setting)
        gone = reader.inventory.parameters - inventory.parameters
        asked = replace(request, ratio=_of_dense(request.ratio, family.parameters, gone))
        came_with = None
        if isinstance(family, Factoring) and not request.ratio:
            came_with = _ranks_of(inventory, family.most)
        alike = came_with or family.requested_sizes(asked.ratio, alike=True)
        if not isinstance(family, Depth):
            _rehearse(family, asked, needs.objective, loaded, alike)
        family.prepare()
        state.complete = True
        requested = came_with or family.requested_sizes(asked.ratio)
        return _finish(
            family, request, asked, requested, needs.objective, loaded, inventory, key, setting
        )


compress = verb("compress", CompressRequest, _compress)


def _key_of(
    request: CompressRequest,
    inventory: Inventory,
    needs: Needs,
    calibration: Calibration | None,
    device: str,
    work: Path | None,
) -> str:
    """What is worked out, as a name; of a pass in the folder ``work`` that serves for it too, where
    there is one."""
    facts = {  # what it depends on; the ratio and the map are no part of it
        "method": request.method,
        "options": request.options,
        "passes": needs.passes,
        "calibration": None if calibration is None else calibration.digest,
        "device": device.partition(":")[0],
    }
    key = f"{request.method}-{key_of(inventory, facts)}"
    for more in REUSED.get(needs.passes, ()):
        other = f"{request.method}-{key_of(inventory, facts | {'passes': f'backward {more}'})}"
        key = other if work is not None and (work / other / BACK).is_file() else key
    return key


def _family(method: Method, needs: Needs, work: Work) -> Family | Depth:
    if isinstance(method, DropLayers):
        return Depth(work)
    if isinstance(method, TaylorPruning):
        return Pruning(work, method, needs.score or TAYLOR, needs.gather)
    return Factoring(work, method, needs.score, needs.gather, needs.objective)


def _pair_in(inventory: Inventory) -> str | None:
    """The name of a module that is a factor pair, if there is one."""
    return next((m.name for m in inventory.modules if m.kind in ("factored", "grouped")), None)


def _refuse_unfit(
    inventory: Inventory, method: Method, request: CompressRequest, out: Path
) -> None:
    """Raise :class:`CompressionError` for a model that the method cannot compress, an output in its
    folder, and a preset that cannot express what comes of it."""
    path, pair = inventory.path, _pair_in(inventory)
    if isinstance(method, DropLayers):
        refuse_sizes(request)
    if request.objective is not None and not request.has_source and request.round_to is None:
        raise CompressionError(
            f"the objective {request.objective} chooses among sizes: give --map, --gpu or --round"
        )
    if pair is not None and (not isinstance(method, LowRank) or method.counts == "latents"):
        raise CompressionError(
            f"{path} is compressed already ('{pair}' is a factor pair, layout {inventory.layout}): "
            f"{method.name} needs the dense model that it was made from; svd, svd-llm, kfac-svd "
            "and asvd compress the products of its pairs"
        )
    if pair is None and request.ratio == 0:
        raise CompressionError("the ratio 0 removes nothing of a dense model: give a share")
    if inventory.is_quantised:
        raise CompressionError(
            f"{path} is quantised: compress the model before, then quantise it again"
        )
    if not inventory.config:
        raise CompressionError(f"{path} has no config.json: nothing says what it computes")
    if lies_in(out, inventory):
        raise CompressionError(f"{out} lies in the model's folder {path}: name another")
    if request.preset is not None:
        preset = parse_preset(request.preset)
        if preset.no_factors and isinstance(method, LowRank):
            raise PlanError(
                f"the preset '{preset.text}' cannot express the factor pairs that {method.name} "
                f"makes: {preset.no_factors}"
            )
        refuse_counts(inventory, preset)


def _multiplied_out(model: Any, state: State) -> TensorReader:
    """The same model with the product of every factor pair as a dense weight, rounded once."""
    if not isinstance(model, str | Path | Inventory):
        return tensors_of(realign(model, fuse=True))
    folder = state.path("products")
    if not folder.exists():
        realign(model, fuse=True, out=folder)
    return tensors_of(folder)


def _of_dense(ratio: float, dense: int, gone: int) -> float:
    """A ratio of targets of which ``gone`` parameters are gone, as one of their ``dense`` ones. The
    half keeps the whole number that it stands for through the division."""
    left = int((1 - ratio) * (dense - gone))
    return max(0.0, 1 - (left + 0.5) / dense) if gone else ratio


def _ranks_of(pairs: Inventory, most: Mapping[str, int]) -> dict[str, int | None]:
    """The ranks that ``pairs`` come with by dim name of their products, those of groups together;
    None for a dense weight, or a pair that is larger than one."""
    ranks: dict[str, int] = {}
    for dim in pairs.dims:
        if dim.kind == "rank":
            module = dim.name.partition(":")[0]
            ranks[module] = ranks.get(module, 0) + dim.size
    found = {name: ranks.get(name.partition(":")[0]) for name in most}
    return {n: None if rank is None or rank > most[n] else rank for n, rank in found.items()}


def _rehearse(
    family: Family,
    request: CompressRequest,
    objective: str,
    source: SizeSource | None,
    own: NewSizes,
) -> None:
    """Refuse, before any text is run, sizes that are not known or are none and limits that no sizes
    can meet: they are chosen as if all weights were alike. Where the method's ``own`` sizes follow
    from the text, multiples, limits and token counts alone are looked at."""
    baseline = multiple_of(request.dominate) if request.dominate else 1
    multiple, largest = request.round_to or baseline, max(family.most.values())
    if multiple > largest:
        raise CompressionError(f"no size is a multiple of {multiple}: the largest is {largest}")
    if source is None:
        if request.round_to and request.objective and family.by_ratio_alone:
            multiples_of(family, request, objective, own, rehearsal=True)
        return
    if isinstance(family, Pruning) or not family.by_ratio_alone:
        inventory = family.reader.inventory
        note = Predictor(source, inventory, request.tokens, request.dtype).tokens_note
        if request.tokens is not None and note:
            raise CompressionError(note)
    if not family.by_ratio_alone:
        refuse_unreachable_limits(family, request, source)
        return
    try:
        plan_of(family, request, objective, source, own, rehearsal=True)
    except InfeasibleBudget:
        raise
    except SolverError:  # not decided in so short a time
        return


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
    if score and not (method.scored or chooses or (asked and request.round_to)):
        raise CompressionError(
            f"{method.name} alone asks no score: it weighs sizes that --map or --gpu offers, or "
            "--round by an --objective"
        )
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
    asked: CompressRequest,
    requested: NewSizes,
    objective: str,
    source: SizeSource | None,
    given: Inventory,
    key: str,
    work: Work,
) -> CompressResult:
    """Choose the sizes and write the model. ``asked`` is the request with its ratio as one of dense
    weights, ``given`` the model as it was given."""
    dense, chosen = family.reader.inventory, request.objective is not None
    plan, sizes, own = None, requested, dense
    if isinstance(family, Depth):
        pass  # no size changes
    elif source is not None:
        plan, own = plan_of(family, asked, objective, source, requested)
        work.tell("sizes are chosen")
        sizes = {**requested, **{choice.dim: choice.after for choice in plan.choices}}
    elif request.round_to is not None:
        among = multiples_of(family, asked, objective, requested) if chosen else None
        sizes = among or family.rounded(requested, request.round_to)
    tensors, config = family.tensors(sizes), family.config(sizes)
    written = inventory_of_output(str(request.out), tensors, config)
    result = CompressResult(
        source=given.path,
        out=str(request.out),
        method=request.method,
        layout=written.layout,
        ratio=request.ratio,
        parameters_before=given.parameters,
        parameters_after=written.parameters,
        compressed_before=family.parameters - (dense.parameters - given.parameters),
        requested=requested,
        sizes=sizes,
        energy_kept=_mean_kept(family.kept, sizes),
        energy_of_requested=_mean_kept(family.kept, requested),
        left=family.left,
        plan=plan,
        predicted=()
        if plan is None or source is None
        else times(source, plan, dense, own, written),
        objective=objective if source is not None or chosen else None,
        thin=family.thin,
        recompressed=_pair_in(given) is not None,
        loss_added=_loss_added(family, sizes, work),
        loss_of_requested=_loss_added(family, requested, work),
        cache=_cache(family, given, written),
    )
    record = record_of(result, request, work.calibration, given)
    files: dict[str, Any] = {"config.json": config, PROVENANCE: record}
    if plan is not None:
        files[PLAN] = plan.as_dict()
    card = card_of(result, request, work.calibration)
    write_folder(Path(request.out), key, family.reader, tensors, files, card)
    return result


def _cache(family: Family | Depth, *models: Inventory) -> tuple[int, int] | None:
    """Entries of a token in a cache of keys and values, of the model given and that to be written,
    where the method's ratio counts them. Raises :class:`CompressionError` where they are not fewer.
    """
    if not isinstance(family, Factoring) or family.method.counts != "latents":
        return None
    before, after = (
        sum(m.gemms[0].N for m in model.modules if m.gemms and m.role in ("k", "v"))
        for model in models
    )
    if after >= before:
        given, written = (model.parameters for model in models)
        raise CompressionError(
            f"nothing would be smaller: a cache of {before:,} → {after:,} entries a token, "
            f"{given:,} → {written:,} parameters; ask for a larger --ratio or a smaller --round"
        )
    return before, after


def _loss_added(family: Family | Depth, sizes: NewSizes, work: Work) -> float | None:
    """Half of Σ tr(G·ΔW·(Σ x·xᵀ)·ΔWᵀ) for each token of the text, in nats; without whole layers it
    is measured."""
    if isinstance(family, Depth):
        return family.loss_added(sizes)
    if family.gather is None or not family.gather.outputs:
        return None
    total = sum(family.lost[n][size] for n, size in sizes.items() if size is not None)
    return total / (2 * work.ids.numel())


def _mean_kept(kept: dict[str, list[float]], sizes: NewSizes) -> float:
    shares = [1.0 if size is None else kept[name][size] for name, size in sizes.items()]
    return sum(shares) / len(shares)


@contextmanager
def _memory_errors(device: str) -> Iterator[None]:
    """Running out of memory is reported in words; what was worked out stays."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error) or "out of memory" in str(error).lower():
            elsewhere = "" if device == "cpu" else ", and --device cpu has the host's memory"
            raise MemoryExhaustedError(
                f"{device} is out of memory: --objective gscalar or energy keeps fewer matrices"
                f"{elsewhere}; with more memory the same command goes on where it stopped"
            ) from None
        raise

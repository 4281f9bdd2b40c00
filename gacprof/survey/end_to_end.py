"""Stage ``end_to_end``: the variants run as whole models, prefill and decode, eager and compiled.

The models of a group are interleaved in every round (:mod:`gacprof.evaluation.benchmark`), the
dense one first, as the reference. What runs out of time or memory is named and left for another
call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.skeleton import build_skeleton
from gacprof.core.errors import GacprofError, MeasurementError, first_line
from gacprof.core.files import write_json
from gacprof.devices.environment import free_bytes
from gacprof.survey.setting import Setting
from gacprof.survey.shapes import BYTES, Shape, inventory_of
from gacprof.survey.state import SKIPPED, Outcome
from gacprof.survey.variants import DENSE, PLANNED, UNALIGNED, Variant, load

if TYPE_CHECKING:
    from gacprof.evaluation import BenchResult


SHARED = ("model.embed_tokens", "lm_head")
"""What compression leaves alone, held once for all variants on a device."""

SEED = 0


def build(
    inventory: Inventory, dtype: torch.dtype, device: torch.device, like: nn.Module | None = None
) -> nn.Module:
    """The model of ``inventory``, ready to run; embedding and head are those of ``like``.

    Raises :class:`CheckpointError` where transformers cannot build it; torch's out-of-memory
    error passes through.
    """
    model, _ = build_skeleton(inventory, dtype)
    if like is not None:
        for name in SHARED:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, like.get_submodule(name))
    draw = torch.Generator(device).manual_seed(SEED)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_meta:
                made = nn.Parameter(_weights(parameter.shape, dtype, device, draw), False)
                setattr(module, name, made)
    return model.to(device).eval()


def release(device: torch.device) -> None:
    """Give the memory of models that are no longer named back to the device."""
    import gc

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _weights(shape: Any, dtype: torch.dtype, device: torch.device, draw: Any) -> torch.Tensor:
    """Normal, of a scale that keeps activations finite; a norm's weights are ones."""
    made = torch.empty(shape, dtype=dtype, device=device)
    if len(shape) < 2:
        return made.fill_(1)
    return made.normal_(0, float(shape[-1]) ** -0.5, generator=draw)


FILE = "end_to_end.json"


def layers_before(setting: Setting) -> int:
    """How many layers an earlier call ran; 0 where there was none."""
    try:
        data = json.loads((setting.folder / FILE).read_text(encoding="utf-8"))
        return int(data["shape"]["layers"]) if data["results"] else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def kept(setting: Setting, variants: Sequence[Variant], shape: Shape) -> dict[str, dict[str, Any]]:
    """Results of an earlier call, where it ran these very variants."""
    try:
        data = json.loads((setting.folder / FILE).read_text(encoding="utf-8"))
        same = data["variants"] == _sizes(variants) and data["shape"] == _json(shape.as_dict())
        return dict(data["results"]) if same else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def save(
    setting: Setting,
    shape: Shape,
    variants: Sequence[Variant],
    results: dict[str, dict[str, Any]],
    problems: dict[str, str],
) -> None:
    write_json(
        setting.folder / FILE,
        {
            "schema": "gacprof.survey.end_to_end/1",
            "shape": shape.as_dict(),
            "variants": _sizes(variants),
            "results": results,
            "not_measured": {name: why for name, why in problems.items() if name not in results},
        },
    )


def _sizes(variants: Sequence[Variant]) -> list[dict[str, Any]]:
    return [{"group": v.group, "name": v.name, "sizes": dict(v.sizes)} for v in variants]


def _json(value: Any) -> Any:
    return json.loads(json.dumps(value))


ROUNDS = 12
GRACE = 0.05
"""Of the budget: how far a run that has begun may overrun it before it is given up."""
MEMORY_SHARE = 0.7
"""Of the free memory, for weights; the rest is for activations, caches and the compiler."""

RECOMPILE_LIMIT = 512
"""torch.compile falls back to eager, silently, after 8 shapes of one function: all variants
are one function."""

COMPILED = (DENSE, UNALIGNED, PLANNED)
"""The variants that are compiled: it takes many seconds a layer, and padding by hand is what
the compiler does itself."""

TIMED_OUT = "the time was up"


class _TimeIsUpError(GacprofError):
    """Raised between two timings: a compilation can take longer than all the rest."""


@dataclass(frozen=True)
class Run:
    """One workload of one group, eager or compiled: what one call of the bench times.

    Where ``decode_steps`` is not 0, decoding is what counts, after a prompt of ``tokens``.
    """

    group: str
    mode: str
    batch: int
    tokens: int
    decode_steps: int = 0

    @property
    def name(self) -> str:
        kind = "decode" if self.decode_steps else "prefill"
        return f"{self.group}, {self.mode}, {kind} {self.tokens}, batch {self.batch}"


def runs(shape: Shape, groups: Sequence[str]) -> Iterator[Run]:
    """Eager first for every group, then compiled: what is cut by time is the slowest to get."""
    modes = {"eager": shape.prefill, "compiled": shape.compiled_prefill}
    for mode, prefill in modes.items():
        if mode == "compiled" and not shape.compiled_layers:
            return
        for group in groups:
            for length in prefill:
                yield Run(group, mode, 1, length)
            for batch in shape.decode_batches:
                yield Run(group, mode, batch, shape.prompt, shape.decode_steps)


def measure(setting: Setting) -> Outcome:
    """Time every run that is not yet in ``end_to_end.json``, as far as time allows."""
    try:
        import transformers  # noqa: F401
    except ImportError:
        return Outcome(
            SKIPPED, "building the models needs transformers: pip install gacprof[models]"
        )
    variants = load(setting)
    shape, notes = fitting(setting, variants)
    if 0 < (layers := layers_before(setting)) < shape.layers:
        shape = replace(shape, layers=layers)  # more memory is free now; results stay comparable
    groups = list(dict.fromkeys(variant.group for variant in variants))
    wanted = list(runs(shape, groups))
    results = kept(setting, variants, shape)
    problems: dict[str, str] = {}
    missing = [run for run in wanted if run.name not in results]
    short = [run for run in wanted if run.name in results and _thin(results[run.name])]
    for due in (missing, short):  # what is not there at all comes before what is thin
        for group, mode in dict.fromkeys((run.group, run.mode) for run in due):
            own = [variant for variant in variants if variant.group == group]
            todo = [run for run in due if (run.group, run.mode) == (group, mode)]
            _measure_group(setting, shape, own, todo, len(wanted) + len(short), results, problems)
            save(setting, shape, variants, results, problems)
    save(setting, shape, variants, results, problems)
    return _outcome(wanted, results, problems, notes)


def fitting(setting: Setting, variants: Sequence[Variant]) -> tuple[Shape, list[str]]:
    """As many layers as the variants of one group may have together in the free memory.

    Raises :class:`MeasurementError` where not even one layer fits.
    """
    shape = setting.machine.shape
    free = free_bytes(setting.machine.torch_device)
    if free is None:
        return shape, []
    itemsize = BYTES[shape.dtype]
    ends = 2 * shape.vocabulary * shape.hidden
    dense = inventory_of(shape, {}).parameters - ends
    groups = {v.group for v in variants}
    layers = (
        max(sum(v.parameters - ends for v in variants if v.group == group) for group in groups)
        / shape.layers
    )
    room = MEMORY_SHARE * free / itemsize - ends
    fit = min(shape.layers, int(room / layers))
    if fit < 1:
        raise MeasurementError(
            f"{free / 1e9:.1f} GB are free on {setting.machine.torch_device}, one layer of every "
            f"variant of {shape.scale} needs {(ends + layers) * itemsize / MEMORY_SHARE / 1e9:.1f}"
        )
    if fit == shape.layers:
        return shape, []
    note = f"{fit} of {shape.layers} layers: {free / 1e9:.1f} GB are free, dense alone is "
    return replace(shape, layers=fit), [f"{note}{dense * itemsize / 1e9:.1f} GB"]


def _measure_group(
    setting: Setting,
    shape: Shape,
    variants: Sequence[Variant],
    todo: Sequence[Run],
    in_all: int,
    results: dict[str, dict[str, Any]],
    problems: dict[str, str],
) -> None:
    """The runs of one group in one mode, on models that are built once for all of them."""
    from gacprof.evaluation import device_of

    if setting.out_of_time:
        problems.update({run.name: TIMED_OUT for run in todo})
        return
    compiled = todo[0].mode == "compiled"
    if compiled:
        shape = replace(shape, layers=min(shape.layers, shape.compiled_layers))
        variants = [v for v in variants if v.name in COMPILED]
    device = device_of(setting.machine.torch_device)
    names = [variant.name for variant in variants]
    models: list[nn.Module] = []
    try:
        models = _models(shape, variants, device)
        for run in todo:
            setting.tell(f"end to end: {run.name}")
            try:
                timed = _timed(setting, run, models, names, in_all - len(results))
            except (GacprofError, RuntimeError) as error:
                problems[run.name] = first_line(error)
                continue
            earlier = results.get(run.name)
            if earlier is None or timed.rounds >= earlier["bench"]["rounds"]:
                plain = {"run": asdict(run), "layers": shape.layers, "bench": timed.as_dict()}
                results[run.name] = plain
    except (GacprofError, RuntimeError) as error:  # the models themselves cannot be made
        problems.update({run.name: first_line(error) for run in todo})
    finally:
        models.clear()
        if compiled:
            torch.compiler.reset()
        release(device)


def _models(shape: Shape, variants: Sequence[Variant], device: torch.device) -> list[nn.Module]:
    from gacprof.checkpoint.load import dtype_of

    made: list[nn.Module] = []
    for variant in variants:
        first = made[0] if made else None
        made.append(build(variant.inventory(shape), dtype_of(shape.dtype), device, first))
    return made


def _timed(
    setting: Setting, run: Run, models: list[nn.Module], names: Sequence[str], runs_left: int
) -> BenchResult:
    """The run's timings. Raises :class:`GacprofError` when the time is up before they are."""
    from torch._dynamo import config

    from gacprof.evaluation import bench

    left = setting.left_s()
    if left is not None and left <= 0:
        raise _TimeIsUpError(TIMED_OUT)
    if run.mode == "compiled":
        torch.compiler.reset()  # each workload is compiled for its own lengths
        for model in models:
            model.compile()
    with config.patch(recompile_limit=RECOMPILE_LIMIT):
        result = bench(
            models,
            tokens=(run.tokens,),
            decode_steps=run.decode_steps,
            batch=run.batch,
            device=setting.machine.torch_device,
            rounds=ROUNDS,
            time_cap_s=None if left is None else left / max(1, runs_left),
            progress=partial(_advance, setting),
        )
    return named(result, names)


def _advance(setting: Setting, done: int, total: int, what: object) -> None:
    setting.advance(done, total, what)
    grace = 0.0 if setting.budget_s is None else GRACE * setting.budget_s
    if done < total and setting.overdue_s() > grace:
        raise _TimeIsUpError(TIMED_OUT)


def named(result: BenchResult, names: Sequence[str]) -> BenchResult:
    """The same result with the models called by the variants' names."""
    new = dict(zip(result.models, names, strict=True))
    timings = tuple(replace(timing, model=new[timing.model]) for timing in result.timings)
    return replace(result, models=tuple(names), timings=timings, sources=())


def _thin(result: dict[str, Any] | None) -> bool:
    return result is None or result["bench"]["rounds"] < ROUNDS


def _outcome(
    wanted: Sequence[Run],
    results: dict[str, dict[str, Any]],
    problems: dict[str, str],
    notes: list[str],
) -> Outcome:
    if not results:
        reasons = "; ".join(dict.fromkeys(problems.values())) or "nothing was to be run"
        return Outcome(SKIPPED, f"nothing was measured: {reasons}", (FILE,), tuple(notes))
    missing = [run.name for run in wanted if run.name not in results]
    short = [name for name, result in results.items() if _thin(result)]
    notes = [*notes, *(f"not measured: {name}: {problems[name]}" for name in missing)]
    thin = [f"{len(missing)} of {len(wanted)} runs are missing"] if missing else []
    thin += [f"{len(short)} runs have fewer than {ROUNDS} rounds"] if short else []
    return Outcome(artefacts=(FILE,), notes=tuple(notes), thin="; ".join(thin))

"""Changing a checkpoint's dims: from sizes to a new folder, streamed and all or nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import gacprof
from gacprof.checkpoint import open_tensors, scan
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.tensors import TensorReader
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.planning.schema import Plan
from gacprof.resizing import targets
from gacprof.resizing.beside import (
    notes_on,
    refuse_incomplete,
    write_provenance,
    write_side_files,
)
from gacprof.resizing.binding import check_plan
from gacprof.resizing.destination import WeightsFile, parameters_after, weights_files
from gacprof.resizing.edits import Change, Sizes, changes_of, edits_of
from gacprof.resizing.fusion import fused_modules, fusing, outputs_of
from gacprof.resizing.in_memory import realign_model
from gacprof.resizing.originals import Originals
from gacprof.resizing.resolve import Resolver
from gacprof.resizing.result import RealignResult, Resized
from gacprof.resizing.safetensors_file import write_safetensors
from gacprof.resizing.torch_file import write_torch
from gacprof.resizing.workspace import CUTS, refuse_existing, require_space, workspace

if TYPE_CHECKING:
    import torch

Progress = Callable[[int, int], None]
"""Told the bytes of weights written so far and in all."""


@overload
def realign(
    checkpoint: str | Path | Inventory,
    plan: Plan | str | Path | Mapping[str, int | None],
    out: str | Path,
    *,
    base: str | Path | Inventory | None = None,
    progress: Progress | None = None,
) -> RealignResult: ...


@overload
def realign(
    checkpoint: torch.nn.Module,
    plan: Plan | str | Path | Mapping[str, int | None],
    *,
    base: str | Path | Inventory | torch.nn.Module | None = None,
    inplace: bool = False,
) -> torch.nn.Module: ...


def realign(
    checkpoint: Any,
    plan: Any,
    out: str | Path | None = None,
    *,
    base: Any = None,
    inplace: bool = False,
    progress: Progress | None = None,
) -> Any:
    """Give ``checkpoint`` the sizes that ``plan`` chose: a plan, its file, ``minimal``,
    ``optimal``, or sizes by dim name (None: multiply out).

    ``checkpoint`` is a path or what :func:`gacprof.scan` made of it (with ``factors``, say): it
    is written anew to the folder ``out``. Or it is a model in memory: a resized copy is
    returned, or with ``inplace`` the model itself is changed.

    Padding adds zeros and is exact in real arithmetic; cuts drop the entries that matter least
    (see :class:`Resized`). With the dense model that it was compressed from as ``base``, raised
    ranks hold the best part of what the factors left out in place of zeros, and the function
    changes towards the original's. A checkpoint on disk is never changed; ``out`` appears whole
    or not at all; a killed run goes on where it was. Peak memory is about the largest tensor.

    Raises :class:`PlanError` for a plan of another checkpoint, :class:`CheckpointError` for a
    dim that may not change, an ``out`` that exists, or a full disk.
    """
    if not isinstance(checkpoint, str | Path | Inventory):
        if out is not None:
            raise PlanError("a model in memory is returned, not written: save what you get")
        return realign_model(checkpoint, plan, base=base, inplace=inplace)
    if out is None or inplace:
        raise PlanError("a checkpoint is never changed in place: name a new folder as out")
    if isinstance(plan, str) and plan in targets.MULTIPLES:
        return realign_by_strategy(checkpoint, plan, out, base=base, progress=progress)  # type: ignore[arg-type]
    inventory = _inventory(checkpoint)
    if isinstance(plan, Mapping):
        origin = {"sizes": dict(plan)}
        return write_resized(inventory, plan, out, origin=origin, base=base, progress=progress)
    plan = plan if isinstance(plan, Plan) else Plan.load(plan)
    check_plan(plan, inventory)
    digest = _digest(plan.as_dict())
    return write_resized(
        inventory, plan.changes, out, origin={"plan": digest}, base=base, progress=progress
    )


def realign_by_strategy(
    checkpoint: str | Path | Inventory,
    strategy: targets.Strategy,
    out: str | Path,
    *,
    base: str | Path | Inventory | None = None,
    progress: Progress | None = None,
) -> RealignResult:
    """Zero-pad every dim that zeros may pad to a multiple of 8 (``minimal``) or 16 (``optimal``).

    Dims that may not be padded stay as they are and are named in the result's notes. ``base`` is
    as in :func:`realign`.
    """
    if strategy not in targets.MULTIPLES:
        raise PlanError(f"unknown strategy '{strategy}': use {' or '.join(targets.MULTIPLES)}")
    inventory = _inventory(checkpoint)
    sizes, notes = targets.padded(inventory, targets.MULTIPLES[strategy])
    origin = {"strategy": strategy}
    return write_resized(
        inventory, sizes, out, origin=origin, base=base, notes=notes, progress=progress
    )


def realign_uniform(
    checkpoint: str | Path | Inventory,
    out: str | Path,
    multiple: int = 8,
    *,
    progress: Progress | None = None,
) -> RealignResult:
    """Zero-pad per-layer widths to one common size: a plain config that any server loads.

    The common size is the largest, rounded up to ``multiple``; what that costs is the result's
    ``parameters_after`` − ``parameters_before``. Raises :class:`CheckpointError` where the
    result would not be a plain model (factor pairs, sliced hidden size, unequal heads).
    """
    if multiple < 1:
        raise PlanError(f"a multiple of {multiple} makes no sense; use 8")
    inventory = _inventory(checkpoint)
    sizes = targets.uniform(inventory, multiple)
    origin = {"uniform": multiple}
    return write_resized(inventory, sizes, out, origin=origin, progress=progress)


def fuse(
    checkpoint: str | Path | Inventory,
    out: str | Path,
    modules: Sequence[str] | None = None,
    *,
    progress: Progress | None = None,
) -> RealignResult:
    """Multiply factor pairs out into dense weights: all, or those of the named ``modules``.

    The product is computed in float64 and rounded once to the stored dtype. What it costs or
    saves is the result's ``parameters_after`` − ``parameters_before``.
    """
    inventory = _inventory(checkpoint)
    sizes = fusing(inventory, modules)
    return write_resized(
        inventory,
        sizes,
        out,
        origin={"fuse": sorted(modules) if modules else "all"},
        progress=progress,
    )


def write_resized(
    inventory: Inventory,
    sizes: Sizes,
    out: str | Path,
    *,
    origin: Mapping[str, Any],
    base: str | Path | Inventory | None = None,
    notes: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> RealignResult:
    """Write a checkpoint with new ``sizes`` by dim name; ``origin`` says who asked.

    A rank whose size is None is given up: its factors are multiplied out into one dense weight.
    """
    out = Path(out)
    refuse_existing(out)
    _refuse_inside(out, inventory)
    refuse_incomplete(inventory)
    changes = changes_of(inventory, sizes)
    reader = open_tensors(inventory)
    originals = None
    if base is not None:
        originals = Originals(open_tensors(_inventory(base)), inventory)
        changes = originals.inform(changes)
        origin = {**origin, **_told(originals.inventory)}
    fused = fused_modules(inventory, sizes)
    outputs = outputs_of(inventory, edits_of(inventory, changes), fused)
    files = weights_files(inventory, outputs)
    with workspace(out, _key(inventory, sizes, files, originals)) as folder:
        resolver = Resolver(reader, changes, folder / CUTS, originals)
        resumed = _write_weights(folder, files, reader, resolver, progress)
        result = RealignResult(
            source=inventory.path,
            out=str(out),
            layout=inventory.layout,
            container=files[0].kind,
            resized=tuple(_resized(change, resolver) for change in changes),
            fused=tuple(module.name for module in fused),
            parameters_before=inventory.parameters,
            parameters_after=parameters_after(inventory, outputs.values()),
            bytes_written=sum(file.nbytes for file in files),
            files=tuple(file.name for file in files),
            resumed=resumed,
            notes=(*notes, *notes_on(inventory, sizes)),
            not_finite=tuple(resolver.not_finite),
        )
        write_side_files(folder, inventory, sizes, files)
        write_provenance(folder, inventory, result, origin)
    return result


def _inventory(checkpoint: str | Path | Inventory) -> Inventory:
    return checkpoint if isinstance(checkpoint, Inventory) else scan(checkpoint)


def _refuse_inside(out: Path, inventory: Inventory) -> None:
    """A checkpoint that is a folder stays as it is: nothing is put into it."""
    source = Path(inventory.path).resolve()
    if source.is_dir() and out.resolve().is_relative_to(source):
        raise CheckpointError(f"{out} lies in the checkpoint {inventory.path}: name another")


def _write_weights(
    folder: Path,
    files: tuple[WeightsFile, ...],
    reader: TensorReader,
    resolver: Resolver,
    progress: Progress | None,
) -> tuple[str, ...]:
    """Write every weights file; returns the names of those that were already there."""
    total, done = sum(file.nbytes for file in files), 0
    require_space(folder, sum(f.nbytes for f in files if not (folder / f.name).exists()))

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(min(done, total), total)

    resumed = []
    for file in files:
        path = folder / file.name
        if file.kind == "torch":
            found = write_torch(path, file.edits, reader, resolver, advance)
        else:
            found = write_safetensors(path, file.edits, file.metadata, reader, resolver, advance)
        if found:
            resumed.append(file.name)
    return tuple(resumed)


def _resized(change: Change, resolver: Resolver) -> Resized:
    dim = change.dim
    loss, residual = resolver.loss(change), resolver.residual(change)
    return Resized(dim.name, dim.kind, dim.size, change.after, change.how, loss, residual)


def _told(base: Inventory) -> dict[str, Any]:
    return {"base": {"path": base.path, "fingerprint": base.fingerprint}}


def _key(
    inventory: Inventory,
    sizes: Sizes,
    files: tuple[WeightsFile, ...],
    originals: Originals | None,
) -> str:
    """What the output follows from: the files that are read, as they are now, and the sizes."""
    sources = {info.file for file in files for edit in file.edits for info in edit.sources}
    identity = _identity(inventory, sources)
    if originals is not None:
        base = originals.inventory
        identity += _identity(base, {info.file for info in base.tensors.values()})
    return _digest([gacprof.__version__, identity, sorted(sizes.items())])


def _identity(inventory: Inventory, files: Iterable[str]) -> list[Any]:
    stats = [(name, (Path(inventory.folder) / name).stat()) for name in sorted(files)]
    return [
        str(Path(inventory.folder).resolve()),
        inventory.fingerprint,
        [[name, s.st_size, s.st_mtime_ns] for name, s in stats],
    ]


def _digest(data: Any) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()

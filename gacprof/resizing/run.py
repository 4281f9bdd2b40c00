"""Changing a checkpoint's dims: from sizes to a new folder, streamed and all or nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import gacprof
from gacprof.checkpoint import Inventory, inventory_for, open_tensors
from gacprof.core import Progress
from gacprof.core.dtypes import of_merging
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.planning import Plan
from gacprof.planning.memory import footprint
from gacprof.resizing import sizes
from gacprof.resizing.changes import changes_of, merged_modules, new_tensors
from gacprof.resizing.in_memory import realign_model
from gacprof.resizing.output import (
    notes_on,
    refuse_incomplete,
    refuse_unusable,
    weights_files,
    write_provenance,
    write_side_files,
)
from gacprof.resizing.result import RealignResult
from gacprof.resizing.sizes import Request
from gacprof.resizing.values import BaseWeights, Resizer
from gacprof.resizing.workspace import CUTS, finish, lies_in, refuse_existing, workspace
from gacprof.resizing.writers import WeightsFile, write_weights

if TYPE_CHECKING:
    import torch


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
    inventory = inventory_for(checkpoint)
    return _write(inventory, sizes.requested(inventory, plan), out, base, progress)


def realign_by_strategy(
    checkpoint: str | Path | Inventory,
    strategy: sizes.Strategy,
    out: str | Path,
    *,
    base: str | Path | Inventory | None = None,
    progress: Progress | None = None,
) -> RealignResult:
    """Zero-pad every dim that zeros may pad to a multiple of 8 (``minimal``) or 16 (``optimal``).

    Dims that may not be padded stay as they are and are named in the result's notes. ``base`` is
    as in :func:`realign`.
    """
    inventory = inventory_for(checkpoint)
    return _write(inventory, sizes.by_strategy(inventory, strategy), out, base, progress)


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
    inventory = inventory_for(checkpoint)
    return _write(inventory, sizes.uniform(inventory, multiple), out, None, progress)


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
    inventory = inventory_for(checkpoint)
    return _write(inventory, sizes.merged(inventory, modules), out, None, progress)


def _write(
    inventory: Inventory,
    request: Request,
    out: str | Path,
    base: str | Path | Inventory | None,
    progress: Progress | None,
) -> RealignResult:
    out = Path(out)
    refuse_existing(out)
    if lies_in(out, inventory):
        raise CheckpointError(f"{out} lies in the checkpoint {inventory.path}: name another")
    refuse_incomplete(inventory)
    refuse_unusable(inventory)
    changes = changes_of(inventory, request.sizes)
    reader, originals = open_tensors(inventory), None
    origin = dict(request.origin)
    if base is not None:
        originals = BaseWeights(open_tensors(inventory_for(base)), inventory)
        changes = originals.inform(changes)
        dense = originals.inventory
        origin["base"] = {"path": dense.path, "fingerprint": dense.fingerprint}
    merged = merged_modules(inventory, request.sizes)
    files = weights_files(inventory, new_tensors(inventory, changes, merged))
    with workspace(out, _key(inventory, request, files, originals)) as folder:
        resizer = Resizer(reader, changes, folder / CUTS, originals, partial(finish, folder))
        resumed = write_weights(folder, files, resizer, progress)
        result = RealignResult(
            source=inventory.path,
            out=str(out),
            layout=inventory.layout,
            container=files[0].kind,
            resized=tuple(resizer.resized(change) for change in changes),
            fused=tuple(module.name for module in merged),
            parameters_before=inventory.parameters,
            parameters_after=footprint(inventory, request.sizes).parameters,
            bytes_written=sum(file.nbytes for file in files),
            files=tuple(file.name for file in files),
            resumed=resumed,
            notes=(*request.notes, *notes_on(inventory, request.sizes)),
            not_finite=tuple(resizer.not_finite),
            rounding=of_merging(module.dtype for module in merged),
        )
        write_side_files(folder, inventory, request.sizes, files, result.parameters_after)
        write_provenance(folder, inventory, result, origin)
    return result


def _key(
    inventory: Inventory,
    request: Request,
    files: Sequence[WeightsFile],
    base: BaseWeights | None,
) -> str:
    """What the output follows from: the files that are read, as they are now, and the sizes."""
    sources = {info.file for file in files for t in file.tensors for info in t.sources}
    identity = sizes.source_identity(inventory, sources)
    if base is not None:
        tensors = base.inventory.tensors.values()
        identity += sizes.source_identity(base.inventory, {info.file for info in tensors})
    return sizes.digest([gacprof.__version__, identity, sorted(request.sizes.items())])

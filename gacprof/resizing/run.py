"""Changing a checkpoint's dims: from what is asked to a new folder, streamed, all or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import gacprof
from gacprof.checkpoint import Inventory, mirrored_files
from gacprof.checkpoint.scanning import refuse_broken, tensors_of
from gacprof.core import Progress
from gacprof.core.dtypes import of_merging
from gacprof.core.errors import PlanError
from gacprof.core.request import verb
from gacprof.resizing.changes import new_checkpoint
from gacprof.resizing.in_memory import resize_model
from gacprof.resizing.output import index, notes_on, weights_files, write_others
from gacprof.resizing.request import RealignRequest, RealignResult
from gacprof.resizing.sizes import Requested, requested
from gacprof.resizing.values import Resizer
from gacprof.resizing.workspace import digest, refuse_target, source_identity, workspace
from gacprof.resizing.writers import write_weights

if TYPE_CHECKING:
    import torch


def _realign(request: RealignRequest) -> Any:
    """Give a checkpoint other sizes: those of a plan, or by a word.

    The checkpoint is a path or what :func:`gacprof.scan` made of it (with ``factors``, say): it
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
    checkpoint, out = request.checkpoint, request.out
    model = None if isinstance(checkpoint, str | Path | Inventory) else checkpoint
    if model is not None and out is not None:
        raise PlanError("a model in memory is returned, not written: save what you get")
    if model is None and (out is None or request.inplace):
        raise PlanError("a checkpoint is never changed in place: name a new folder as out (--out)")
    reader = tensors_of(checkpoint)
    if out is not None:
        refuse_broken(reader.inventory)
        refuse_target(Path(out), reader.inventory)
    asked = requested(reader.inventory, request.sizes)
    base = None if request.base is None else tensors_of(request.base)
    new = new_checkpoint(reader.inventory, asked.sizes, informed=base is not None)
    resizer = Resizer(reader, new, base)
    if model is not None:
        return resize_model(model, resizer, request.inplace)
    return _write(resizer, asked, Path(str(out)), request.progress)


if TYPE_CHECKING:

    @overload
    def realign(
        checkpoint: RealignRequest | str | Path | Inventory, *given: Any, **asked: Any
    ) -> RealignResult: ...
    @overload
    def realign(checkpoint: torch.nn.Module, *given: Any, **asked: Any) -> torch.nn.Module: ...
    def realign(checkpoint: Any, *given: Any, **asked: Any) -> Any: ...

else:
    realign = verb("realign", RealignRequest, _realign)


def _write(
    resizer: Resizer, asked: Requested, out: Path, progress: Progress | None
) -> RealignResult:
    new, base = resizer.new, resizer.originals
    inventory, origin = new.inventory, dict(asked.origin)
    files, configs = weights_files(inventory, new.tensors), mirrored_files(inventory, new.sizes)
    read = {info.file for tensor in new.tensors.values() for info in tensor.sources}
    identity = source_identity(inventory, read)
    if base is not None:
        dense = base.inventory
        identity += source_identity(dense, {info.file for info in dense.tensors.values()})
        origin["base"] = {"path": dense.path, "fingerprint": dense.fingerprint}
    key = digest([gacprof.__version__, identity, sorted(new.sizes.items())])
    with workspace(out, key) as folder:
        resizer.work_in(folder)
        resumed = write_weights(folder, files, resizer, progress)
        result = RealignResult(
            source=inventory.path,
            out=str(out),
            layout=inventory.layout,
            container=files[0].kind,
            resized=tuple(map(resizer.resized, new.changes)),
            fused=tuple(module.name for module in new.merged),
            parameters_before=inventory.parameters,
            parameters_after=new.parameters,
            bytes_written=sum(file.nbytes for file in files),
            files=tuple(file.name for file in files),
            resumed=resumed,
            notes=(*asked.notes, *notes_on(inventory, new.sizes, configs)),
            not_finite=tuple(resizer.not_finite),
            rounding=of_merging(module.dtype for module in new.merged),
        )
        configs |= index(inventory, files, new.parameters)
        write_others(folder, inventory, configs, result, origin)
    return result

"""The verb ``realign``: write a checkpoint with other sizes into a new folder; and the same
arithmetic on a model in memory."""

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from math import lcm
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gacprof.checkpoint.config import files_with_groups, mirrored_files
from gacprof.checkpoint.inventory import Inventory, NewSizes
from gacprof.checkpoint.layers import put, set_parameter
from gacprof.checkpoint.layouts.configs import untrue_keys, width_keys, with_widths
from gacprof.checkpoint.scan import inventory_of, scan
from gacprof.checkpoint.tensor_fit import factors_hint
from gacprof.checkpoint.tensors import read_tensor
from gacprof.checkpoint.writer import RECORD, OutputTensor, check_output, write_weights
from gacprof.core.errors import CheckpointError, PlanError
from gacprof.core.files import new_folder, write_json
from gacprof.lint.accounting import gaps_of
from gacprof.lint.deployment import deploy
from gacprof.lint.judge import OUTCOMES, overall
from gacprof.lint.multiples import engine_multiples
from gacprof.planning.plan import Plan, load_plan
from gacprof.realigning.changes import NewCheckpoint, new_checkpoint, split_groups
from gacprof.realigning.values import NewValues

Sizes = Plan | Path | str | NewSizes
"""A text is ``pad8`` or another multiple (8 and 16 are the repairs of "When Smaller Is Slower"),
``for:vllm:tp8``, ``uniform``, ``fuse``, ``groups64`` or the path of a plan."""
PADDED = re.compile(r"pad([1-9]\d{0,5})")
SERVED = re.compile(r"for:([^:]+)(?::tp(\d{1,5}))?(?::ep(\d{1,5}))?(?::(\w+))?")
GROUPS = re.compile(r"groups([1-9]\d{0,5})")
SCHEMA = "gacprof.realigned/2"


def realign(checkpoint: str | Path | Inventory, sizes: Sizes, out: str | Path) -> Path:
    """Write a copy of a model with the planned sizes.

    Padding with zeros leaves the model's function as it is, in real arithmetic; quantised weights
    are padded as they are stored. Merging rounds the products of factors once to the stored type.
    Cuts change the function. The original is never changed, and the copy appears whole or not at
    all.

    Parameters
    ----------
    checkpoint
        A model's folder or weights file, of any layout, or its inventory.
    sizes
        A plan or its file, or a word. "pad8", "pad16" …: pad every size to a multiple.
        "for:vllm:tp8" (or "for:vllm:tp8:ep8:h100"): pad to what an engine serves. "uniform": give
        all layers the largest width. "fuse": multiply factor pairs out. "groups64": split the
        groups of quantised weights that share a scale. In Python also sizes by dim name; None
        merges factors.
    out
        The folder of the copy, which must not exist.

    Returns
    -------
    Path
        The new folder.

    Raises
    ------
    PlanError
        The plan is another checkpoint's, or a size cannot be had.
    CheckpointError
        A dim may not change; the checkpoint is incomplete; the output would lie in it.
    FileExistsError
        ``out`` exists.

    Examples
    --------
    >>> model = "tests/fixtures/checkpoints/asvd_mha_r1"
    >>> aligned = gacprof.realign(model, "pad8", "aligned")
    >>> gacprof.scan(model).dims[0].size, gacprof.scan(aligned).dims[0].size
    (76, 80)
    """
    inventory = inventory_of(checkpoint)
    target = Path(out)
    check_output(inventory, target)
    if inventory.left_out:
        raise CheckpointError(
            f"{inventory.path}: its index leaves out {inventory.left_out[0]!r}, which its shards "
            "hold: mend the index or fetch the checkpoint again"
        )
    groups = GROUPS.fullmatch(word_of(sizes))
    if groups:
        new = split_groups(inventory, int(groups[1]))
    else:
        new = new_checkpoint(inventory, new_sizes(inventory, sizes))
    with new_folder(target) as folder:
        write_checkpoint(new, folder)
    return target


def realign_model(model: nn.Module, sizes: Sizes) -> nn.Module:
    """Give a model in memory other sizes, in place, and return it; copy it first to keep the old.

    ``sizes`` are those of :func:`gacprof.realign`, whose errors are raised before anything changes.
    Parameters that change are new objects: an optimiser needs them anew. The config, which has one
    width for all layers, changes as far as it can say the new sizes.

    Examples
    --------
    >>> model = gacprof.load_model("tests/fixtures/checkpoints/asvd_mha_r1")
    >>> model = gacprof.realign_model(model, "pad8")
    >>> model.model.layers[0].self_attn.v_proj.inner.weight.shape[0]  # 76 before
    80
    """
    inventory = inventory_of(model)
    if inventory.is_quantised:  # layers of quantised weights keep further sizes, which nobody read
        raise CheckpointError("quantised weights are resized in files: realign their folder")
    state = model.state_dict()
    new = new_checkpoint(inventory, new_sizes(inventory, sizes))
    values = NewValues(new, lambda name: state[name].detach())
    # All are computed before one is set: several may be made of one stored tensor
    changed = {
        tensor.name: values.tensor(tensor)
        for tensor in new.tensors
        if tensor.name not in state or new.edits.get(tensor.name)
    }
    for module in new.merged:
        factor = next(model.get_submodule(module.name).parameters())
        # its sizes do not matter: the parameters are set below
        linear = nn.Linear(1, 1, bias=f"{module.name}.bias" in changed, dtype=factor.dtype)
        linear.train(model.training).requires_grad_(factor.requires_grad)
        put(model, module.name, linear)
    for name, tensor in changed.items():
        set_parameter(model, name, tensor)
    layers = dict(model.named_modules())
    for module in inventory.modules:
        ranks = [new.sizes.get(rank.name) or rank.size for rank in inventory.ranks_of(module)]
        # gacprof's and PaLU's modules keep ranks, ASVD's truncation_rank; SVD-LLM has no module
        for attribute in ("truncation_rank", "ranks"):
            if ranks and hasattr(layers.get(module.name), attribute):
                setattr(layers[module.name], attribute, ranks if attribute == "ranks" else ranks[0])
    config: Any = getattr(model, "config", None)
    mirrored = mirrored_files(inventory, new.sizes).get("config.json", {})
    for key, value in mirrored.items():
        if value == inventory.config.get(key):
            continue
        part: Any = getattr(config, key, None)
        if hasattr(part, "to_dict"):  # the config of a multimodal model's text part
            part.update(value)
        else:
            setattr(config, key, value)
    return model


def word_of(sizes: Sizes) -> str:
    return str(sizes) if isinstance(sizes, str | Path) else ""


def new_sizes(inventory: Inventory, sizes: Sizes) -> NewSizes:
    """Return sizes by dim name, None for merged. Raises PlanError or CheckpointError."""
    if isinstance(sizes, Mapping):
        return sizes
    multiple = PADDED.fullmatch(word_of(sizes))
    if multiple:
        return padded_sizes(inventory, int(multiple[1]))
    for_engine = SERVED.fullmatch(word_of(sizes))
    if for_engine:
        engine, tp, ep, gpu = for_engine.groups()
        return served_sizes(inventory, engine, int(tp or 1), int(ep or 1), gpu or "any")
    if sizes == "uniform":
        return uniform_sizes(inventory)
    if sizes == "fuse":
        ranks = [dim.name for dim in inventory.dims if dim.kind == "rank"]
        if not ranks:
            raise CheckpointError(f"{inventory.path} has no factors to merge")
        return dict.fromkeys(ranks)
    if isinstance(sizes, str) and not Path(sizes).is_file():
        raise PlanError(
            f"there is no file '{sizes}': name a plan's file (gacprof plan … --out), or one of "
            "pad8, for:vllm:tp8, groups64, uniform, fuse"
        )
    plan = sizes if isinstance(sizes, Plan) else load_plan(Path(sizes))
    # In memory a model may have another dtype than its files, and so another fingerprint
    if inventory.container != "memory" and plan.fingerprint != inventory.fingerprint:
        raise PlanError(
            f"the plan was made of {plan.checkpoint} with other tensors than {inventory.path} has: "
            "plan again"
        )
    return plan.sizes


def next_multiple(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def padded_sizes(inventory: Inventory, multiple: int) -> NewSizes:
    """Return the next multiple for every dim that may be padded; dims that the config states as one
    number all change or none."""
    multiples = dict.fromkeys((dim.name for dim in inventory.dims), multiple)
    sizes = at_multiples(inventory, multiples)
    if all(dim.size == sizes.get(dim.name, dim.size) for dim in inventory.dims):
        reasons = [dim.why for dim in inventory.dims if dim.why]
        if not inventory.dims and inventory.is_quantised:
            reasons = ["how its quantised weights are stored is not known"]
        raise CheckpointError(
            f"{inventory.path}: 0 of {len(inventory.dims)} dims can be padded to a multiple of "
            f"{multiple}: {[*reasons, 'every dim that is known is one'][0]}"
            f"{'' if inventory.is_quantised else factors_hint(inventory)}"
        )
    return sizes


def at_multiples(inventory: Inventory, multiples: Mapping[str, int]) -> dict[str, int]:
    """Return for each dim that may be padded its next multiple; dims that the config states as one
    number change together."""
    sizes = {}
    for dim in inventory.dims:
        if dim.adjustable:
            multiple = lcm(multiples.get(dim.name, 1), dim.step)
            sizes[dim.name] = next_multiple(dim.size, multiple)
    for key in width_keys(inventory.config, inventory.dims):
        if key.is_true:  # else layers differ, and the config's number is not their width
            steps = [lcm(multiples.get(dim.name, 1), dim.step) for dim in key.dims]
            padded = key.padded(lcm(*steps))
            if not padded.keys() <= sizes.keys():
                padded = {dim.name: dim.size for dim in key.dims}
            sizes |= padded
    return sizes


def served_sizes(inventory: Inventory, engine: str, tp: int, ep: int, gpu: str) -> NewSizes:
    """Return the smallest widths that an engine serves as they are on ``tp`` ranks. Raises
    :class:`PlanError` where it serves the present ones, no padded ones, or nobody read it."""
    deployment = deploy(inventory.config, engine=engine, gpu=gpu, tp=tp, ep=ep)
    if deployment.storage.form == "unknown":
        name = deployment.storage.name
        raise PlanError(f"{inventory.path}: nobody read how {engine} serves its weights ({name})")
    if not all(key.is_true for key in width_keys(inventory.config, inventory.dims)):
        raise PlanError(
            f"{inventory.path}: no engine reads widths that the config does not say: make them "
            "one first (uniform)"
        )
    for gap in gaps_of(deployment, inventory):
        if gap.grade in ("refused", "wrong") or gap.kind in ("storage", "size"):
            raise PlanError(f"{inventory.path}: {engine} does not serve it: {gap.why}")
    required = engine_multiples(inventory, deployment)
    sizes = at_multiples(inventory, {name: need.multiple for name, need in required.items()})
    changed = {name for name, size in sizes.items() if size != inventory.dim(name).size}
    config = with_widths(inventory.config, inventory.dims, sizes)
    judgements = replace(deployment, config=config).judgements()
    worst = max(judgements, key=lambda judgement: OUTCOMES.index(judgement.outcome))
    outcome = overall(judgements)
    if outcome in ("refused", "wrong") or (outcome == "unknown" and not changed):
        says = [finding.says for finding in worst.findings if finding.row.outcome == outcome]
        fixed = [f". {dim.name} stays: {dim.why}" for dim in inventory.dims if dim.why]
        raise PlanError(
            f"{inventory.path}: padded widths are not enough for {engine}: {outcome}: "
            f"{worst.product.name}: {[*says, worst.note][0]}{''.join(fixed[:1])}"
        )
    if not changed:
        raise PlanError(f"{inventory.path}: {engine} needs no other widths on these ranks")
    return sizes


def uniform_sizes(inventory: Inventory) -> NewSizes:
    """Return for all widths of one kind the largest, rounded up: a config any server loads."""
    attentions = {(a.heads, a.kv_heads, a.head_dim) for a in inventory.attentions}
    widths = [dim for dim in inventory.dims if dim.kind == "width"]
    if len(widths) < len(inventory.dims) or len(attentions) > 1 or not widths:
        raise CheckpointError(
            f"{inventory.path}: no plain config describes factors (merge them: fuse), sliced "
            "hidden sizes, different heads, or no MLP widths at all; export it, or give a plan"
        )
    largest: dict[str, int] = {}
    for dim in widths:
        largest[dim.role] = max(largest.get(dim.role, 0), dim.size)
    multiple = lcm(8, *(dim.step for dim in widths))
    sizes = {dim.name: next_multiple(largest[dim.role], multiple) for dim in widths}
    for key in width_keys(inventory.config, widths):
        sizes |= key.padded(multiple)
    return sizes


def write_checkpoint(new: NewCheckpoint, folder: Path) -> None:
    """Write everything that belongs to the new checkpoint into an empty folder, and read it back.

    In its record ``resized`` are [old size, new size, method] by dim. Raises
    :class:`CheckpointError` where a tensor has another shape than the new sizes give it, or the
    config no longer says widths that it said.
    """
    inventory = new.inventory
    write_weights(folder, inventory, output_tensors(new))
    record: dict[str, Any] = {
        "schema": SCHEMA,
        "source": inventory.path,
        "fingerprint": inventory.fingerprint,
        "resized": {c.dim.name: (c.dim.size, c.size, c.method) for c in new.changes},
        "merged": [module.name for module in new.merged],
    }
    files = mirrored_files(inventory, new.sizes)
    if new.group_size:
        record["group_size"] = new.group_size
        files |= files_with_groups(inventory, new.group_size)
    files[RECORD] = record
    for name, content in files.items():
        write_json(folder / name, content)
    # Last, and without the configs just written: copies would undo their new sizes
    for name in sorted(set(inventory.side_files) - files.keys()):
        shutil.copy(Path(inventory.folder) / name, folder / name)
    # Patterns that no longer select factors, since they are merged, would be an error
    written = scan(folder, factors=None if new.merged else inventory.factors)
    wrong = untrue_keys(written.config, written.dims)
    # What the config stated wrongly before stays
    wrong -= untrue_keys(inventory.config, inventory.dims)
    may_change = {dim.name for dim in inventory.dims if not dim.why}
    wrong |= {dim.name for dim in written.dims if dim.why and dim.name in may_change}
    shapes = {name: info.shape for name, info in written.tensors.items()}
    expected = {tensor.name: new.shape(tensor) for tensor in new.tensors}
    wrong |= {name for name, _ in shapes.items() ^ expected.items()}
    if wrong:
        raise CheckpointError(f"{inventory.path}: {min(wrong)} does not fit the new sizes")


def output_tensors(
    new: NewCheckpoint, importance: Mapping[str, torch.Tensor] | None = None
) -> Iterator[OutputTensor]:
    """Yield the tensors of a new checkpoint, to be written; ``importance`` is for NewValues."""
    values = NewValues(new, partial(read_tensor, new.inventory), importance)
    for tensor in new.tensors:
        dtype = new.inventory.tensors[tensor.inner or tensor.parts[0]].dtype
        blocks = partial(values.blocks, tensor)
        yield OutputTensor(tensor.name, dtype, new.shape(tensor), tensor.parts[0], blocks)

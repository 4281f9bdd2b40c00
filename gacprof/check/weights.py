"""Same weights? The tensors of two checkpoints, compared entry by entry.

Three things leave a model's function as it is, whatever the model reads: equal values; zeros where
a dim has grown in all of its places (in quantised weights the codes of zero, and scales again, as
``Place.fill`` has it; or scales repeated for finer groups); and factors multiplied out, rounded
once. Files are mapped: no more than one layer is in memory at a time.
"""

from functools import partial

import torch

from gacprof.checkpoint.inventory import Inventory, Module
from gacprof.checkpoint.layers import parameter_names
from gacprof.checkpoint.load import weights_of
from gacprof.checkpoint.tensors import read_tensor
from gacprof.realigning.changes import Change, NewCheckpoint
from gacprof.realigning.values import NewValues, as_bytes


def compare_weights(inventory: Inventory, other: Inventory) -> tuple[int, int, list[str], set[str]]:
    """Compare all tensors of two checkpoints but those that a model makes for itself.

    Returns how many are equal; how many are equal but for zeros where dims are larger; the stored
    types of layers that are factored in one checkpoint and multiplied out in the other; and the
    names of all other tensors, of either one.
    """
    sides = padded(inventory, other), padded(other, inventory)
    stored = own_names(inventory), own_names(other)
    names = stored[0].keys() | stored[1].keys()
    others = {module.name: module for module in other.modules}
    merged = []
    for module in inventory.modules:
        # Either side may be the factored one
        forms = zip(sides, (module, others.get(module.name, module)), strict=True)
        dense, factored = sorted(forms, key=lambda form: len(form[1].gemms))
        if len(dense[1].gemms) == 1 < len(factored[1].gemms) and is_product(dense, factored):
            merged.append(dense[1].dtype)
            explained = {*dense[1].parameters, *factored[1].parameters}
            names = {x for x in names if explained.isdisjoint((stored[0].get(x), stored[1].get(x)))}
    in_both = names & stored[0].keys() & stored[1].keys()
    differing = names - in_both
    equal = 0
    for name in in_both:
        first, second = stored[0][name], stored[1][name]
        value, other_value = sides[0].changed(first), sides[1].changed(second)
        if value.dtype == other_value.dtype:
            value, other_value = as_bytes(value), as_bytes(other_value)
        else:
            # float64 holds the values of every narrower type exactly
            value, other_value = value.double(), other_value.double()
        if not torch.equal(value, other_value):
            differing.add(name)
        elif inventory.shape(first) == other.shape(second):
            equal += 1
    return equal, len(names) - len(differing) - equal, merged, differing


def own_names(inventory: Inventory) -> dict[str, str]:
    """Return the names of tensors by those of the parameters that load_model gives them."""
    names = parameter_names(inventory)
    return {names.get(name, name): name for name in weights_of(inventory)}


def padded(inventory: Inventory, other: Inventory) -> NewValues:
    """Return a checkpoint's tensors with larger dims and finer groups of another one."""
    sizes = {dim.name: dim.size for dim in other.dims if dim.adjustable}
    changes = [Change(dim, sizes.get(dim.name, 0)) for dim in inventory.dims]
    larger = tuple(change for change in changes if change.size > change.dim.size)
    first, second = inventory.groups, other.groups
    group = None
    if first and second and second.size < first.size and not first.refusal(second.size):
        group = second.size
    new = NewCheckpoint(inventory, {}, larger, (), (), group)
    return NewValues(new, partial(read_tensor, inventory))


def is_product(dense: tuple[NewValues, Module], factored: tuple[NewValues, Module]) -> bool:
    """Return whether a weight and its bias are factors multiplied out, rounded once to its type."""
    stored = torch.cat([dense[0].changed(name).flatten() for name in dense[1].parameters])
    inner, *others = [factored[0].changed(name).double() for name in factored[1].parameters]
    count = len(factored[1].gemms) - 1
    # Each outer factor reads its own part of what the inner one gives
    weight = torch.block_diag(*others[:count]) @ inner
    product = torch.cat([weight.flatten(), *others[count:]])
    if stored.shape != product.shape:
        return False
    # Sums in float64 have any order; both ends of what they may give are rounded
    terms = weight.shape[0] + inner.shape[0]
    margin = torch.finfo(torch.float64).eps * terms * product.abs().max()
    low, high = (product - margin).to(stored.dtype), (product + margin).to(stored.dtype)
    return bool(((low <= stored) & (stored <= high)).all())

"""New sizes for a model in memory: the arithmetic of files, on a module's own parameters."""

from typing import Any

from torch import nn

from gacprof.checkpoint.config import mirrored_files
from gacprof.checkpoint.layers import put, set_parameter
from gacprof.checkpoint.scan import inventory_of
from gacprof.core.errors import CheckpointError
from gacprof.realigning.changes import new_checkpoint
from gacprof.realigning.realign import Sizes, new_sizes
from gacprof.realigning.values import NewValues


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

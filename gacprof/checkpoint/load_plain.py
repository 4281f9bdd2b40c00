"""Plain checkpoints whose tensor names transformers translates on loading (experts, old names).

transformers 5 keeps a mixture's experts in one tensor and splits it on saving. Where nothing
in a checkpoint is compressed, its own loader knows best; it is held to the same rule: no weight
may stay random and none unused.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.load_skeleton import require_transformers
from gacprof.core.errors import CheckpointError


def is_plain(inventory: Inventory) -> bool:
    """Whether transformers' own loader may be asked: dense, uniform, safetensors in a folder."""
    return (
        inventory.container == "safetensors"
        and Path(inventory.path).is_dir()
        and all(module.kind in ("dense", "embedding") for module in inventory.modules)
        and all(dim.kind != "hidden" for dim in inventory.dims)
    )


def load_plain(inventory: Inventory, dtype: torch.dtype, misfit: CheckpointError) -> nn.Module:
    """The model by transformers' own loader. Raises ``misfit`` where that fits no better."""
    transformers = require_transformers()
    log = transformers.utils.logging
    verbosity = log.get_verbosity()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            inventory.path,
            torch_dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    except Exception:  # what a foreign checkpoint raises in transformers has no common type
        raise misfit from None
    finally:
        log.set_verbosity(verbosity)
        log.enable_progress_bar()
    if any(report[key] for key in ("missing_keys", "mismatched_keys", "unexpected_keys")):
        raise misfit
    found: nn.Module = model
    return found

"""A checkpoint without data: a safetensors header over a hole in the file, which takes no disk.

An engine's own loaders read it, and refuse what they would refuse of the real one. Tensors are
named as transformers names them, so of models whose experts transformers fuses there is none; of
formats there are the plain one and fp8 blocks (``weight_scale_inv``).
"""

from __future__ import annotations

import json
import struct
from math import ceil, prod
from pathlib import Path
from typing import Any

BYTES = {"BF16": 2, "F8_E4M3": 1, "F32": 4}


def write_hollow(folder: Path, config: dict[str, Any]) -> None:
    """Write ``model.safetensors`` beside a folder's config.json."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    tensors = {name: ("BF16", list(value.shape)) for name, value in model.state_dict().items()}
    block = config.get("quantization_config", {}).get("weight_block_size")
    for name, module in model.named_modules():
        if block and isinstance(module, torch.nn.Linear) and name != "lm_head":
            shape = list(module.weight.shape)
            scales = [ceil(size / step) for size, step in zip(shape, block, strict=True)]
            tensors[f"{name}.weight"] = ("F8_E4M3", shape)
            tensors[f"{name}.weight_scale_inv"] = ("F32", scales)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + BYTES[dtype] * prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)

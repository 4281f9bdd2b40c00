"""A file of results for each finished layer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from gacprof.core.files import replacing


class LayerResults:
    """Files of finished layers, in a folder for one ``request``: all that they depend on."""

    def __init__(self, work: Path, request: Mapping[str, Any]) -> None:
        digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        self.folder = work / digest[:16]
        self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, layer: int) -> Path:
        return self.folder / f"layer-{layer:05d}.safetensors"

    def has(self, layer: int, suffix: str) -> bool:
        """Tell whether a layer is finished, with results whose name has this ending."""
        if not self.path(layer).exists():
            return False
        with safe_open(self.path(layer), "pt") as file:
            names = list(file.keys())
        # no results at all: no token reached the layer, and none ever will
        return not names or any(name.endswith(suffix) for name in names)

    def save(self, layer: int, tensors: Mapping[str, torch.Tensor]) -> None:
        with replacing(self.path(layer)) as temporary:
            on_cpu = {name: value.cpu().contiguous() for name, value in tensors.items()}
            save_file(on_cpu, temporary)

    def load(self, layer: int) -> dict[str, torch.Tensor]:
        return load_file(self.path(layer))

    def read(self, layer: int, name: str) -> torch.Tensor:
        """Return one result of a finished layer."""
        with safe_open(self.path(layer), "pt") as file:
            result: torch.Tensor = file.get_tensor(name)
        return result

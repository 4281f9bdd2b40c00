"""A file of results for each finished layer."""

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from gacprof.core.files import replacing


class LayerResults:
    """Files of finished layers, in a folder for all that they depend on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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
            save_file({n: value.cpu().contiguous() for n, value in tensors.items()}, temporary)

    def load(self, layer: int) -> dict[str, torch.Tensor]:
        return load_file(self.path(layer))

    def read(self, layer: int, name: str) -> torch.Tensor:
        with safe_open(self.path(layer), "pt") as file:
            result: torch.Tensor = file.get_tensor(name)
        return result

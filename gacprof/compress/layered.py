"""The dense model in float32, with the weights of one decoder layer in memory at a time.

The model is transformers' own class, its parameters without memory. What stands before and after
the layers (embeddings, norm, head) is run with stand-ins for them, which record the arguments of
each, so that masks, positions, scalings and softcaps are the model's own, whatever its family.
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.names import layer_of, parent_of, tower_of
from gacprof.checkpoint.load import build_skeleton
from gacprof.checkpoint.tensors import read_tensor
from gacprof.core.errors import CheckpointError
from gacprof.core.files import replacing

Call = tuple[tuple[Any, ...], dict[str, Any]]  # the arguments of a layer behind its input
TOKENS_AT_ONCE = 4096  # windows are run in batches of about this many tokens


class StandIn:
    """A stand-in for a layer's work: keeps its last call, returns ``output`` or its input."""

    input: torch.Tensor
    call: Call
    output: torch.Tensor | None = None

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.input = hidden_states
        self.call = (args, kwargs)
        return hidden_states if self.output is None else self.output


class LayeredModel:
    """A checkpoint's model, run layer by layer; ``layers`` are the decoder layers' module names."""

    def __init__(self, inventory: Inventory, device: torch.device | str = "cpu") -> None:
        self.inventory = inventory
        self.device = torch.device(device)
        self.model: Any = build_skeleton(inventory, torch.float32)
        self.model.eval().requires_grad_(False)
        for module in self.model.modules():
            # the skeleton computes its buffers (RoPE's frequencies) on the CPU
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(self.device))
        self.layers = layer_names(inventory)
        self.calls: list[Call] = []
        paths = {id(module): name for name, module in self.model.named_modules()}
        self.embedding = f"{paths[id(self.model.get_input_embeddings())]}.weight"
        embedding = self.model.get_parameter(self.embedding)
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            if name not in inventory.tensors and parameter is not embedding:
                raise CheckpointError(
                    f"{inventory.path}: {type(self.model).__name__} has the parameter {name}, "
                    "which the file stores otherwise: such a model cannot be run layer by layer"
                )

    def layer(self, index: int) -> contextlib.AbstractContextManager[nn.Module]:
        """Yield a decoder layer, whose weights are in memory within the block."""
        return self._weights_of(self.layers[index])

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the first layer's input [windows, tokens, hidden] for ids [windows, tokens].

        Also records the arguments that the layers are called with.
        """
        base = self.model.base_model  # the head's logits would take more memory than a layer
        hidden = []
        with self.without_layers() as stand_ins, torch.no_grad():
            for batch in ids.split(batch_size(ids)):
                base(input_ids=batch.to(self.device), use_cache=False)
                hidden.append(stand_ins[0].input.float().cpu())
            # masks and positions of one window serve batches of any number of them
            base(input_ids=ids[:1].to(self.device), use_cache=False)
            self.calls = [stand_in.call for stand_in in stand_ins]
        return torch.cat(hidden)

    def run(self, index: int, layer: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        """Return a layer's output for ``hidden`` [batch, tokens, hidden], called as recorded."""
        args, kwargs = self.calls[index]
        output = layer(hidden, *args, **kwargs)
        if isinstance(output, tuple):
            output = output[0]
        if output.shape != hidden.shape:
            raise CheckpointError(
                f"{self.layers[index]} turns {list(hidden.shape)} into {list(output.shape)}: such "
                "a model cannot be compressed layer by layer"
            )
        return output

    @contextlib.contextmanager
    def without_layers(self) -> Iterator[list[StandIn]]:
        """Give the model stand-ins for its layers, and all other weights, within the block."""
        layers = [self.model.get_submodule(name) for name in self.layers]
        stand_ins = [StandIn() for _ in layers]
        try:
            for layer, stand_in in zip(layers, stand_ins, strict=True):
                layer.forward = stand_in.forward
            with self._weights_of("", but=tuple(f"{name}." for name in self.layers)):
                yield stand_ins
        finally:
            for layer in layers:
                del layer.forward

    @contextlib.contextmanager
    def _weights_of(self, module: str, but: tuple[str, ...] = ()) -> Iterator[nn.Module]:
        """Give a module's parameters their values within the block; not those named ``but``."""
        root = self.model.get_submodule(module)
        empty: list[tuple[nn.Module, str, nn.Parameter]] = []
        values: dict[str, nn.Parameter] = {}
        try:
            for name, parameter in list(root.named_parameters(remove_duplicate=False)):
                tensor = f"{module}.{name}".lstrip(".")
                if tensor.startswith(but):
                    continue
                if tensor not in self.inventory.tensors:  # a tied head
                    tensor = self.embedding
                if tensor not in values:
                    stored = read_tensor(self.inventory, tensor)
                    value = stored.to(self.device, torch.float32, copy=True)
                    if not value.isfinite().all():
                        path = self.inventory.path
                        raise CheckpointError(f"{path}: '{tensor}' holds NaN or infinity")
                    values[tensor] = nn.Parameter(value, requires_grad=False)
                path, _, attribute = name.rpartition(".")
                parent = root.get_submodule(path)
                empty.append((parent, attribute, parameter))
                setattr(parent, attribute, values[tensor])
            yield root
        finally:
            for parent, attribute, parameter in empty:
                setattr(parent, attribute, parameter)


def batch_size(ids: torch.Tensor) -> int:
    """Return the number of windows of ids [windows, tokens] that are run together."""
    return max(1, TOKENS_AT_ONCE // ids.shape[1])


def layer_names(inventory: Inventory) -> list[str]:
    """Return the module names of the decoder layers (``model.layers.0``), in order.

    Raises :class:`CheckpointError` where they are not recognised by their names.
    """
    names: dict[int, str] = {}
    for module in inventory.modules:
        path = module.name  # model.layers.0.mlp.up_proj: up to where no name above has a number
        while layer_of(parent_of(path)) is not None:
            path = parent_of(path)
        if module.layer is not None and not tower_of(path):
            names.setdefault(module.layer, path)
    if not names or sorted(names) != list(range(len(names))):
        raise CheckpointError(f"{inventory.path}: no decoder layers are recognised by their names")
    return [names[index] for index in sorted(names)]


class LayerResults:
    """Files of finished layers, in a folder for all that they depend on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, layer: int) -> Path:
        return self.folder / f"layer-{layer:05d}.safetensors"

    def has(self, layer: int, suffix: str) -> bool:
        """Return whether a layer is finished, with results whose name has this ending."""
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

    def cut(self, layer: int, name: str, shape: tuple[int, int]) -> list[torch.Tensor]:
        """Return one result cut to a shape, as the writer's only block."""
        with safe_open(self.path(layer), "pt") as file:
            return [file.get_slice(name)[: shape[0], : shape[1]]]

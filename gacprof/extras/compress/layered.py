"""The dense model with the weights of one decoder layer in memory at a time.

The model is transformers' own class, its parameters without memory. What stands before and after
the layers (embeddings, norm, head) is run with the layers replaced by stand-ins, so that masks,
position embeddings, scalings and softcaps are the model's own, whatever family it is of. The
stand-ins record with which arguments each layer is called; a layer is later called with the same.

All is computed in float32, in windows of one length without padding.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from gacprof.checkpoint.layouts.declared import in_tower
from gacprof.checkpoint.load import tied_parameters
from gacprof.checkpoint.scanning import TensorReader
from gacprof.checkpoint.skeleton import build_skeleton
from gacprof.core.errors import CompressionError

_LAYER = re.compile(r"(.*?(?:layers|h|blocks|block)\.)(\d{1,6})\.")

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a layer behind its input."""

TOKENS_AT_ONCE = 4096
"""Windows are run in batches of about so many tokens."""


class LayeredModel:
    """``layers`` are the decoder layers' names, in order."""

    def __init__(self, reader: TensorReader, device: torch.device | str = "cpu") -> None:
        self.reader, self.device = reader, torch.device(device)
        self.model, _ = build_skeleton(reader.inventory, torch.float32)
        self.model.eval().requires_grad_(False)
        for module in self.model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                if not buffer.is_meta:
                    setattr(module, name, buffer.to(self.device))
        self.layers = _layer_names(reader)
        self._check_places()
        self.calls: list[Call] = []

    @property
    def hidden_size(self) -> int:
        config: Any = self.model.config
        return int(config.get_text_config().hidden_size)

    @contextlib.contextmanager
    def holding(self, index: int) -> Iterator[nn.Module]:
        """Decoder layer ``index``, its weights in memory within the block."""
        name = self.layers[index]
        with self._filled(self.model.get_submodule(name), f"{name}."):
            yield self.model.get_submodule(name)

    def embed(self, ids: torch.Tensor) -> Iterator[torch.Tensor]:
        """What the first layer is given: [batch, tokens, hidden] for batches of ``ids``.

        With which arguments the layers are called is recorded before, from the first window.
        """
        base = getattr(self.model, "base_model", self.model)
        with self._outside(base), self._stand_ins() as places:
            for i, batch in enumerate((ids[:1], *ids.split(batch_of(ids.shape[1])))):
                with torch.no_grad():
                    base(input_ids=batch.to(self.device), use_cache=False)
                if places[-1].given.shape != places[0].given.shape:
                    raise CompressionError(
                        f"{type(self.model).__name__} of this transformers hands its layers on in "
                        "a way that is not known here (tuples, as until 2025): use a newer one"
                    )
                if i == 0:
                    self.calls = [place.call for place in places]
                else:
                    yield places[0].given

    def record(self, ids: torch.Tensor) -> None:
        """Only record how the layers are called for windows like these."""
        for _ in self.embed(ids[:1]):
            pass

    def run(self, index: int, layer: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        """What the layer makes of ``hidden`` [batch, tokens, hidden], called as :meth:`embed`
        recorded it."""
        return run_layer(layer, self.calls[index], hidden)

    @contextlib.contextmanager
    def head(self) -> Iterator[Any]:
        """A function from what the last layer gives, and its ids, to logits [batch, tokens, V]."""
        with self._outside(self.model), self._stand_ins() as places:

            def logits(hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
                places[-1].instead = hidden
                found = self.model(input_ids=ids.to(self.device), use_cache=False).logits
                places[-1].instead = None
                return torch.as_tensor(found)

            yield logits

    @contextlib.contextmanager
    def _outside(self, root: nn.Module) -> Iterator[None]:
        """All weights of ``root`` but the layers' in memory within the block."""
        prefix = "" if root is self.model else next(
            f"{name}." for name, module in self.model.named_modules() if module is root
        )  # fmt: skip
        with self._filled(root, prefix, without=tuple(f"{name}." for name in self.layers)):
            yield

    @contextlib.contextmanager
    def _filled(
        self, root: nn.Module, prefix: str, without: tuple[str, ...] = ()
    ) -> Iterator[None]:
        held: list[tuple[nn.Module, str, nn.Parameter]] = []
        loaded: dict[str, nn.Parameter] = {}
        try:
            for name, meta in list(root.named_parameters(remove_duplicate=False)):
                if (prefix + name).startswith(without or ("\0",)):
                    continue
                source = self._source(prefix + name)
                if source not in loaded:
                    loaded[source] = nn.Parameter(self._read(source), requires_grad=False)
                path, _, attribute = name.rpartition(".")
                parent = root.get_submodule(path)
                held.append((parent, attribute, meta))
                setattr(parent, attribute, loaded[source])
            yield
        finally:
            for parent, attribute, meta in held:
                setattr(parent, attribute, meta)

    def _read(self, tensor: str) -> torch.Tensor:
        stored = self.reader.torch(tensor)
        value = torch.empty(stored.shape, dtype=torch.float32, device=self.device).copy_(stored)
        if not torch.isfinite(value).all():
            raise CompressionError(
                f"{self.reader.inventory.path}: '{tensor}' holds NaN or infinity; mend the tensor"
            )
        return value

    def _source(self, parameter: str) -> str:
        """The stored tensor of a parameter; the head's may be the embedding's."""
        if parameter in self.reader:
            return parameter
        embeddings: Any = self.model.get_input_embeddings()  # type: ignore[operator]
        names = (n for n, m in self.model.named_modules() if m is embeddings)
        return f"{next(names)}.weight"

    def _check_places(self) -> None:
        """Raises :class:`CompressionError` for a parameter that no tensor of the file fills."""
        tied = tied_parameters(self.model)
        for name, _ in self.model.named_parameters():
            if name not in self.reader and name not in tied:
                where, kind = self.reader.inventory.path, type(self.model).__name__
                raise CompressionError(
                    f"{where}: {kind} keeps {name}, which the file stores otherwise (experts one "
                    "by one, say): such a model cannot be run layer by layer, nor loaded again"
                )

    @contextlib.contextmanager
    def _stand_ins(self) -> Iterator[list[_StandIn]]:
        """Every decoder layer replaced by one that hands on what it is given."""
        layers = {name: self.model.get_submodule(name) for name in self.layers}
        made = {name: _StandIn(layer) for name, layer in layers.items()}
        try:
            self._put(made)
            yield list(made.values())
        finally:
            self._put(layers)

    def _put(self, layers: Mapping[str, nn.Module]) -> None:
        for name, layer in layers.items():
            parent, _, key = name.rpartition(".")
            holder: Any = self.model.get_submodule(parent)
            holder[int(key)] = layer


class _StandIn(nn.Module):
    """In a layer's place: keeps the arguments of its last call and returns its input."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.__dict__["_layer"] = layer  # not a submodule: its weights are not here
        self.given: torch.Tensor = torch.empty(0)
        self.call: Call = ((), {})
        self.instead: torch.Tensor | None = None

    def forward(self, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.given, self.call = hidden_states, (args, kwargs)
        return hidden_states if self.instead is None else self.instead

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # what the model asks of its layers (attention_type, …)
            return getattr(self.__dict__["_layer"], name)


def run_layer(layer: nn.Module, call: Call, hidden: torch.Tensor) -> torch.Tensor:
    """What a layer makes of ``hidden`` [batch, tokens, hidden]."""
    args, kwargs = call
    out = layer(hidden, *args, **kwargs)
    return out[0] if isinstance(out, tuple) else out


def window_loss(logits: Any, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The mean loss of a window's tokens, by what the last layer gave [1, tokens, hidden] and its
    ids [1, tokens]; ``logits`` is the function of :meth:`LayeredModel.head`."""
    scores = logits(hidden, ids)[0, :-1].float()
    return nn.functional.cross_entropy(scores, ids[0, 1:].to(scores.device))


def refuse_infinite(losses: torch.Tensor) -> None:
    """Raise :class:`CompressionError` for a loss that is not finite."""
    if not torch.isfinite(losses).all():
        raise CompressionError(
            "the loss on the calibration text is not finite: the model overflows, or its weights "
            "hold NaN"
        )


def batch_of(length: int) -> int:
    """Windows of ``length`` tokens that are run together: some :data:`TOKENS_AT_ONCE` tokens."""
    return max(1, TOKENS_AT_ONCE // length)


def _layer_names(reader: TensorReader) -> list[str]:
    found: dict[int, str] = {}
    for module in reader.inventory.modules:
        match = _LAYER.match(module.name)
        if match and module.layer is not None and not in_tower(module.name):
            found.setdefault(module.layer, match[1] + match[2])
    if not found or sorted(found) != list(range(len(found))):
        raise CompressionError(
            f"{reader.inventory.path}: its decoder layers are not found by their names"
        )
    return [found[i] for i in range(len(found))]

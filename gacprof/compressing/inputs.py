"""What linear layers are given and give, gathered while a layer runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from gacprof.core.errors import CompressionError


@dataclass
class Seen:
    """Of a layer's inputs x over all tokens: Σ |xᵢ|, Σ xᵢ² and, where asked for, Σ x·xᵀ."""

    absolute: torch.Tensor
    squares: torch.Tensor
    moments: torch.Tensor | None
    tokens: int = 0

    def add(self, x: torch.Tensor) -> None:
        rows = x.reshape(-1, x.shape[-1])
        self.tokens += len(rows)
        self.absolute += rows.abs().sum(0).double()
        self.squares += rows.square().sum(0).double()
        if self.moments is not None:
            self.moments += (rows.T @ rows).double()

    def as_mapping(self, where: str) -> dict[str, torch.Tensor]:
        """``magnitude`` (mean |x|), ``moments``, ``norm`` (‖X‖_F).

        Raises :class:`CompressionError` for values that are not finite.
        """
        if not torch.isfinite(self.squares).all():
            raise CompressionError(
                f"the inputs of '{where}' are not finite on the calibration text: the model "
                "overflows, or its weights hold NaN"
            )
        found = {"magnitude": self.absolute / self.tokens, "norm": self.squares.sum().sqrt()}
        return found if self.moments is None else found | {"moments": self.moments}


@contextlib.contextmanager
def watching(modules: Mapping[str, nn.Module], moments: bool) -> Iterator[dict[str, Seen]]:
    """By name what each module was given within the block. Modules that are given the very same
    tensor (q, k and v) share one entry: it is counted once."""
    seen: dict[str, Seen] = {}
    last: list[tuple[torch.Tensor, Seen]] = []

    def hook(name: str) -> object:
        def before(module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            x = args[0]
            if last and last[0][0] is x and name not in seen:
                seen[name] = last[0][1]
            elif name not in seen:
                seen[name] = _nothing(x, moments)
            if not (last and last[0][0] is x and last[0][1] is seen[name]):
                seen[name].add(x)
                last[:] = [(x, seen[name])]

        return before

    handles = [m.register_forward_pre_hook(hook(n)) for n, m in modules.items()]  # type: ignore[arg-type]
    try:
        yield seen
    finally:
        last.clear()
        for handle in handles:
            handle.remove()


def _nothing(x: torch.Tensor, moments: bool) -> Seen:
    width = x.shape[-1]

    def zeros(*shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.float64, device=x.device)

    return Seen(zeros(width), zeros(width), zeros(width, width) if moments else None)

"""Where in memory models' tensors lie: moved while a model is timed, given back as they were."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import nn

from gacprof.evaluation.models import Model, tensors_of


@contextmanager
def as_found(models: Sequence[Model]) -> Iterator[int]:
    """What belongs to the caller is given back as it was: afterwards each model in memory is in its
    own mode again, and its tensors lie where they lay, with all that shares their memory. Yields
    how many bytes these are."""
    own = [model for model in models if isinstance(model, nn.Module)]
    modes = [(module, module.training) for model in own for module in model.modules()]
    tensors = {id(t): t for model in own for _, t in tensors_of(model) if _in_memory(t)}.values()
    places = [(tensor, tensor.data) for tensor in tensors]
    try:
        yield sum({place.data_ptr(): place.nbytes for _, place in places}.values())
    finally:
        for module, training in modes:
            module.training = training
        with torch.inference_mode(False):
            for tensor, place in places:
                if tensor.data_ptr() != place.data_ptr():
                    tensor.data = place


def _in_memory(tensor: torch.Tensor) -> bool:
    """Whether it is plain numbers in the CPU's memory, which may lie elsewhere. A tensor made in
    inference mode may not: PyTorch would no longer know it as such."""
    plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout == torch.strided
    return plain and tensor.device.type == "cpu" and not tensor.is_inference()


def movable(models: Sequence[nn.Module]) -> list[list[torch.Tensor]]:
    """The models' tensors in the CPU's memory, those that are one and the same (tied weights)
    together. Left out are views with gaps, partial overlaps and packed kinds of tensor."""
    found: dict[tuple[Any, ...], list[torch.Tensor]] = {}
    for tensor in {id(t): t for model in models for _, t in tensors_of(model)}.values():
        if _in_memory(tensor) and tensor.numel():
            held = tensor.data_ptr(), _reach(tensor), tensor.dtype, tensor.shape, tensor.stride()
            found.setdefault(held, []).append(tensor)
    ordered, end, kept = sorted(found, key=lambda held: held[:2]), 0, []
    for held, after in zip_longest(ordered, ordered[1:]):
        apart = end <= held[0] and (after is None or held[0] + held[1] <= after[0])
        end = max(end, held[0] + held[1])
        if apart and held[1] == found[held][0].nbytes:
            kept.append(found[held])
    return kept


def _reach(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first number to its last."""
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def move(tensors: Sequence[Sequence[torch.Tensor]], draw: np.random.Generator) -> None:
    """Copy tensors (:func:`movable`) to other memory, one after the other, in random order: the
    last ones are in the caches then.

    Where in memory weights lie decides which of them share a line of a cache, and so a model's
    speed: of equal models one may decode 2 % slower, for as long as its weights stay where they
    are (docs/realign.md).
    """
    with torch.inference_mode(False), torch.no_grad():
        for number in draw.permutation(len(tensors)):
            same = tensors[number]
            moved = same[0].detach().clone()
            for tensor in same:
                tensor.data = moved

"""What a layout is asked, and what it answers.

A layout knows what names and shapes *mean*. It never reads tensor data and never decides
anything by a folder's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gacprof.checkpoint.inventory import Attention, Dim, Inventory, Module, TensorInfo

Sizes = Mapping[str, int | None]
"""New sizes by dim name. A dim not named keeps its size; ``None`` means that the dim is gone
(its factors were multiplied out into one dense weight)."""


@dataclass(frozen=True)
class Contents:
    """A checkpoint before it has a meaning: tensors, config and side files as read.

    ``factors`` is the user's own pair of name patterns, if any (``generic.py``).
    """

    tensors: Mapping[str, TensorInfo]
    config: Mapping[str, Any] = field(default_factory=dict)
    side: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    factors: tuple[str, str] | None = None

    def shape(self, tensor: str) -> tuple[int, ...]:
        return self.tensors[tensor].shape


@dataclass(frozen=True)
class Findings:
    """What a layout makes of the contents."""

    modules: tuple[Module, ...]
    dims: tuple[Dim, ...]
    attentions: tuple[Attention, ...]
    notes: tuple[str, ...] = ()


class Layout(Protocol):
    """One way in which a tool lays a compressed model out."""

    name: str

    def recognise(self, contents: Contents) -> bool:
        """Whether the structure of names and shapes is this layout's."""
        ...

    def describe(self, contents: Contents) -> Findings:
        """Modules, adjustable dims and attentions. Raises :class:`CheckpointError`."""
        ...

    def mirror(self, inventory: Inventory, sizes: Sizes) -> dict[str, dict[str, Any]]:
        """The JSON files that change with ``sizes``, by file name, unknown keys kept."""
        ...

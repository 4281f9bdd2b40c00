"""What every container hands over, however it stores its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gacprof.checkpoint.inventory import TensorInfo


@dataclass(frozen=True)
class Stored:
    """A container's contents as its headers tell them; no tensor data was read.

    ``config`` is a pickled model's own config (empty where the container has none).
    ``attributes`` are the plain attributes (``class``, ``num_heads``, ``eps`` …) of a pickled
    model's modules by module name. ``left_out`` are the tensors of shards that the index does not
    name.
    """

    container: str
    tensors: Mapping[str, TensorInfo]
    config: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

"""Numbers of a config that say widths, so that both change together.

A number may say several widths: that of the experts, and that of the shared experts, which is a
multiple of it. A multimodal model's config says them in a part of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any

from gacprof.checkpoint.inventory import Dim, NewSizes
from gacprof.checkpoint.layouts.names import tower_of

_PARTS = {
    "": ("text_config", "llm_config", "language_config"),
    "vision": ("vision_config",),
    "audio": ("audio_config",),
}
"""Parts of multimodal configs by tower; for the text: transformers', InternVL's, DeepSeek-VL's."""

_MLP = (
    *("intermediate_size_mlp", "dense_intermediate_size", "intermediate_size", "ffn_dim"),
    *("n_inner", "ffn_hidden_size", "d_ff", "d_inner"),
)
_EXPERT = (
    *("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size"),
    "ffn_config.ffn_hidden_size",
)
_SHARED = (
    *("shared_expert_intermediate_size", "shared_intermediate_size"),
    "moe_shared_expert_intermediate_size",
)
_SHARED_COUNTS = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_KEYS: Mapping[str, tuple[str, ...]] = {
    "mlp": _MLP,
    "expert": _EXPERT,
    "experts": _EXPERT,
    "shared_expert": (*_SHARED, *_EXPERT),
    "tower": ("intermediate_size", "mlp_dim"),
    "decoder": ("decoder_ffn_dim", *_MLP),
    "encoder": ("encoder_ffn_dim", *_MLP),
}
"""Names of a width in transformers' configs, by what the MLP is; the more special first."""

_ADJUSTED = "block_auto_adjust_ff_dim"
"""LFM2's switch: the width is computed from the config's, rounded."""

Path = tuple[str, ...]


def count(config: Mapping[str, Any], *keys: str) -> int:
    """Return the first of these that the config has as a positive whole number, else 0."""
    values = (config.get(key) for key in keys)
    return next((value for value in values if type(value) is int and value > 0), 0)


def part_at(config: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return the part of a config at a path; empty where there is none."""
    part: Any = config
    for key in path:
        part = part.get(key) if isinstance(part, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def config_of_part(config: Mapping[str, Any], module: str = "") -> Mapping[str, Any]:
    """Return the part of a multimodal config that describes a module; all of a plain one."""
    return part_at(config, _path_of_tower(config, tower_of(module)))


def _path_of_tower(config: Mapping[str, Any], tower: str) -> Path:
    keys = [key for key in _PARTS[tower] if isinstance(config.get(key), Mapping)]
    return tuple(keys[:1])


@dataclass(frozen=True)
class WidthKey:
    """The number at ``path`` of a config, and the widths that follow: ``times`` it by dim name.

    ``value`` is what stands there; None where nothing does that could disagree.
    """

    path: Path
    value: int | None
    dims: tuple[Dim, ...]
    times: Mapping[str, Fraction]

    @property
    def name(self) -> str:
        return ".".join(self.path)

    def value_at(self, sizes: NewSizes) -> int | None:
        """The one number from which all widths follow; None where there is none."""
        new = {dim.name: sizes.get(dim.name) or dim.size for dim in self.dims}
        values = {Fraction(size) / self.times[name] for name, size in new.items()}
        value = values.pop()
        return int(value) if not values and value.denominator == 1 else None

    def padded(self, multiple: int) -> dict[str, int]:
        """The smallest sizes of all widths that are multiples and follow from one number."""
        value = max(ceil(dim.size / self.times[dim.name]) for dim in self.dims)
        while any((value * times) % multiple for times in self.times.values()):
            value += 1
        return {name: int(value * times) for name, times in self.times.items()}


def width_keys(config: Mapping[str, Any], dims: Iterable[Dim]) -> list[WidthKey]:
    """Return the numbers of a config that say widths of these dims."""
    keys: dict[Path, WidthKey] = {}
    for group in _by_kind(dims):
        path, factor = _place(config, group)
        if path:
            former = keys.get(path, WidthKey(path, _value(config, path), (), {}))
            times = {**former.times, **dict.fromkeys((dim.name for dim in group), factor)}
            keys[path] = replace(former, dims=(*former.dims, *group), times=times)
    return list(keys.values())


def widths_without_key(config: Mapping[str, Any], dims: Iterable[Dim]) -> set[str]:
    """Return the dims of one width for all layers that the config of a model cannot say.

    Bloom's follows from its hidden size; where layers differ the model is no plain one anyway.
    """
    names: set[str] = set()
    for group in _by_kind(dims) if config.get("model_type") else ():
        is_uniform = group[0].role == "tower" or len({dim.size for dim in group}) == 1
        if is_uniform and not _place(config, group)[0]:
            names |= {dim.name for dim in group}
    return names


def with_widths(config: Mapping[str, Any], dims: Iterable[Dim], sizes: NewSizes) -> dict[str, Any]:
    """Return the config with the numbers that follow from ``sizes``; a number from which not all of
    its widths follow stays as it is."""
    new = dict(config)
    for key in width_keys(config, dims):
        value = key.value_at(sizes)
        if value is not None and sizes.keys() & key.times.keys():
            new = _with(new, key.path, value)
            if _ADJUSTED in part_at(new, key.path[:-1]):
                new = _with(new, (*key.path[:-1], _ADJUSTED), False)
    return new


def _with(config: Mapping[str, Any], path: Path, value: Any) -> dict[str, Any]:
    if len(path) > 1:
        value = _with(config[path[0]], path[1:], value)
    return {**config, path[0]: value}


def _by_kind(dims: Iterable[Dim]) -> list[list[Dim]]:
    """Widths by the kind of their MLP, and the tower of the model that it belongs to."""
    groups: dict[tuple[str, str], list[Dim]] = {}
    for dim in dims:
        if dim.kind == "width":
            groups.setdefault((_kind_of(dim), tower_of(dim.name)), []).append(dim)
    return list(groups.values())


def _kind_of(dim: Dim) -> str:
    """A row of the keys: its role, or the side of an encoder and decoder."""
    side = re.search(r"\b(decoder|encoder)\.", dim.name)
    return side[1] if side and dim.role == "mlp" else dim.role


def _place(config: Mapping[str, Any], dims: list[Dim]) -> tuple[Path, Fraction]:
    """Path to the number that says these widths, () if none does, and their multiple of it.

    Of several numbers the one that is true counts, else the first. GPT-2's config may leave its
    ``n_inner`` out (4 · n_embd then).
    """
    kind, tower = _kind_of(dims[0]), tower_of(dims[0].name)
    above = _path_of_tower(config, tower)
    part = part_at(config, above)
    places: list[tuple[Path, Fraction]] = []
    for key in _KEYS[kind] if above or not tower else ():
        path = (*above, *key.split("."))
        if isinstance(part_at(config, path[:-1]).get(path[-1], ""), int | None):
            places.append((path, _times(part, kind, key)))
    if not places and kind == "mlp" and "n_embd" in part and part["model_type"] != "openai-gpt":
        places.append(((*above, "n_inner"), Fraction(1)))
    sizes = {dim.size for dim in dims}
    said = [(path, times) for path, times in places if _value(config, path)]
    true = [(path, times) for path, times in said if (_value(config, path) or 0) * times in sizes]
    return next(iter(true or said or places), ((), Fraction(1)))


def _times(part: Mapping[str, Any], kind: str, key: str) -> Fraction:
    """The multiple of the number under ``key`` that a width is."""
    if kind == "shared_expert" and key in _EXPERT:
        return Fraction(count(part, *_SHARED_COUNTS) or 1)
    is_halved = part.get("model_type") == "recurrent_gemma" and key == "intermediate_size"
    return Fraction(1, 2 if is_halved else 1)


def _value(config: Mapping[str, Any], path: Path) -> int | None:
    part = part_at(config, path[:-1])
    return None if part.get(_ADJUSTED) else count(part, path[-1]) or None

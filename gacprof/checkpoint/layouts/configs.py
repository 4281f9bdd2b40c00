"""Numbers of a config that say widths, so that both change together.

A number may say several widths: that of the experts, and that of the shared experts, which is a
multiple of it. A multimodal model's config says them in a part of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

from gacprof.checkpoint.inventory import Dim, NewSizes
from gacprof.checkpoint.layouts.names import in_tower

TEXT = ("text_config", "llm_config", "language_config")
"""Parts of multimodal configs for the text model: transformers', InternVL's, DeepSeek-VL's."""

_MLP = (
    "intermediate_size_mlp",
    "dense_intermediate_size",
    "intermediate_size",
    "ffn_dim",
    "n_inner",
    "ffn_hidden_size",
    "d_ff",
    "d_inner",
)
_EXPERT = (
    "moe_intermediate_size",
    "expert_ffn_hidden_size",
    "intermediate_size",
    "ffn_config.ffn_hidden_size",
)
_SHARED = (
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
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


def count(config: Mapping[str, Any], *keys: str) -> int | None:
    """Return the first of these that the config has as a positive whole number."""
    values = (config.get(key) for key in keys)
    return next((value for value in values if type(value) is int and value > 0), None)


def part_of(config: Mapping[str, Any], module: str = "") -> Path:
    """Return the key of the part that describes a module; () in a config of a plain model."""
    keys = TEXT
    if in_tower(module):
        keys = ("audio_config",) if "audio" in module else ("vision_config",)
    return next(((key,) for key in keys if isinstance(config.get(key), Mapping)), ())


def config_of_part(config: Mapping[str, Any], module: str = "") -> Mapping[str, Any]:
    """Return the part of a multimodal config that describes a module; all of a plain one."""
    return _part(config, part_of(config, module))


def _part(config: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    part: Any = config
    for key in path:
        part = part.get(key) if isinstance(part, Mapping) else None
    return part if isinstance(part, Mapping) else {}


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
        values = set()
        for dim in self.dims:
            size = sizes.get(dim.name, dim.size)
            values.add(Fraction(size or 0) / self.times[dim.name])
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
    dims_at: dict[Path, list[Dim]] = {}
    times: dict[str, Fraction] = {}
    for (kind, tower), group in _by_kind(dims).items():
        place = _place(config, kind, tower, group)
        if place is not None:
            path, factor = place
            dims_at.setdefault(path, []).extend(group)
            times |= {dim.name: factor for dim in group}
    return [
        WidthKey(path, _value(config, path), tuple(ds), {dim.name: times[dim.name] for dim in ds})
        for path, ds in dims_at.items()
    ]


def widths_without_key(config: Mapping[str, Any], dims: Iterable[Dim]) -> set[str]:
    """Return the dims of one width for all layers that the config of a model cannot say.

    Bloom's follows from its hidden size; where layers differ the model is no plain one anyway.
    """
    names: set[str] = set()
    for (kind, tower), group in _by_kind(dims).items():
        is_uniform = kind == "tower" or len({dim.size for dim in group}) == 1
        if is_uniform and _place(config, kind, tower, group) is None:
            names |= {dim.name for dim in group}
    return names if config.get("model_type") else set()


def with_widths(config: Mapping[str, Any], dims: Iterable[Dim], sizes: NewSizes) -> dict[str, Any]:
    """Return the config with the numbers that follow from ``sizes``; a number from which not all of
    its widths follow stays as it is."""
    new = dict(config)
    for key in width_keys(config, dims):
        value = key.value_at(sizes)
        if value is not None and sizes.keys() & key.times.keys():
            new = _with(new, key.path, value)
            if _part(new, key.path[:-1]).get(_ADJUSTED):
                new = _with(new, (*key.path[:-1], _ADJUSTED), False)
    return new


def _with(config: Mapping[str, Any], path: Path, value: Any) -> dict[str, Any]:
    if len(path) > 1:
        value = _with(config[path[0]], path[1:], value)
    return {**config, path[0]: value}


def _by_kind(dims: Iterable[Dim]) -> dict[tuple[str, str], list[Dim]]:
    """Widths by the kind of their MLP, and the tower that it belongs to (empty: the text model)."""
    groups: dict[tuple[str, str], list[Dim]] = {}
    for dim in dims:
        if dim.kind == "width":
            kind, tower = dim.role, ""
            if in_tower(dim.name):
                kind, tower = "tower", "audio" if "audio" in dim.name else "vision"
            elif kind == "mlp":
                sides = (side for side in ("decoder", "encoder") if f".{side}." in f".{dim.name}")
                kind = next(sides, kind)
            groups.setdefault((kind, tower), []).append(dim)
    return groups


def _place(
    config: Mapping[str, Any], kind: str, tower: str, dims: Iterable[Dim]
) -> tuple[Path, Fraction] | None:
    """Where the config says these widths, and how many times the number they are.

    Of several numbers the one that is true counts, else the first. GPT-2's config may leave its
    ``n_inner`` out (4 · n_embd then).
    """
    above = part_of(config, tower)
    if tower and not above:
        return None
    part = _part(config, above)
    places: list[tuple[Path, Fraction]] = []
    for key in _KEYS[kind]:
        path = (*above, *key.split("."))
        if isinstance(_part(config, path[:-1]).get(path[-1], ""), int | None):
            places.append((path, _times(part, kind, key)))
    if not places and kind == "mlp" and "n_embd" in part and part["model_type"] != "openai-gpt":
        return (*above, "n_inner"), Fraction(1)
    sizes = {dim.size for dim in dims}
    said = [(path, times) for path, times in places if _value(config, path) is not None]
    true = [(path, times) for path, times in said if (_value(config, path) or 0) * times in sizes]
    return next(iter(true or said or places), None)


def _times(part: Mapping[str, Any], kind: str, key: str) -> Fraction:
    """How many times the number under ``key`` a width is."""
    if kind == "shared_expert" and key in _EXPERT:
        return Fraction(count(part, *_SHARED_COUNTS) or 1)
    if part.get("model_type") == "recurrent_gemma" and key == "intermediate_size":
        return Fraction(1, 2)
    return Fraction(1)


def _value(config: Mapping[str, Any], path: Path) -> int | None:
    part = _part(config, path[:-1])
    return None if part.get(_ADJUSTED) else count(part, path[-1])

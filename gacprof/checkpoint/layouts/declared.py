"""Which number of a config says which widths, so that both change together.

One number may say several: the experts' width and that of the shared experts, which is a multiple
of it. A config of a multimodal model says them in a part of its own. Verified by a tiny model of
every type that transformers has (``tests/checkpoint/test_model_types.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

from gacprof.checkpoint.inventory import Dim, NewSizes
from gacprof.demands.configs import TEXT

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
"""Where configs of transformers write a width, by what the MLP is; the more special first."""

_HALVED = ("recurrent_gemma",)
"""Model types whose MLPs have half of the config's width."""
_ADJUSTED = "block_auto_adjust_ff_dim"
"""LFM2's switch: the width is computed from the config's, rounded."""


@dataclass(frozen=True)
class WidthKey:
    """A number of a config, and the widths that follow from it: each ``times`` the number.

    ``path`` leads to the number, ``value`` is what stands there, None where nothing does that could
    disagree. ``dims`` are the widths by ``times``.
    """

    path: tuple[str, ...]
    value: int | None
    dims: Mapping[Fraction, tuple[Dim, ...]]

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def kinds(self) -> str:
        """Of what MLPs these are the widths."""
        return " and ".join(sorted({dim.role for dims in self.dims.values() for dim in dims}))

    def widths(self, sizes: NewSizes) -> set[int]:
        """The widths once dims have ``sizes``."""
        return {size for _, size in self._sizes(sizes)}

    def value_with(self, sizes: NewSizes) -> int | None:
        """The one number from which all widths follow; None where there is none."""
        values = {size / times for times, size in self._sizes(sizes)}
        value = values.pop() if len(values) == 1 else None
        return int(value) if value is not None and value.denominator == 1 else None

    def padded(self, multiple: int) -> dict[str, int]:
        """The least sizes of all widths that are multiples and follow from one number."""
        value = max(ceil(size / times) for times, size in self._sizes({}))
        while any((value * times) % multiple for times in self.dims):
            value += 1
        return {d.name: int(value * times) for times, dims in self.dims.items() for d in dims}

    def _sizes(self, sizes: NewSizes) -> set[tuple[Fraction, int]]:
        found = (
            (times, sizes.get(dim.name, dim.size)) for times, dims in self.dims.items()
            for dim in dims
        )  # fmt: skip
        return {(times, size) for times, size in found if size is not None}


def width_keys(config: Mapping[str, Any], dims: Iterable[Dim]) -> list[WidthKey]:
    """The numbers of ``config`` that say widths of these ``dims``."""
    keys: dict[tuple[str, ...], dict[Fraction, list[Dim]]] = {}
    for (kind, tower), own in _alike(dims).items():
        found = _find(config, kind, tower, {dim.size for dim in own})
        if found is not None:
            path, times = found
            keys.setdefault(path, {}).setdefault(times, []).extend(own)
    return [
        WidthKey(path, _value(config, path), {times: tuple(own) for times, own in by.items()})
        for path, by in keys.items()
    ]


def without_key(config: Mapping[str, Any], dims: Iterable[Dim]) -> dict[str, str]:
    """The dims of one width for all layers that the config of a model cannot say, with the reason.

    Bloom's follows from its hidden size; where layers differ the model is no plain one anyway.
    """
    if not config.get("model_type"):
        return {}
    found: dict[str, str] = {}
    for (kind, tower), own in _alike(dims).items():
        uniform = len({dim.size for dim in own}) == 1 or kind == "tower"
        if uniform and _find(config, kind, tower, {own[0].size}) is None:
            why = f"the config of a {str(config['model_type'])[:40]} has no number for this width"
            found |= {dim.name: why for dim in own}
    return found


def with_widths(config: Mapping[str, Any], dims: Iterable[Dim], sizes: NewSizes) -> dict[str, Any]:
    """``config`` with the numbers that follow from ``sizes``; one from which not all its widths
    follow stays as it is."""
    new = dict(config)
    for key in width_keys(config, dims):
        value = key.value_with(sizes)
        if value is not None and any(d.name in sizes for own in key.dims.values() for d in own):
            new = _with(new, key.path, value)
            part = _part(new, key.path[:-1])
            if part.get(_ADJUSTED):
                new = _with(new, (*key.path[:-1], _ADJUSTED), False)
    return new


def _with(config: Mapping[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A copy of ``config`` with the entry at ``path``."""
    inner = _with(config[path[0]], path[1:], value) if len(path) > 1 else value
    return {**config, path[0]: inner}


def _alike(dims: Iterable[Dim]) -> dict[tuple[str, str], list[Dim]]:
    """Widths by kind and tower."""
    found: dict[tuple[str, str], list[Dim]] = {}
    for dim in dims:
        if dim.kind == "width":
            found.setdefault(_kind_of(dim.role, dim.name), []).append(dim)
    return found


def _kind_of(role: str, mlp: str) -> tuple[str, str]:
    """The kind of an MLP, and the tower that it belongs to (empty in the text model)."""
    if in_tower(mlp):
        return "tower", "audio" if "audio" in mlp else "vision"
    side = next((part for part in ("decoder", "encoder") if f".{part}." in f".{mlp}"), role)
    return side if role == "mlp" else role, ""


def _find(
    config: Mapping[str, Any], kind: str, tower: str, sizes: set[int]
) -> tuple[tuple[str, ...], Fraction] | None:
    """Path and factor of the number that says the widths ``sizes``: among several the one that is
    true, else the first.

    GPT-2's may leave its ``n_inner`` out (4 · n_embd then).
    """
    path = part_of(config, tower)
    if tower and not path:
        return None
    part = _part(config, path)
    found = []
    for key in _KEYS[kind]:
        at = (*path, *key.split("."))
        if type(_part(config, at[:-1]).get(at[-1], "")) in (int, type(None)):
            found += [(at, times) for times in _factors(part, kind, key)]
    if not found and kind == "mlp" and "n_embd" in part and part.get("model_type") != "openai-gpt":
        return (*path, "n_inner"), Fraction(1)
    said = [(at, times) for at, times in found if _value(config, at) is not None]
    true = (pair for pair in said if (_value(config, pair[0]) or 0) * pair[1] in sizes)
    return next(true, next(iter(said or found), None))


def _factors(part: Mapping[str, Any], kind: str, key: str) -> Iterator[Fraction]:
    """What a width may be of the number under ``key``."""
    if kind == "shared_expert" and key in _EXPERT:
        counts = (part.get(name) for name in _SHARED_COUNTS)
        yield Fraction(next((n for n in counts if type(n) is int and n > 0), 1))
    elif part.get("model_type") in _HALVED and key == "intermediate_size":
        yield Fraction(1, 2)
    else:
        yield Fraction(1)


def _value(config: Mapping[str, Any], path: tuple[str, ...]) -> int | None:
    part = _part(config, path[:-1])
    value = part.get(path[-1])
    return value if type(value) is int and not part.get(_ADJUSTED) else None


def _part(config: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """The part of a config to which ``path`` leads; empty where it leads nowhere."""
    part: Any = config
    for name in path:
        part = part.get(name) if isinstance(part, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def in_tower(module: str) -> bool:
    """Whether ``module`` belongs to the vision or audio part of a multimodal model."""
    return "vision" in module or "visual" in module or "image" in module or "audio" in module


def part_of(config: Mapping[str, Any], name: str = "") -> tuple[str, ...]:
    """The key of the part of a multimodal config that describes the module ``name``; () of a plain
    one."""
    tower = "audio_config" if "audio" in name else "vision_config"
    keys = (tower,) if in_tower(name) else TEXT
    return next(((key,) for key in keys if isinstance(config.get(key), Mapping)), ())


def config_of_part(config: Mapping[str, Any], name: str = "") -> Mapping[str, Any]:
    """The part of a multimodal config that describes the module ``name``; all of a plain one."""
    inner = [config[key] for key in part_of(config, name)]
    return inner[0] if inner else config


def count(config: Mapping[str, Any], *keys: str) -> int | None:
    """The first of these that the config has as a positive whole number."""
    values = (config.get(key) for key in keys)
    return next((value for value in values if type(value) is int and value > 0), None)

"""The numbers of a config that state widths, so that both change together.

A number may state several widths: that of experts, and that of shared experts, a multiple of it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, lcm
from typing import Any

from gacprof.checkpoint.inventory import AttentionHeads, Dim, NewSizes
from gacprof.checkpoint.layouts.names import WORDS, tower_of
from gacprof.core.errors import ConfigError

_WIDTHS = WORDS["widths"]
_OTHERWISE = {"shared_expert": "expert", "decoder": "mlp", "encoder": "mlp"}
"""Whose names say a width as well, after those of its own."""
_ADJUSTED = "block_auto_adjust_ff_dim"  # LFM2's switch: the width follows from the config's
_DOUBLED = "use_double_wide_mlp"  # Gemma 4's: twice as wide where layers share others' keys
WIDTH_MULTIPLE = 256  # what two thirds of a width are rounded to where a config is silent
MAX_SIZE = 1 << 31
Path = tuple[str, ...]


def count(config: Mapping[str, Any], *keys: str) -> int:
    """Return the first of ``keys`` that the config has as a positive whole number, else 0."""
    values = (config.get(key) for key in keys)
    return next((value for value in values if type(value) is int and value > 0), 0)


def quotient(whole: int, parts: int) -> int:
    """Return the size of equal parts (of one where their number is unknown); 0 for unequal ones."""
    return 0 if whole % max(parts, 1) else whole // max(parts, 1)


def stated_size(values: Mapping[str, Any], fields: Sequence[str]) -> int:
    """Return the size under the first of these fields that has one; 0 where none has."""
    numbers = [whole_number(values.get(field), field) for field in fields]
    return next(filter(None, numbers), 0)


def whole_number(value: Any, field: str) -> int:
    """Return a field's value as a size, 0 where it has none; a list of equal ones counts as one."""
    if isinstance(value, list) and value and field != "intermediate_size":
        if len(set(map(str, value))) > 1:
            raise ConfigError(
                f"the config's {field} differs from layer to layer: 'gacprof diagnose FOLDER' "
                "judges the sizes of its weights"
            )
        value = value[0]
    if value is None or isinstance(value, list) or value == "auto":
        return 0
    if type(value) is not int or not 0 <= value <= MAX_SIZE:
        raise ConfigError(f"the config's {field} is {str(value)[:40]!r}: it must be a size")
    return value


def auto_adjusted(config: Mapping[str, Any], width: int) -> int:
    """Return the width that LFM2 builds from the config's: two thirds of it, rounded up."""
    if not config.get(_ADJUSTED):
        return width
    times = config.get("block_ffn_dim_multiplier") or 1
    multiple = config.get("block_multiple_of") or WIDTH_MULTIPLE
    if not isinstance(times, int | float) or not isinstance(multiple, int) or multiple < 1:
        raise ConfigError(f"block_multiple_of {multiple!r} and {times!r} are no numbers")
    return two_thirds(width, times, multiple)


def two_thirds(width: float, times: float = 1, multiple: int = WIDTH_MULTIPLE) -> int:
    """Return two thirds of a width, as many times, rounded up to a multiple (LFM2, Nemotron-NAS):
    three matrices then have the parameters of two of the whole width."""
    return -(-int(int(2 * width / 3) * times) // multiple) * multiple


def leaves(value: Any, path: Path = ()) -> dict[Path, Any]:
    """Return what is no table or list in a JSON value, by keys and indices."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        return {path: value}
    inner: dict[Path, Any] = {}
    for key, item in value.items():
        inner |= leaves(item, (*path, str(key)))
    return inner


def part_of(config: Mapping[str, Any], tower: str = "") -> tuple[Path, Mapping[str, Any]]:
    """Return the path and the part of a multimodal config about a tower; all of a plain config."""
    for key in WORDS["parts"][tower or "text"]:
        if isinstance(config.get(key), Mapping):
            return (key,), config[key]
    return (), config


def odd_heads(
    config: Mapping[str, Any], attentions: Iterable[AttentionHeads]
) -> list[AttentionHeads]:
    """Return the attentions with other heads than by default: hidden size over heads each."""
    heads = count(config, "num_attention_heads")
    if not heads or re.search("head_(dim|size)", " ".join(config)):
        return []
    derived = (heads, count(config, "hidden_size") // heads)
    return [a for a in attentions if (a.heads, a.head_dim) != derived]


@dataclass(frozen=True)
class WidthKey:
    """A number of a config at ``path`` (and at ``twins``), None where nothing could disagree, and
    the widths that follow from it: ``times`` it by dim name."""

    path: Path
    value: int | None
    dims: tuple[Dim, ...]
    times: Mapping[str, Fraction]
    twins: tuple[Path, ...] = ()

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def must_be_true(self) -> bool:
        """Whether nothing builds a model of other widths: of all but a decoder's dense MLPs."""
        is_encoder = any("encoder." in dim.name for dim in self.dims)
        return is_encoder or {dim.role for dim in self.dims} != {"mlp"}

    @property
    def is_true(self) -> bool:
        """Whether the number that stands there says the size of all of its dims."""
        width = self.value_at({})
        return width is not None and self.value in (None, width)

    def trust(self) -> tuple[bool, bool]:
        """Return what speaks for the number: that it says one of the widths, that it is stated."""
        sizes = {(dim.size, self.times[dim.name]) for dim in self.dims}
        return self.value in {size / times for size, times in sizes}, self.value is not None

    def value_at(self, sizes: NewSizes) -> int | None:
        """Return the one number from which all widths follow; None where there is none."""
        new = {(sizes.get(dim.name) or dim.size, self.times[dim.name]) for dim in self.dims}
        values = {Fraction(size) / times for size, times in new}
        value = values.pop()
        return int(value) if not values and value.denominator == 1 else None

    def padded(self, multiple: int) -> dict[str, int]:
        """Return the smallest sizes of all widths that are multiples and follow from one number."""
        value = max(ceil(dim.size / self.times[dim.name]) for dim in self.dims)
        steps = [(multiple / times).numerator for times in self.times.values()]
        value = ceil(value / lcm(*steps)) * lcm(*steps)
        return {name: int(value * times) for name, times in self.times.items()}


def width_keys(config: Mapping[str, Any], dims: Iterable[Dim]) -> list[WidthKey]:
    """Return the numbers of a config that say widths of these dims: true ones, else the first."""
    groups: dict[tuple[str, str], list[Dim]] = {}
    for dim in dims:
        if dim.kind == "width":
            side = re.search(r"\b(decoder|encoder)\.", dim.name)
            kind = side[1] if side and dim.role == "mlp" else dim.role
            groups.setdefault((kind, tower_of(dim.name)), []).append(dim)
    numbers = leaves(config)
    if "n_embd" in config and config.get("model_type") != "openai-gpt":
        numbers.setdefault(("n_inner",), None)  # GPT-2's config may leave it out: 4 · n_embd
    keys: dict[Path, WidthKey] = {}
    for (kind, tower), widths in groups.items():
        candidates = list(_candidates(config, numbers, kind, tower, widths))
        if not candidates:
            continue
        # Of equals max takes the first, which is the more special name
        key = max(candidates, key=WidthKey.trust)
        twins = tuple(c.path for c in candidates if key.value == c.value)
        former = keys.get(key.path, replace(key, dims=(), twins=twins))
        times = {**former.times, **key.times}
        keys[key.path] = replace(former, dims=(*former.dims, *key.dims), times=times)
    return list(keys.values())


def untrue_keys(config: Mapping[str, Any], dims: Iterable[Dim]) -> set[str]:
    """Return the names of numbers that do not say the widths of these dims and must."""
    keys = width_keys(config, dims)
    return {key.name for key in keys if key.must_be_true and not key.is_true}


def _candidates(
    config: Mapping[str, Any],
    numbers: Mapping[Path, Any],
    kind: str,
    tower: str,
    widths: Sequence[Dim],
) -> Iterator[WidthKey]:
    """Return the ``numbers`` of a config that could say widths of this kind."""
    above, part = part_of(config, tower)
    if tower and not above:
        return
    special = _WIDTHS["expert" if kind == "experts" else kind]
    for name in (*special, *_WIDTHS.get(_OTHERWISE.get(kind, ""), ())):
        path = (*above, *name.split("."))
        if isinstance(numbers.get(path, ""), int | None):
            value = None if part.get(_ADJUSTED) else numbers[path] or None
            sizes = {dim.size for dim in widths}
            multiples = {size: _multiple(part, kind, name, size, value) for size in sizes}
            times = {dim.name: multiples[dim.size] for dim in widths}
            yield WidthKey(path, value, tuple(widths), times)


def _multiple(
    part: Mapping[str, Any], kind: str, name: str, size: int, value: int | None
) -> Fraction:
    """Return how many times the ``value`` called ``name`` a width of this kind and size is."""
    if kind == "shared_expert" and name in _WIDTHS["expert"]:
        return Fraction(count(part, *WORDS["counts"]["shared_experts"]) or 1)
    if part.get("model_type") == "recurrent_gemma":
        return Fraction(1, 2)
    is_doubled = bool(part.get(_DOUBLED)) and size == 2 * (value or 0)
    return Fraction(2 if is_doubled else 1)


def with_widths(config: Mapping[str, Any], dims: Iterable[Dim], sizes: NewSizes) -> dict[str, Any]:
    """Return the config with those numbers from which all of their new widths follow."""
    new = dict(config)
    keys = width_keys(config, dims)
    own_paths = {key.path for key in keys}
    for key in keys:
        value = key.value_at(sizes)
        # Unless asked a number stays, though it be untrue
        if value is not None and sizes.keys() & key.times.keys():
            for path in {key.path, *key.twins} - (own_paths - {key.path}):
                new = _with(new, path, value)
    return new


def _with(config: Mapping[str, Any], path: Path, value: int) -> dict[str, Any]:
    """Return the config with a number at a path, and LFM2's switch beside it off."""
    key, *rest = path
    if rest:
        return {**config, key: _with(config[key], tuple(rest), value)}
    switch = {_ADJUSTED: False} if _ADJUSTED in config else {}
    return {**config, key: value, **switch}

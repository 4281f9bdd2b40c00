"""Where the sides of a quantised weight are written: the rows of ``quantised.toml``, checked
against the tensors of a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from pathlib import Path
from typing import Literal

from gacprof.checkpoint.inventory import MAX_SIZE, Contents, Fill, Place
from gacprof.checkpoint.storage import TABLES, Storage, storage_of_config
from gacprof.core.errors import ConfigError
from gacprof.core.files import shipped_table

Side = Literal["N", "K"]
Row = tuple[int, str, int | str]  # axis, what one entry is for, what a new entry holds
ROWS = shipped_table(
    Path(__file__).parents[1] / "quantised.toml", dict[str, dict[str, dict[Side, Row]]]
)
LIKE = {
    "fp8_tensor": "fp8_channel",
    "int8_w8a8": "fp8_channel",
    "w4afp8": "int4",
    "int8_w8a16": "gptq",
    "ct int8_w8a16": "int4",
}
"""Formats that are stored as another one is; ``ct`` stands for compressed-tensors."""
INTEGERS = ("awq", "gptq", "int4", "int8_w8a16", "w4afp8")  # whose groups have any length
WORD = 32  # bits


@dataclass(frozen=True)
class StoredSides:
    """The places of a weight's outputs (``N``) and inputs (``K``), of which a new size is a
    multiple of ``step``; ``why`` no size may change."""

    N: tuple[Place, ...] = ()
    K: tuple[Place, ...] = ()
    step: int = 1
    why: str = ""


@dataclass(frozen=True)
class Format:
    """How a checkpoint's quantised weights are stored: its ``rows``, the ``bits`` of a weight, and
    the lengths that share a scale (-1: a whole row of inputs)."""

    rows: Mapping[str, Mapping[Side, Row]]
    bits: int
    group: int
    block: int
    zero_point: int
    is_symmetric: bool
    why: str = ""

    def unit(self, per: str) -> Fraction:
        """Return how many entries a unit of a side has."""
        lengths = {"1": 1, "byte": 2, "group": self.group, "block": self.block}
        if per == "word":
            return Fraction(self.bits, WORD)
        return Fraction(1, lengths[per])

    def fill(self, word: int | str) -> Fill:
        """Return what a new entry holds; codes fill a word."""
        if word == "zero":
            return packed_word(1 << self.bits - 1, self.bits)
        if word == "point":
            return packed_word(self.zero_point, self.bits)
        return word  # type: ignore[return-value]


def packed_word(code: int, bits: int) -> int:
    """Return a word of equal codes, as the signed integer that files hold."""
    word = sum(code << shift for shift in range(0, WORD, bits))
    return word - (1 << WORD) if word >> WORD - 1 else word


def format_of(contents: Contents) -> Format:
    """Return the format that a checkpoint's config states; ``why`` it cannot be resized, if so."""
    try:
        storage = storage_of_config(contents.config)
    except ConfigError as error:
        return Format({}, 4, -1, 1, 0, False, str(error))
    form = storage.form
    row = LIKE.get(f"{storage.tool} {form}".strip(), LIKE.get(form, form))
    if storage.tool != "ct" and form == "mxfp4":
        row = "mxfp4_stacked"
    why = ""
    if row not in ROWS:
        why = f"its weights are quantised, and the config's format ({storage.name}) is not known"
        if form == "none":
            why = "its weights are quantised, and the config names no format"
    bits, _, group = TABLES["bits"][form] if row in ROWS else (4, 0, 0)
    stated = contents.config.get("quantization_config") or {}
    versions = f"{stated.get('checkpoint_format')} {stated.get('packing_format')}"
    is_first_version = row == "gptq" and "v2" not in versions
    return Format(
        ROWS.get(row, {}),
        bits,
        storage.group if form in INTEGERS else group,
        storage.block,
        (1 << bits - 1) - is_first_version,
        storage.symmetric and form != "awq",
        why,
    )


def stored_sides(
    contents: Contents, form: Format, module: str, lengths: Mapping[Side, int], sign: str = "."
) -> StoredSides:
    """Return the places of a module's sides of these ``lengths``.

    Every tensor that begins with the module's name and the ``sign`` has to be a row's, and as long
    as the row says.
    """
    if form.why:
        return StoredSides(why=form.why)
    names = contents.below(module)
    if sign != ".":
        names = [f"{module}{sign}{ending}" for ending in form.rows]
        names = [name for name in names if name in contents.tensors]
    places: dict[Side, list[Place]] = {"N": [], "K": []}
    steps = [1]
    for name in names:
        row = form.rows.get(name.removeprefix(f"{module}{sign}"))
        if row is None:
            return StoredSides(why=f"{name} stands beside its weight, and its format has no such")
        for side, (axis, per, word) in row.items():
            place = _place(contents, form, name, side, (axis, per, word))
            if place is None:
                continue
            if contents.shape(name)[axis : axis + 1] != (place.entries(lengths[side]),):
                if place.fill != "size":
                    shape = list(contents.shape(name))
                    return StoredSides(why=f"{name} is {shape}, and by its format it is not")
            if per != "block":
                steps.append(place.unit.denominator)
            if per in ("word", "byte") and lengths[side] % place.unit.denominator:
                return StoredSides(why=f"the last {per} of {name} is not whole")
            places[side].append(place)
    is_short = form.group < 0 or lengths["K"] % form.group
    has_points = any(name.endswith(("qzeros", "zero_point")) for name in names)
    if is_short and has_points and not form.is_symmetric:
        return StoredSides(why="its last group of inputs is short and has a zero point of its own")
    return StoredSides(tuple(places["N"]), tuple(places["K"]), lcm(*steps))


def _place(contents: Contents, form: Format, name: str, side: Side, row: Row) -> Place | None:
    """A row's place in a tensor; None where it has one entry for all, or one for each whole row."""
    axis, per, word = row
    if per == "group" and form.group < 0:
        return None
    if word == "last" and per == "1" and contents.tensors[name].numel == 1:
        return None
    if word == "size":
        return Place(name, 0, "NK".index(side), fill="size")
    if word == "group":
        return Place(name, axis, fill="group", group=form.group if form.group > 0 else MAX_SIZE)
    return Place(name, axis, unit=form.unit(per), fill=form.fill(word))

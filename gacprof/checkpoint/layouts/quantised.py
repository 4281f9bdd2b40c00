"""Where the sides of a quantised weight are written: rows of ``quantised.toml`` that were compared
with the tensors of a module."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from pathlib import Path
from typing import Any, Literal

from gacprof.checkpoint.inventory import MAX_SIZE, Contents, Place, TensorInfo
from gacprof.checkpoint.storage import (
    TABLES,
    stated_quantisation,
    stated_quantisations,
    storage_of_config,
)
from gacprof.core.errors import ConfigError
from gacprof.core.files import shipped_table

Side = Literal["N", "K"]
Per = Literal["1", "byte", "word", "group", "block"]
Row = tuple[int, Per, int | Literal["zero", "point", "last", "group", "size"]]
"""The axis, what one entry is for, and what a new entry holds."""
Rows = Mapping[str, Mapping[Side, Row]]
TABLE = Path(__file__).parents[1] / "quantised.toml"
ROWS = shipped_table(TABLE, dict[str, Rows])
ANY_GROUP = ("awq", "gptq", "int4", "int8_w8a16", "w4afp8")
"""Formats whose groups have the length that the config says; of others it is fixed."""
POINTS = ("qzeros", "weight_zero_point")
STATED_TWICE = {"quant_method", "bits", "group_size", "sym", "desc_act", "checkpoint_format"}
"""What a file beside a config, or its text part, may say again."""
WORD = 32  # bits


@dataclass(frozen=True)
class StoredSides:
    """The places of a weight's outputs (``N``) and inputs (``K``). New sizes of them have to be
    multiples of ``step``; ``why`` says why there can be none. ``groups`` are those places whose
    entries are groups of inputs, or number them."""

    N: tuple[Place, ...] = ()
    K: tuple[Place, ...] = ()
    step: int = 1
    why: str = ""
    groups: tuple[Place, ...] = ()


@dataclass(frozen=True)
class StoredFormat:
    """How a checkpoint's quantised weights are stored, by its config.

    ``rows`` are those of the format, ``bits`` those of a weight. ``group`` inputs share a scale
    (-1: all of an output's), a square of ``block`` both ways. A stored ``point`` stands for the
    middle of the codes; where they are ``symmetric`` there is no other one. Of ``any_group`` the
    config says the length; with ``desc_act`` groups are not in the order of the inputs. ``why``:
    the format is not known.
    """

    rows: Rows
    bits: int = 4
    group: int = -1
    block: int = 1
    point: int = 8
    symmetric: bool = False
    any_group: bool = False
    desc_act: bool = False
    why: str = ""

    def sides(
        self, contents: Contents, module: str, lengths: Mapping[Side, int], sign: str = "."
    ) -> StoredSides:
        """Return the places of a module's sides of these ``lengths``.

        Every tensor whose name is the module's, the ``sign`` and an ending has to be a row's, and
        as long as the row says.
        """
        names = list(contents.below(module))
        if sign != ".":
            names = [f"{module}{sign}{ending}" for ending in self.rows]
            names = [name for name in names if name in contents.tensors]
        places: dict[Side, list[Place]] = {"N": [], "K": []}
        groups: list[Place] = []
        steps = [1]
        reasons = [self.why]
        for name in names:
            row = self.rows.get(name.removeprefix(f"{module}{sign}"))
            if row is None:
                reasons.append(f"{name} is no tensor of its format")
                continue
            for side, (axis, per, fill) in row.items():
                place = self._place(contents, name, side, (axis, per, fill))
                if place is None:
                    if per == "group" and contents.shape(name)[axis : axis + 1] != (1,):
                        reasons.append(f"{name} has several groups, and the config names none")
                    continue
                reasons.append(misfit(contents.tensors[name], place, per, lengths[side]))
                places[side].append(place)
                if per != "block":  # zeros within the last block need no scale of their own
                    steps.append(place.unit.denominator)
                if "group" in (per, fill):
                    groups.append(place)
        reasons.append(self._short_group(names, lengths["K"]))
        return StoredSides(
            tuple(places["N"]),
            tuple(places["K"]),
            lcm(*steps),
            next(filter(None, reasons), ""),
            tuple(groups),
        )

    def _place(self, contents: Contents, name: str, side: Side, row: Row) -> Place | None:
        """Return a row's place in a tensor; None where one entry is for all of the side."""
        axis, per, fill = row
        is_of_all = fill == "last" and per == "1" and contents.tensors[name].numel == 1
        if is_of_all or (per == "group" and self.group < 0):
            return None
        if fill == "size":  # of both sides: [N, K]
            return Place(name, axis, "NK".index(side), fill="size")
        if fill == "group":
            group = self.group if self.group > 0 else MAX_SIZE
            return Place(name, axis, fill="group", group=group)
        units = {"1": 1, "byte": 2, "group": self.group, "block": self.block}
        unit = Fraction(self.bits, WORD) if per == "word" else Fraction(1, units[per])
        if fill in ("zero", "point"):  # codes fill a word
            code = self.point if fill == "point" else 1 << self.bits - 1
            return Place(name, axis, unit=unit, fill=packed_word(code, self.bits))
        return Place(name, axis, unit=unit, fill=fill)  # type: ignore[arg-type]

    def _short_group(self, names: Sequence[str], inputs: int) -> str:
        """Return why new inputs have no code of zero: their group has a zero point of its own."""
        has_points = any(name.endswith(POINTS) for name in names)
        if not has_points or self.symmetric:
            return ""
        if self.group < 0:
            return "an output's inputs share one zero point: no code stands for zero in all outputs"
        if inputs % self.group:
            return "its last group of inputs is not whole, and has a zero point of its own"
        return ""


def misfit(info: TensorInfo, place: Place, per: Per, length: int) -> str:
    """Return why a tensor is not as its format has it, for a side of this length."""
    if place.fill == "size":
        return ""
    is_long = info.shape[place.axis : place.axis + 1] == (place.entries(length),)
    if not is_long or (per == "word" and info.dtype != "int32"):
        return f"{info.name} is {info.dtype} {list(info.shape)}, unlike its format"
    if per in ("word", "byte") and length % place.unit.denominator:
        return f"the last {per} of {info.name} is not whole"
    return ""


def packed_word(code: int, bits: int) -> int:
    """Return a word of equal codes as the signed integer that files hold."""
    word = sum(code << shift for shift in range(0, WORD, bits))
    return word - (1 << WORD) if word >> WORD - 1 else word


def stored_formats(contents: Contents) -> list[StoredFormat]:
    """Return the formats that a config states; for compressed-tensors one for each group of
    modules, of which the one that fits a module's tensors is its own."""
    try:
        stated = stated_quantisation(contents.config)
        others = [*stated_quantisations(contents.config), *contents.side.values()]
        if any(contradicts(other, stated) for other in others):
            raise ConfigError("its config states two formats, or a file beside it another one")
        groups = dict(stated.get("config_groups") or {})
        if len(groups) < 2:
            return [_stored_format(stated)]
        formats = []
        for name, group in groups.items():
            alone = {name: {**group, "targets": ["Linear"]}}
            formats.append(_stored_format({**stated, "config_groups": alone}))
        return formats
    except (AttributeError, ConfigError, TypeError, ValueError) as error:
        return [StoredFormat({}, why=str(error))]


def contradicts(other: Any, stated: Mapping[str, Any]) -> bool:
    """Return whether one statement of a format says otherwise than the other one."""
    if other.get("checkpoint_format") == "gptq_v2" and "checkpoint_format" not in stated:
        return True  # which is version 1
    in_both = STATED_TWICE & other.keys() & stated.keys()
    return any(other[key] != stated[key] for key in in_both)


def stored_less(name: str, stated: Mapping[str, Any]) -> int | None:
    """Return what is taken off the zero points that a format stores; None where it isn't known."""
    if name not in ("gptq", "awq"):
        return 0
    # GPTQModel states the version twice, and reads either
    words = {stated.get(key) for key in ("checkpoint_format", "format")} - {None, ""}
    numbers = {TABLES["taken_off"].get(str(word)) for word in words or {name}}
    return numbers.pop() if len(numbers) == 1 else None


def _stored_format(stated: Mapping[str, Any]) -> StoredFormat:
    """Return how a quantization_config says that weights are stored."""
    storage = storage_of_config({"quantization_config": stated})
    form = storage.form
    like = TABLES["stored_like"]
    name = like.get(f"{storage.tool} {form}".strip(), like.get(form, form))
    if form == "mxfp4" and storage.tool != "ct":
        name = "mxfp4_stacked"
    if form == "none":
        return StoredFormat({}, why="its weights are quantised, and no config names the format")
    packing = str(stated.get("packing_format", "auto_gptq"))
    less = stored_less(name, stated)
    if name not in ROWS or less is None or not packing.endswith(("auto_gptq", "awq")):
        bits = f" with {stated['bits']} bits" if "bits" in stated else ""
        return StoredFormat({}, why=f"how {storage.name}{bits} stores weights is not known")
    bits, _, fixed_group = TABLES["bits"][form]
    return StoredFormat(
        ROWS[name],
        bits,
        storage.group if form in ANY_GROUP else fixed_group,
        storage.block,
        (1 << bits - 1) - less,
        storage.symmetric and form != "awq",
        form in ANY_GROUP,
        storage.desc_act,
    )

"""Find what may hold a size and was not accounted for: the gaps of a closed world.

No answer is *ok* over a gap. A key of a config is accounted for where it was read, or is known to
hold no size; a matrix where it belongs to a product, or to what is known to be none.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from gacprof.checkpoint.from_config import ConfigSizes
from gacprof.checkpoint.layouts.configs import leaves, part_of, stated_size
from gacprof.checkpoint.layouts.names import WORDS
from gacprof.core.files import shipped_table
from gacprof.core.formatting import one_line

TEXT_PARTS = ("thinker_config", *WORDS["parts"]["text"])  # whose values are read, one by one
MAX_LETTERS = 80  # of a name out of a config or a checkpoint
MAX_DEPTH = 20  # of tables in tables
NEUTRAL_FILE = Path(__file__).with_name("neutral.toml")
NEUTRAL = shipped_table(NEUTRAL_FILE, dict[str, list[str]])
NEUTRAL_PATTERN = re.compile("|".join(NEUTRAL["patterns"]))
NOT_READ = frozenset(chain(NEUTRAL["keys"], NEUTRAL["tables"], NEUTRAL["towers"], TEXT_PARTS))
REPEATS = dict(row.split(" = ") for row in NEUTRAL["repeats"])
QUANTISED = re.compile("fp?4|fp?8|f8|int[48]|nf4|mx")  # DeepSeek-V4's expert_dtype
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act")
ROPE_LISTS = ("long_factor", "short_factor", "mrope_section")
ROPE_TABLES = ("rope_scaling", "rope_parameters")
LAYER_KINDS = ("layer_types", "layers_block_type")
Grade = Literal["refused", "wrong", "unknown", "note"]


@dataclass(frozen=True)
class Gap:
    """A gap: something that may hold a size, by its ``name``, and a sentence ``why`` it ends an ok.

    Its ``kind`` is key, contradiction, activation, class, tower, tensor, size, product or storage.
    A gap is *refused* (or *wrong*) where an engine surely refuses it (or errs), *unknown* where it
    ends an ok, and else a note.
    """

    kind: str
    name: str
    why: str
    grade: Grade = "unknown"


def key_gaps(sizes: ConfigSizes) -> Iterator[Gap]:
    """Return the keys of a config's text part that may hold a size, once its products were made.

    A key is accounted for where ``sizes`` read it or ``neutral.toml`` lists it.
    """
    for key, value in sizes.values.items():
        was_read = key in sizes.values.read and not isinstance(value, Mapping)
        repeats = key in REPEATS and sizes.get(REPEATS[key]) == value
        if was_read or repeats or key in NOT_READ or NEUTRAL_PATTERN.search(key):
            continue
        what = size_in(value, sizes.get("layers"))
        if key.endswith("dtype") and QUANTISED.search(str(value)):
            what = f"the type {shown(value)}"
        if what:
            yield Gap("key", key, f"{shown(key)}, {what}, may change sizes, and nobody reads it")
    if not sizes.is_known_type:
        kind = shown(sizes.model_type or "none")
        why = f"nobody read what the model type {kind} means by its keys"
        yield Gap("key", "model_type", why)
    yield from contradictions(sizes)
    yield from rotation_gaps(sizes)
    yield from word_gaps(sizes.values)


def contradictions(sizes: ConfigSizes) -> Iterator[Gap]:
    """Return numbers of a config that contradict each other: tools may change one alone."""
    heads = sizes.get("mamba_heads") * sizes.get("mamba_head_dim")
    width = sizes.get("mamba_d_ssm") or sizes.get("mamba_expand") * sizes.get("hidden_size")
    if heads and width and heads != width:  # the models' own configs refuse it
        why = f"Mamba's heads are {heads} wide, and by the config's other keys {width}"
        yield Gap("contradiction", "mamba_head_dim", why, "refused")
    experts, chosen = sizes.get("experts"), sizes.get("experts_per_token")
    groups = stated_size(sizes.values, ["n_group", "num_expert_group"])
    if experts and chosen > experts:
        why = f"a token goes to {chosen} of {experts} experts"
        yield Gap("contradiction", "num_experts_per_tok", why, "refused")
    if groups and experts % groups:  # vLLM then routes without groups, SGLang asserts
        why = f"{experts} experts are no multiple of {groups} groups (n_group)"
        yield Gap("contradiction", "n_group", why)
    open_groups = stated_size(sizes.values, ["topk_group"])
    if open_groups > groups > 0:
        why = f"experts are chosen of {open_groups} of {groups} groups (topk_group)"
        yield Gap("contradiction", "topk_group", why)
    layers = sizes.get("layers")
    for key in (*LAYER_KINDS, "mlp_layer_types", "moe_layer_freq"):
        listed = sizes.values.get(key)
        if isinstance(listed, list) and layers and len(listed) != layers:
            why = f"{key} lists {len(listed)} layers, and num_hidden_layers is {layers}"
            grade: Grade = "refused" if key == "layer_types" else "unknown"
            yield Gap("contradiction", key, why, grade)
    for key in ("intermediate_size", "moe_intermediate_size"):
        widths = part_of(sizes.whole)[1].get(key)
        if isinstance(widths, list) and "by_layer" not in sizes.family:
            why = f"{key} is a list of {len(widths)}, which few classes take"
            yield Gap("contradiction", key, why)


def rotation_gaps(sizes: ConfigSizes) -> Iterator[Gap]:
    """Return lists of a rotary embedding whose length is not half of what is rotated."""
    whole = sizes.get("qk_rope_head_dim") or sizes.get("head_dim")
    for key in ROPE_TABLES:
        table = sizes.values.get(key)
        if not isinstance(table, Mapping):
            continue
        share = table.get("partial_rotary_factor", sizes.values.get("partial_rotary_factor"))
        rotated = whole * share if isinstance(share, int | float) else whole
        lists = {name: table[name] for name in ROPE_LISTS if isinstance(table.get(name), list)}
        for name, listed in lists.items():
            length = len(listed)
            if name == "mrope_section":
                length = sum(number for number in listed if isinstance(number, int))
            if whole and 2 * length != int(rotated):
                why = f"{name} is for {length}, and half of {int(rotated)} is rotated"
                yield Gap("contradiction", name, why)


def word_gaps(values: Mapping[str, Any]) -> Iterator[Gap]:
    """Return activations, kinds of rotary embedding and kinds of layers that nobody looked at."""
    for key in ACTIVATIONS:
        for word in unlisted(values.get(key), "activations"):
            yield Gap("activation", key, f"the {key} {word} was not looked at")
    for key in ROPE_TABLES:
        words = leaves({key: values.get(key)})  # Gemma 3 has a table for each kind of layer
        kinds = [word for path, word in words.items() if path[-1] in ("rope_type", "type")]
        for word in unlisted(kinds, "rope_types"):
            yield Gap("activation", key, f"{key} of the type {word} was not looked at")
    letters = list(str(values.get("hybrid_override_pattern") or ""))
    for word in unlisted(letters, "layer_letters"):
        why = f"hybrid_override_pattern has layers {word}, which nobody looked at"
        yield Gap("key", "hybrid_override_pattern", why)
    for key in LAYER_KINDS:
        for word in unlisted(values.get(key), "layer_kinds"):
            yield Gap("key", key, f"no products are known of layers of the kind {word}")


def unlisted(value: Any, row: str) -> list[str]:
    """Return the words of a value that a row of ``neutral.toml`` does not list."""
    words = value if isinstance(value, list) else [value]
    return sorted({shown(word) for word in words if word} - set(NEUTRAL[row]))


def shown(name: Any) -> str:
    """Return a stranger's name in one line that isn't long."""
    return one_line(str(name)[:MAX_LETTERS])


def size_in(value: Any, layers: int, depth: int = 0) -> str:
    """Say what a value holds that may be a size; empty where it can hold none."""
    if depth > MAX_DEPTH:
        return "a deep table"
    if type(value) is int and value > 1:
        return f"the number {value}"
    if isinstance(value, str) and re.search(r"\d\s*,\s*\d", value):
        return "a text of numbers"
    if isinstance(value, Mapping) and any(size_in(v, layers, depth + 1) for v in value.values()):
        return f"a table of {len(value)}"
    if isinstance(value, list) and any(size_in(v, layers, depth + 1) for v in value):
        by_layer = ", one a layer" if len(value) == layers else ""
        return f"a list of {len(value)}{by_layer}"
    return ""


def in_words(gaps: Sequence[Gap]) -> str:
    """Name the first of each kind of gap, and say how many more there are; notes are left out."""
    by_kind: dict[str, list[Gap]] = {}
    for gap in gaps:
        if gap.grade != "note":
            by_kind.setdefault(gap.kind, []).append(gap)
    parts = []
    for same in by_kind.values():
        more = f" (and {len(same) - 1} more of this kind)" if len(same) > 1 else ""
        parts.append(same[0].why + more)
    return "; ".join(parts)

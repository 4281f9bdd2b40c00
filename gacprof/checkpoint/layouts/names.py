"""Words of tensor names: layer, role, expert. Structure decides layouts, names decide roles.

A model of 90,000 tensors has some forty templates, which are its names with ``#`` for each number:
what a name means is asked once a template.
"""

import re
from functools import lru_cache
from pathlib import Path

from gacprof.core.files import row_of_word, shipped_table

TABLE = Path(__file__).parents[1] / "names.toml"
WORDS = shipped_table(TABLE, dict[str, dict[str, list[str]]])
_ROLES = row_of_word(WORDS["roles"])
EMBEDDING = re.compile(  # modules whose matrix is a table to look up in rather than a factor
    r"(.*\.)?(embed_(tokens|positions|in)|(tok|word|position|token_type)_embeddings|wte|wpe|shared"
    r"|relative_attention_bias)"
)
CONV1D = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
"""Endings of GPT-2's Conv1D, which keeps [in, out] (transformers/pytorch_utils.py). Starcoder2 uses
the same names for nn.Linear."""
_LAYER = re.compile(r"(?:^|\.)(?:layers|layer|h|blocks|block)\.(\d{1,6})(?=\.|$)")
EXPERT = re.compile(  # templates of one of many experts, or of a tensor that holds them all
    r"\.experts\.(#|mlp)\.|\.experts\.(gate_up_proj|up_proj|down_proj|fc[12])$"
    r"|\.block_sparse_moe\.(input|output)_linear$"
)
SHARED = re.compile(r"\.shared_(expert|experts|mlp)\.")  # an expert that all tokens reach
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def template_of(name: str) -> str:
    """Return a name with ``#`` for each number that stands between dots."""
    return _NUMBER.sub("#", name)


def parent_of(module: str) -> str:
    return module.rpartition(".")[0]


def tower_of(module: str) -> str:
    """Return ``audio`` or ``vision`` in these parts of a multimodal model, else nothing."""
    if "audio" in module:
        return "audio"
    return "vision" if re.search("vision|visual|image", module) else ""


def layer_of(name: str) -> int | None:
    """Return the layer's index in a name, or None outside the layers."""
    match = _LAYER.search(name)
    return int(match[1]) if match else None


def role_of(module: str) -> str:
    """Return the role of a linear layer by its module's name; ``other`` where it says nothing."""
    return role_of_template(template_of(module))


@lru_cache(1 << 12)
def role_of_template(template: str) -> str:
    """Return the role of all modules of a template."""
    parts = template.split(".")
    endings = [".".join(parts[-length:]) for length in (3, 2, 1)]
    role = next((_ROLES[ending] for ending in endings if ending in _ROLES), "other")
    return f"expert_{role}" if role != "other" and EXPERT.search(template) else role

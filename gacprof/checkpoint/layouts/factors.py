"""Factor pairs: how each tool names the factor that runs first and those that follow.

ASVD         the config's ``truncation_ranks`` has the rank of every factored module
             (hahnyuan/ASVD4LLM, modeling_asvd_llama.py)
PaLU         one ``X.VT`` [Σrᵢ, in] for all head groups, then ``X.U.{i}`` [out/G, rᵢ]: group ``i``
             owns the rows from ``Σ_{j<i} rⱼ``. The config's ``head_wise_ranks`` has the list of
             every module (shadowpa0327/Palu, palu/model/modules/svd_linear.py)
SVD-LLM      every linear, OPT's ``out``, ``fc1``, ``fc2`` and (ours) Mixtral's ``w1`` too. No
             config says the ranks, and ``in_features`` of pickled modules may disagree with the
             weights: shapes count
gacprof      what ``load_model`` builds, saved as it is
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, takewhile

from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.layouts.linear import Linear, factored, is_chain
from gacprof.checkpoint.layouts.names import parent_of, role_of
from gacprof.core.dtypes import FLOATING
from gacprof.core.errors import CheckpointError


@dataclass(frozen=True)
class Factors:
    """One tool's names.

    ``inner`` is a pattern of the tensor that reads the layer's input [r, in]; its named groups fill
    ``outer``, the tensor that writes the output [out, r] (``{i}`` numbers groups of heads from 0),
    and ``module``, what the layer is called. ``rank_key`` is where the config keeps the ranks by
    module, ``prefix`` what the tool puts before class names and, in lower case, before model types.
    ``ordered`` says that a factor's trailing entries are the least important.
    """

    layout: str
    inner: str
    outer: str
    module: str = "{module}"
    rank_key: str = ""
    prefix: str = ""
    ordered: bool = True

    def pairs(self, contents: Contents) -> Iterator[Linear]:
        """The layers that this tool factored. Raises :class:`CheckpointError`."""
        for name in contents.tensors:
            match = re.fullmatch(self.inner, name)
            if match:
                outer = self._outer(match.groupdict(), contents)
                if outer:
                    yield factored(contents, self.module.format(**match.groupdict()), name, outer)

    def _outer(self, words: Mapping[str, str], contents: Contents) -> tuple[str, ...]:
        if "{i}" in self.outer:
            names = (self.outer.format(**words, i=i) for i in count())
            return tuple(takewhile(contents.tensors.__contains__, names))
        name = self.outer.format(**words)
        return (name,) if name in contents.tensors else ()

    def without_prefix(self, name: str) -> str:
        """A class's name or a model type as the uncompressed model has it."""
        return name.removeprefix(self.prefix).removeprefix(self.prefix.lower()) or name


FACTORS = [
    Factors(
        "palu",
        r"(?P<module>.+)\.VT\.weight",
        "{module}.U.{i}.weight",
        rank_key="head_wise_ranks",
        prefix="Palu",
    ),
    Factors(
        "asvd",
        r"(?P<module>.+)\.BLinear\.weight",
        "{module}.ALinear.weight",
        rank_key="truncation_ranks",
        prefix="ASVD",
    ),
    Factors(
        "svd-llm",
        r"(?P<stem>.+\.(q|k|v|o|out|gate|up|down))_v_proj\.weight",
        "{stem}_u_proj.weight",
        "{stem}_proj",
    ),
    Factors(
        "svd-llm", r"(?P<module>.+\.(fc1|fc2|w1|w2|w3))_v_proj\.weight", "{module}_u_proj.weight"
    ),
    Factors(
        "gacprof", r"(?P<module>.+)\.inner\.weight", "{module}.outer.{i}.weight", ordered=False
    ),
    Factors("gacprof", r"(?P<module>.+)\.inner\.weight", "{module}.outer.weight", ordered=False),
]
"""One row a way to name factors. Append yours."""


def named_pairs(contents: Contents, outer: str, inner: str) -> list[Linear]:
    """The pairs that the user's name patterns select, each with ``{module}`` once.

    Raises :class:`CheckpointError` for patterns that select nothing.
    """
    pattern = re.escape(inner).replace(re.escape("{module}"), "(?P<module>.+)", 1)
    pairs = list(Factors("factor-pairs", pattern, outer).pairs(contents))
    if not pairs:
        raise CheckpointError(
            f"factor patterns '{outer}' and '{inner}' select no pair of tensors: write them as in "
            "'{module}.U.weight' '{module}.V.weight'"
        )
    return pairs


_SUFFIXED = re.compile(r"(.*(?:_proj|fc1|fc2))_([A-Za-z0-9]{1,10})")
_ADAPTERS = ("lora_", "base_layer", "adapter")


def pairs_by_shape(contents: Contents) -> list[Linear]:
    """Pairs of tools that have no row: exactly two matrices where one weight of a role would stand.

    ``q_proj.U`` and ``q_proj.V``, ``fc1_a`` and ``fc1_b``: they fit in one order only, with a rank
    no larger than the layer's sides.
    """
    vectors: dict[str, list[str]] = {}
    matrices: dict[str, list[str]] = {}
    for name, info in contents.tensors.items():
        module = _factored_module(name)
        if module and len(info.shape) == 1:
            vectors.setdefault(module, []).append(name)
        elif module and len(info.shape) == 2 and info.dtype in FLOATING:
            matrices.setdefault(module, []).append(name)
    linears = []
    for module, names in matrices.items():
        is_adapter = any(word in name for name in names for word in _ADAPTERS)
        if len(names) != 2 or is_adapter or f"{module}.weight" in contents.tensors:
            continue
        orders = [pair for pair in (names, names[::-1]) if _is_low_rank(contents, *pair)]
        if len(orders) == 1:
            inner, outer = orders[0]
            why = _between(contents, vectors.get(module, []), inner)
            linears.append(factored(contents, module, inner, (outer,), why=why))
    return linears


def _factored_module(tensor: str) -> str:
    """The layer of a role that ``tensor`` would be a factor of; empty where there is none."""
    name = tensor.removesuffix(".weight").removesuffix(".bias")
    match = _SUFFIXED.fullmatch(name)
    candidates = (parent_of(name), match[1] if match else "")
    return next((module for module in candidates if role_of(module) != "other"), "")


def _is_low_rank(contents: Contents, inner: str, outer: str) -> bool:
    n_out, n_in = contents.shape(outer)[0], contents.shape(inner)[1]
    return is_chain(contents, inner, (outer,)) and contents.shape(inner)[0] <= min(n_out, n_in)


def _between(contents: Contents, vectors: list[str], inner: str) -> str:
    """Why the rank may not change: something between the factors has its size too."""
    rank = contents.shape(inner)[0]
    for name in vectors:
        weight = contents.tensors.get(name.removesuffix("bias") + "weight")
        is_bias = name.endswith(".bias") and weight is not None and rank in weight.shape
        if contents.shape(name) == (rank,) and not is_bias:
            return f"{name} has the rank's size and its meaning is not known"
    return ""

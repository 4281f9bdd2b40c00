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
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, takewhile

from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.layouts.linear import Linear, stored_linear
from gacprof.core.errors import CheckpointError

MAX_GROUPS = 1024
"""Outer factors of one layer. PaLU writes one for each group of heads: 128 at most today."""


@dataclass(frozen=True)
class Factors:
    """One tool's names.

    ``inner`` is a pattern of the tensor that reads the layer's input [r, in]; its named groups fill
    ``outer``, the tensor that writes the output [out, r] (``{i}`` numbers groups of heads from 0),
    and ``module``, what the layer is called. ``rank_key`` is where the config keeps the ranks by
    module, ``prefix`` what the tool puts before class names and, in lower case, before model types.
    ``ordered`` says that the tool leaves a factor's trailing entries the least important, so that
    a cut drops them; otherwise a cut computes the best factors of the smaller rank.
    """

    layout: str
    inner: str
    outer: str
    module: str = "{module}"
    rank_key: str = ""
    prefix: str = ""
    ordered: bool = False

    def pairs(self, contents: Contents) -> Iterator[Linear]:
        """The layers that this tool factored. Raises :class:`CheckpointError`."""
        tensors = contents.tensors
        inner = re.compile(self.inner)
        templates = contents.by_template
        matching = [templates[template] for template in templates if inner.fullmatch(template)]
        if contents.factors:  # a user's pattern may hold numbers, which templates do not
            matching = [list(tensors)]
        for name in chain(*matching):
            match = inner.fullmatch(name)
            if match is None:
                continue
            words = match.groupdict()
            groups = range(MAX_GROUPS if "{i}" in self.outer else 1)
            names = (self.outer.format(**words, i=i) for i in groups)
            outer = list(takewhile(tensors.__contains__, names))
            if not outer:
                continue
            module = self.module.format(**words)
            shapes = [tensors[factor].shape for factor in (name, *outer)]
            is_chain = all(len(shape) == 2 and 0 not in shape for shape in shapes)
            if not is_chain or shapes[0][0] != sum(shape[1] for shape in shapes[1:]):
                raise CheckpointError(
                    f"{module}: its factors do not fit: {name} {list(shapes[0])} and {outer[0]} "
                    f"{list(shapes[1])}: fetch them again"
                )
            yield stored_linear(contents, module, name, *outer, ordered=self.ordered)

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
        ordered=True,
    ),
    Factors(
        "asvd",
        r"(?P<module>.+)\.BLinear\.weight",
        "{module}.ALinear.weight",
        rank_key="truncation_ranks",
        prefix="ASVD",
        ordered=True,
    ),
    Factors(
        "svd-llm",
        r"(?P<stem>.+\.(q|k|v|o|out|gate|up|down))_v_proj\.weight",
        "{stem}_u_proj.weight",
        "{stem}_proj",
        ordered=True,
    ),
    Factors(
        "svd-llm",
        r"(?P<module>.+\.(fc1|fc2|w1|w2|w3))_v_proj\.weight",
        "{module}_u_proj.weight",
        ordered=True,
    ),
    Factors("gacprof", r"(?P<module>.+)\.inner\.weight", "{module}.outer.{i}.weight"),
    Factors("gacprof", r"(?P<module>.+)\.inner\.weight", "{module}.outer.weight"),
    Factors("factor-pairs", r"(?P<module>.+)\.V\.weight", "{module}.U.weight"),
]
"""One row a way to name factors. Append yours."""


def users_row(outer: str, inner: str) -> Factors:
    """The row of name patterns with ``{module}`` in each, as ``{module}.U.weight``."""
    pattern = re.escape(inner).replace(re.escape("{module}"), "(?P<module>.+)", 1)
    return Factors("factor-pairs", pattern, outer)

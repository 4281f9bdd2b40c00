"""Factor pairs: how each tool names the factor that runs first and those that follow.

ASVD         hahnyuan/ASVD4LLM, modeling_asvd_llama.py
PaLU         one ``X.VT`` [Σrᵢ, in] for all head groups, then ``X.U.{i}`` [out/G, rᵢ]
             (shadowpa0327/Palu, palu/model/modules/svd_linear.py)
SVD-LLM      no config says the ranks, and pickled ``in_features`` may be wrong: shapes count
gacprof      what ``load_model`` builds, saved as it is
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.layouts.linear import Linear, stored_linear
from gacprof.core.errors import CheckpointError

MAX_GROUPS = 1024
"""Outer factors of one layer, in PaLU one for each group of heads: 128 at most today."""


@dataclass(frozen=True)
class Factors:
    """One tool's names.

    ``inner`` is a pattern of the tensor that reads the layer's input [r, in]; its named groups fill
    ``outer``, the tensor that writes the output [out, r] (``{i}`` numbers groups of heads from 0),
    and ``module``, what the layer is called. ``rank_key`` is where the config keeps the ranks by
    module, ``prefix`` stands before class names and, in lower case, before model types. Of an
    ``ordered`` factor the trailing entries are the least important, and a cut drops them.
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
        matching: list[str] = []
        for template, same in contents.by_template.items():
            if contents.factors or inner.fullmatch(template):  # a user's may hold numbers
                matching += same
        for match in filter(None, map(inner.fullmatch, matching)):
            name, words = match[0], match.groupdict()
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

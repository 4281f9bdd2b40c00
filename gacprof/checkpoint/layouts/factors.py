"""Factor pairs, by the names that ``factors.toml`` says each tool gives them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.layouts.linear import Linear, stored_linear
from gacprof.core.errors import CheckpointError
from gacprof.core.files import shipped_table

MAX_GROUPS = 1024  # outer factors of a layer, in PaLU one a group of heads: 128 at most today


@dataclass(frozen=True)
class Factors:
    """The names that one tool gives its factors.

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
        """Return the layers that this tool factored. Raises :class:`CheckpointError`."""
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
                    f"{list(shapes[1])}: fetch them again, or swap the patterns of --factors "
                    "(the one that makes the outputs stands first)"
                )
            yield stored_linear(contents, module, name, *outer, ordered=self.ordered)

    def without_prefix(self, name: str) -> str:
        """Return a class's name or a model type as the uncompressed model has it."""
        return name.removeprefix(self.prefix).removeprefix(self.prefix.lower()) or name


TABLE = Path(__file__).parents[1] / "factors.toml"
FACTORS = [Factors(**row) for row in shipped_table(TABLE, dict[str, list[Any]])["factors"]]
"""One row a way to name factors. Append yours."""

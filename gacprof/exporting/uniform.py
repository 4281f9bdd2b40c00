"""A plain Hugging Face folder: every layer padded to the same width, a config for every server."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gacprof.checkpoint.inventory import Inventory
from gacprof.exporting.engines import check_in_transformers, prompt_of
from gacprof.exporting.folder import Weights
from gacprof.exporting.format import Check, Request, Written
from gacprof.resizing import Progress, realign_uniform
from gacprof.resizing.sizes import uniform

MULTIPLE = 8
"""The common width is rounded up to this, as by ``gacprof realign --uniform``."""


@dataclass(frozen=True)
class UniformExport:
    """``gacprof realign --uniform``, checked by transformers."""

    inventory: Inventory
    tokenizer: Path
    serve: str = "vllm serve {out}"
    engine: str = "transformers"
    no_engine: str = ""

    def write(self, out: Path, progress: Progress | None) -> Written:
        done = realign_uniform(self.inventory, out, MULTIPLE, progress=progress)
        more = done.parameters_after - done.parameters_before
        cost = f"padding cost {more:,} parameters ({more / done.parameters_before:+.1%})"
        return Written(done.files, done.parameters_after, done.bytes_written, (cost, *done.notes))

    def run(self, out: Path) -> Check:
        tables = [m.in_features for m in self.inventory.modules if m.kind == "embedding"]
        prompt = prompt_of(self.tokenizer, min(tables, default=1))
        return check_in_transformers(self.inventory, prompt, out, own_code=False)

    def compare(self, out: Path) -> Check:
        sizes = uniform(self.inventory, MULTIPLE).sizes
        return Weights(self.inventory, sizes, {n: n for n in self.inventory.tensors}).compare(out)


def prepare(inventory: Inventory, request: Request) -> UniformExport:
    """A plain folder. Raises :class:`CheckpointError` where no plain config describes it."""
    uniform(inventory, MULTIPLE)
    return UniformExport(inventory, request.tokenizer_of(inventory))

"""The verb ``compress``: from a dense model to one whose sizes are served well."""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

import torch

from gacprof import __version__
from gacprof.checkpoint.config import without_code
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.configs import with_widths
from gacprof.checkpoint.scan import inventory_of, scan
from gacprof.checkpoint.writer import RECORD, check_output, write_weights
from gacprof.compress.factoring import Factoring
from gacprof.compress.layered import LayerResults
from gacprof.compress.llm_pruner import Pruning
from gacprof.compress.low_rank import LowRank
from gacprof.compress.options import Objective, choose
from gacprof.compress.statistics import LENGTH, WINDOWS, calibration_ids
from gacprof.core.errors import CheckpointError, ConfigError, require_one_of, require_within
from gacprof.core.files import new_folder, write_json, write_record
from gacprof.core.results import Result
from gacprof.core.sizes import SizeSource
from gacprof.diagnosing.source import open_source
from gacprof.workload.deployment import Tokens

Method = Literal[LowRank, "llm-pruner"]
MAX_RATIO = 0.99
MAX_NUMBER = 2**20  # of windows, of their tokens, of a size's multiple


@dataclass(frozen=True)
class Compression(Result):
    """A compressed model: ``sizes`` are ranks by module, None where the weight stays dense, or
    widths by dim. They lose ``loss``, and no sizes within the same parameters lose less than
    ``bound``: twice the loss added in nats a token, shares of energy, or Taylor importance."""

    schema: ClassVar[str] = "gacprof.compressed/2"

    out: str
    checkpoint: str
    fingerprint: str
    method: Method
    ratio: float
    objective: Objective
    provenance: str
    calibration: tuple[int, int]
    sizes: Mapping[str, int | None]
    parameters: tuple[int, int]
    loss: float
    bound: float


def compress(
    checkpoint: str | Path | Inventory,
    out: str | Path,
    *,
    method: Method = "svd-llm",
    ratio: float = 0.15,
    source: SizeSource | str | Path | None = None,
    text: str | Path | torch.Tensor | None = None,
    objective: Objective = "loss",
    tokens: Tokens | None = None,
    multiple: int = 1,
    windows: int = WINDOWS,
    length: int = LENGTH,
    work: str | Path | None = None,
    device: str = "cpu",
) -> Compression:
    """Compress a model to sizes that a GPU serves well.

    Weights become factor pairs, or MLPs narrower. Of the sizes that the source calls safe, those
    are taken that lose the least within the parameters that the ratio leaves; a layer without such
    a size stays dense. One decoder layer is in memory at a time, in float32, with covariances of
    its inputs and outputs. After an interruption the same call goes on with the layers that are not
    finished.

    Parameters
    ----------
    checkpoint
        A dense model's folder, with config and tokenizer.
    out
        The compressed model's folder, which must not exist.
    method
        "svd", "asvd" (arXiv 2312.05821), "svd-llm" (2403.07378) and "kfac-svd" factor the
        projections of the decoder layers; "llm-pruner" (2305.11627) prunes the MLPs' hidden units.
    ratio
        The share of the parameters of these layers to remove: 0.15 is 15 %.
    source
        Where the safe sizes come from: your own measurement (a map or a run folder), a shipped map,
        or a GPU's name such as h100. Without it every multiple is offered.
    text
        Calibration text: a file in UTF-8, or in Python token ids [windows, tokens]. Do not measure
        quality on it. "svd" by energy or uniform needs none.
    objective
        What sizes should lose the least of. "loss": the loss that they add, to second order (of
        widths: Taylor importance); weights may stay dense too. "energy": the squared singular
        values (or importance) that they cut. "uniform": one ratio for all layers, rounded down.
    tokens
        Numbers of tokens in a call at which sizes have to be served well. By default those that the
        source knows.
    multiple
        Without a map or GPU: the number that sizes are multiples of.
    windows
        The most windows of the text to run.
    length
        Tokens in a window.
    work
        A folder that keeps finished layers, for other ratios, sources and objectives of the same
        weights and text. By default one beside
        the output folder, removed when that is written.
    device
        The device that runs the layers: cpu or cuda.

    Raises
    ------
    CheckpointError
        The model is compressed or quantised, or cannot be run layer by layer.
    ConfigError
        A text is missing or too short, or a method or an objective is not known.
    MapError, PlanError
        The source holds no product of such a model; no sizes fit the ratio.
    FileExistsError
        ``out`` exists.
    """
    require_one_of("method", method, get_args(Method))
    require_one_of("objective", objective, get_args(Objective))
    require_within("ratio", ratio, MAX_RATIO)
    for name, number in {"multiple": multiple, "windows": windows, "length": length}.items():
        require_within(name, number, MAX_NUMBER)
    inventory = inventory_of(checkpoint)
    target = Path(out)
    check_output(inventory, target)
    factored = [m.name for m in inventory.modules if m.kind in ("factored", "grouped")]
    if factored or inventory.is_quantised:
        raise CheckpointError(
            f"{inventory.path} is compressed already: merge its factors by 'gacprof realign' with "
            "the word fuse, or take the model that it was made from"
        )
    ids = None
    if text is not None:
        ids = calibration_ids(text, inventory, windows, length)
    elif method != "svd" or objective == "loss":
        raise ConfigError(f"{method} by {objective} needs a calibration text: give text")
    size_source = None if source is None else open_source(source)
    folder = target.parent / f".{target.name}.layers" if work is None else Path(work)
    results = LayerResults(folder / _digest(inventory, method, ids))
    compressor: Factoring | Pruning
    if method == "llm-pruner":
        compressor = Pruning(inventory, objective, results, device)
    else:
        compressor = Factoring(inventory, method, objective, results, device)
    # before the hours of a run: a source that knows no such products is refused here
    candidates, room = compressor.candidates(ratio, size_source, tokens, multiple)
    missing = [layer for layer in compressor.layers if not results.has(layer, compressor.curve)]
    if missing:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            for statistics in compressor.statistics(ids, Path(scratch)):
                if statistics.index in missing:
                    results.save(statistics.index, compressor.layer_results(statistics))
    losses = compressor.losses()
    options = {}
    for name, row in candidates.items():
        options[name] = row.options(losses.get(name, ()), objective)
    sizes, loss, bound = choose(options, room)
    with new_folder(target) as new:
        write_weights(new, inventory, compressor.new_tensors(sizes))
        config = with_widths(inventory.config, inventory.dims, sizes)
        write_json(new / "config.json", without_code(config))
        for name in inventory.side_files:
            if name != "config.json" and not name.endswith(".py"):
                shutil.copy(Path(inventory.folder) / name, new / name)
        compression = Compression(
            out=str(target),
            checkpoint=inventory.path,
            fingerprint=inventory.fingerprint,
            method=method,
            ratio=ratio,
            objective=objective,
            provenance="" if size_source is None else size_source.provenance,
            calibration=(0, 0) if ids is None else (len(ids), ids.shape[1]),
            sizes=sizes,
            parameters=(inventory.parameters, scan(new).parameters),
            loss=loss,
            bound=bound,
        )
        write_record(new / RECORD, compression)
    if work is None:  # only now: after an interruption the same call goes on with these
        shutil.rmtree(folder)
    return compression


def _digest(inventory: Inventory, method: Method, ids: torch.Tensor | None) -> str:
    """Return a name for all that the results of a layer depend on."""
    request = json.dumps([__version__, method, inventory.config], sort_keys=True)
    digest = hashlib.sha256(request.encode())
    for name in sorted({info.file for info in inventory.tensors.values()}):
        # of bytes: training on changes no name and no shape, which a fingerprint covers
        with (Path(inventory.folder) / name).open("rb") as file:
            digest.update(name.encode() + hashlib.file_digest(file, "sha256").digest())
    if ids is not None:
        digest.update(repr(ids.shape).encode() + ids.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]

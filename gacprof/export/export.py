"""One folder for transformers and vLLM: renamed weights, config, model code, tokenizer; checked."""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from safetensors.torch import load_file, save_file

from gacprof.check.models import random_ids
from gacprof.check.verify import SEQUENCES, logits_of
from gacprof.checkpoint.config import without_code
from gacprof.checkpoint.containers import read_json_object
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import inventory_of, side_files
from gacprof.checkpoint.writer import write_weights
from gacprof.core.errors import CheckpointError
from gacprof.core.files import new_folder, write_json
from gacprof.export.decoder import FAMILIES, MODULE, Decoder, read_decoder
from gacprof.realigning.changes import NewCheckpoint, NewTensor
from gacprof.realigning.realign import output_tensors

TOKENS = 16

LOGIT_TOLERANCE = 1e-4
"""Of the largest logit, in float32: orders of adding differ by 1e-6 (small models) to 1e-5."""

MAY_NAME_CODE = ("tokenizer_config.json", "generation_config.json")

SERVE = {
    "transformers": "AutoModelForCausalLM.from_pretrained('{out}', trust_remote_code=True)",
    "vllm": "vllm serve {out} --trust-remote-code --model-impl transformers",
}


@dataclass(frozen=True)
class Exported:
    """``serve`` says how each engine loads the folder; ``max_error`` is the largest difference of
    transformers' logits from ours over the largest logit, None where not checked."""

    schema: ClassVar[str] = "gacprof.Exported/1"

    folder: str
    serve: dict[str, str]
    max_error: float | None


def export(
    checkpoint: str | Path | Inventory,
    out: str | Path,
    *,
    tokenizer: str | Path | None = None,
    check: bool = True,
) -> Exported:
    """Write a folder that transformers and vLLM load.

    It brings model code of its own, for factor pairs, widths and heads by layer. For llama.cpp and
    other servers of plain models, use ``realign`` with "uniform" and their own converters.

    Parameters
    ----------
    checkpoint
        A Llama-like decoder (Llama, Mistral, Qwen 2, Qwen 3) of any layout.
    out
        The new folder, which must not exist.
    tokenizer
        A folder with the tokenizer. Default: the checkpoint's own.
    check
        Load the folder by transformers, in a process without gacprof, and compare logits; this
        holds the model in float32.

    Raises
    ------
    CheckpointError
        The checkpoint is no such decoder, or what was written does not compute the same.
    FileExistsError
        ``out`` exists.
    """
    inventory = inventory_of(checkpoint)
    decoder = read_decoder(inventory)
    max_error = None
    with new_folder(Path(out)) as folder:
        write_folder(inventory, decoder, Path(tokenizer or inventory.folder), folder)
        if check:
            max_error = error_in_transformers(inventory, decoder, folder)
    serve = {engine: SERVE[engine].format(out=out) for engine in decoder.engines}
    return Exported(str(out), serve, max_error)


def write_folder(inventory: Inventory, decoder: Decoder, tokenizer: Path, folder: Path) -> None:
    """Write weights under their exported names, config, code and tokenizer."""
    tensors = tuple(NewTensor(new, (old,)) for old, new in decoder.names.items())
    new = NewCheckpoint(inventory, {}, (), (), tensors)
    write_weights(folder, inventory, output_tensors(new))
    write_json(folder / "config.json", decoder.config)
    code = Path(__file__).with_name("modeling_llama.py").read_text(encoding="utf-8")
    code = code.replace("Llama", FAMILIES[decoder.family]).replace("llama", decoder.family)
    (folder / f"{MODULE}.py").write_text(code, encoding="utf-8")
    for name in side_files(tokenizer):
        if name in MAY_NAME_CODE:
            write_json(folder / name, without_code(read_json_object(tokenizer / name)))
        elif name != "config.json" and not name.endswith(".py"):
            shutil.copy(tokenizer / name, folder / name)


def error_in_transformers(inventory: Inventory, decoder: Decoder, folder: Path) -> float:
    """Largest difference of transformers' logits from the checkpoint's, over the largest logit."""
    expected = logits_of(inventory, TOKENS, "float32", torch.device("cpu"))
    with tempfile.TemporaryDirectory(prefix="gacprof-") as scratch:
        ids, logits = Path(scratch) / "ids", Path(scratch) / "logits"
        save_file({"ids": random_ids(decoder.config["vocab_size"], (SEQUENCES, TOKENS))}, ids)
        script = Path(__file__).with_name("load_alone.py")
        # transformers copies model code into its cache: ours would stay there after the check
        environment = {**os.environ, "HF_MODULES_CACHE": scratch, "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, str(script), str(folder), str(ids), str(logits)]
        process = subprocess.run(command, env=environment, capture_output=True, text=True)
        if process.returncode:
            reason = process.stderr.strip().rpartition("\n")[2]
            raise CheckpointError(f"transformers does not load the export: {reason}")
        difference = load_file(logits)["logits"] - expected
    error = float(difference.abs().max() / expected.abs().max())
    if error > LOGIT_TOLERANCE:
        raise CheckpointError(
            f"{inventory.path}: transformers' logits differ by {error:.1e} of the largest: the "
            "checkpoint has tensors that a decoder of its family does not read"
        )
    return error

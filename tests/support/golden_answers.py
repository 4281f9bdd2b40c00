"""What the goldens are asked: the tests and ``tools/freeze_goldens.py`` call the same functions."""

from __future__ import annotations

import gzip
import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from decoders import DECODERS, write_decoder
from model_types import tiny_of
from tiny_models import write_llama, write_tiny
from tool_checkpoints import checkpoint, plain_inventory
from tool_folders import FIXTURES, filled, restored

from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.load import load_model
from gacprof.checkpoint.scan import scan
from gacprof.checkpoint.tensors import read_tensor
from gacprof.core.sizes import Gemm, Side, Use
from gacprof.kernels.names import parse
from gacprof.kernels.rules import Rules

GOLDENS = Path(__file__).parents[1] / "goldens"
LETTERS = {"safe": "s", "misaligned": "m", "undecided": "u", "unknown": "-"}
PATTERNS = ", factors by patterns "
IDS = torch.arange(1, 9)[None]
TINY: dict[str, dict[str, Any]] = {
    "width-83": {"intermediate_size": 83},
    "head_dim-12": {"head_dim": 12},
    "bias": {"attention_bias": True, "mlp_bias": True},
}


def read_golden(name: str) -> dict[str, Any]:
    with gzip.open(GOLDENS / f"{name}.json.gz") as file:
        frozen: dict[str, Any] = json.load(file)
    return frozen


def is_made_here(name: str) -> bool:
    """Whether a checkpoint among the answers can be made: the tools' originals cannot."""
    return not name.startswith(("shared", "made/tools"))


def made(name: str, into: Path) -> Path:
    """The folder of a checkpoint by its name among the answers."""
    kind, _, rest = name.removeprefix("made/").partition("/")
    if kind == "filled":
        return filled(rest, into)
    if kind == "decoder":
        return write_decoder(into / "model", **DECODERS[rest])  # type: ignore[arg-type]
    if kind == "planted":
        entry = read_golden("inventories")[name]
        shapes = {tensor: tuple(shape) for tensor, shape in entry["made_of"]}
        return checkpoint(into / "model", shapes, entry["config"])
    if kind == "tiny" and rest in TINY:
        return write_llama(into / "model", **TINY[rest])
    if kind == "tiny":
        return write_tiny(into / "model", tie_word_embeddings=rest == "tied")
    return FIXTURES / name if name.startswith("asvd") else restored(name, into)


def inventory_answer(key: str, into: Path) -> dict[str, Any]:
    """The inventory of a checkpoint, by its name and perhaps patterns of its factors."""
    name, *patterns = key.split(PATTERNS)
    factors: Any = tuple(patterns[0].split(", ")) if patterns else None
    answer = plain_inventory(scan(made(name, into), factors=factors))
    if name.startswith(("made/tiny", "made/decoder/mistral")):
        answer.pop("side_files")  # versions of transformers save others; an index is no more one
    return answer


def type_answer(kind: str, into: Path) -> dict[str, Any]:
    """The inventory of a tiny model of one of transformers' types."""
    tiny_of(kind).save_pretrained(into)
    return plain_inventory(scan(into))


def logits_of(model: Any) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=IDS, use_cache=False).logits
    return logits


def logits_answer(name: str, into: Path) -> dict[str, Any]:
    """Logits of a checkpoint's model in float32, and the number of its parameters."""
    model = load_model(made(name, into), dtype="float32")
    (logits,) = logits_of(model)
    return {
        "shape": list(logits.shape),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "last_first_32": logits[-1, :32].tolist(),
        "mean": float(logits.mean()),
        "std": float(logits.std()),
    }


def digests(inventory: Inventory) -> dict[str, list[Any]]:
    """[dtype, shape, sha256 of the contiguous bytes] of each tensor."""
    answers = {}
    for name, info in inventory.tensors.items():
        data = read_tensor(inventory, name).contiguous().reshape(-1).view(torch.uint8)
        digest = hashlib.sha256(data.numpy().tobytes()).hexdigest()
        answers[name] = [info.dtype, list(info.shape), digest]
    return answers


def realigned_answer(out: Path) -> dict[str, Any]:
    """What stands in a realigned folder."""
    realigned = scan(out)
    return {
        "tensors": digests(realigned),
        "fingerprint": realigned.fingerprint,
        "config": json.loads((out / "config.json").read_text(encoding="utf-8")),
        "files": sorted(path.name for path in out.iterdir()),
    }


def use_of(axis: str, other: int, tokens: int, dtype: str, ranks: int = 1) -> Use:
    sides = {axis: Side(0, 1, ranks)}
    n, k = sides.get("N", Side(other)), sides.get("K", Side(other))
    return Use(Gemm("w", other, other), n, k, tokens, dtype)


def verdicts_answer(rules: Rules, key: str, count: int) -> str:
    """A letter a size, by a key ``gpu|dtype|M=…|axis`` with perhaps ``N=…|first-last``."""
    _, dtype, tokens, axis, *rest = key.split("|")
    other, first = 4096, 1
    if rest:
        other, first = int(rest[0].removeprefix("N=")), int(rest[1].split("-")[0])
    use = use_of(axis, other, int(tokens.removeprefix("M=")), dtype)
    return "".join(LETTERS[v.verdict] for v in rules.judge([use], range(first, first + count)))


def is_verdict_frozen(key: str) -> bool:
    """Int8 with few rows aside: those who serve it pad the rows that torch._int_mm refuses. One row
    aside, too: an A100 runs gemv kernels there, which have no tiers."""
    _, dtype, tokens, *axis = key.split("|")
    return bool(axis) and tokens != "M=1" and (dtype != "int8" or tokens == "M=1024")


def name_answer(name: str) -> dict[str, Any]:
    """All that a kernel's name says, but its layout, which was not read when these were frozen."""
    kernel = parse(name)
    said = {key: value for key, value in asdict(kernel).items() if value not in (None, False)}
    said["mechanism"] = kernel.mechanism
    said.pop("layout", None)
    del said["name"]
    answer: dict[str, Any] = json.loads(json.dumps(said))
    return answer

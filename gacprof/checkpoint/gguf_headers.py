"""GGUF, llama.cpp's format: what a file's header says, in the names and words of transformers.

The header is read by the ``gguf`` package. Tensors keep no offset here: a quantised block is no
plain array, and some weights are stored permuted, so their values come through transformers'
reader only (:mod:`gacprof.checkpoint.load`), dequantised. Dims need no values.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from gacprof.checkpoint.folder import Folder, LocalFolder
from gacprof.checkpoint.inventory import Contents, TensorInfo
from gacprof.core.dtypes import BY_CODE, FLOATING
from gacprof.core.errors import CheckpointError, first_line

SUFFIX = ".gguf"

DEQUANTISED = "float32"
"""What transformers' reader makes of a quantised block unless it is told otherwise."""

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    **{f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"},
    "attn_output": "self_attn.o_proj",
    **{f"attn_{x}_norm": f"self_attn.{x}_norm" for x in "qk"},
    "ffn_norm": "post_attention_layernorm",
    **{f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")},
}
"""GGUF's names of a decoder's tensors and those of Llama, Mistral, Qwen 2 and Qwen 3 in
transformers. The tensors of other families keep their names."""

_CONFIG = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
"""Keys of the header behind ``{architecture}.``, and transformers' words for them."""


def gguf_in(path: Path) -> Path | None:
    """The GGUF file that ``path`` is, or the only one in that folder; None where there is none."""
    if path.is_file():
        return path if path.suffix == SUFFIX else None
    files = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else []
    return files[0] if len(files) == 1 else None


def read_gguf(folder: Folder, name: str) -> Contents:
    """The tensors and the config of one file, from its header. Raises :class:`CheckpointError`."""
    where = f"{folder.location}/{name}"
    if not isinstance(folder, LocalFolder):
        raise CheckpointError(f"{where}: a GGUF file is not read from a hub; download it first")
    path = folder.path / name
    stat = path.stat()
    return _read(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=4)
def _read(path: Path, size: int, changed_ns: int) -> Contents:
    """Parsing a vocabulary takes a second, and several verbs scan a file more than once."""
    reader = _reader(path)
    fields = reader.fields
    architecture = _value(fields, "general.architecture", path)
    if architecture is None:
        raise CheckpointError(f"{path}: its header has no general.architecture")
    parts = _value(fields, "split.count", path)
    if isinstance(parts, int) and parts > 1:
        raise CheckpointError(
            f"{path}: one of {parts} parts; merge them first (llama-gguf-split --merge)"
        )
    kinds = {tensor.name: tensor.tensor_type.name for tensor in reader.tensors}
    tensors = {}
    for tensor in reader.tensors:
        shape = tuple(int(n) for n in reversed(tensor.shape))  # GGUF has the fastest axis first
        dtype = _stored_type(kinds[tensor.name]) or DEQUANTISED
        full = transformers_name(tensor.name)
        tensors[full] = TensorInfo(full, shape, dtype, path.name, None, int(tensor.n_bytes))
    config = _config(fields, str(architecture), tensors, path)
    return Contents(tensors, config, container="gguf", notes=tuple(_notes(kinds.values())))


def _reader(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ImportError:
        raise CheckpointError(
            f"{path}: reading GGUF needs two packages: pip install 'gacprof[gguf]'"
        ) from None
    try:
        return GGUFReader(path)
    except Exception as error:  # whatever a broken header makes of the library
        raise CheckpointError(f"{path}: not a GGUF file, or broken: {first_line(error)}") from None


def _stored_type(kind: str) -> str | None:
    """torch's name of a GGUF type that is no block of quantised values: those are safetensors'."""
    return BY_CODE[kind].name if kind in BY_CODE else None


def transformers_name(name: str) -> str:
    """``blk.3.attn_q.weight`` → ``model.layers.3.self_attn.q_proj.weight``."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if match is None or match[2] not in NAMES:
        return name
    layer = f"model.layers.{match[1]}." if match[1] else ""
    return f"{layer}{NAMES[match[2]]}.{match[3]}"


def _config(
    fields: Mapping[str, Any], architecture: str, tensors: Mapping[str, TensorInfo], path: Path
) -> dict[str, Any]:
    """What transformers would write into config.json, as far as dims and loading need it."""
    said = {w: _value(fields, f"{architecture}.{k}", path) for k, w in _CONFIG.items()}
    config = {"model_type": architecture} | {w: v for w, v in said.items() if v is not None}
    embedding = tensors.get("model.embed_tokens.weight")
    if embedding is not None:
        config.setdefault("vocab_size", embedding.shape[0])
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    return config


def _value(fields: Mapping[str, Any], key: str, path: Path) -> Any:
    """A header's value; None where it is missing."""
    try:
        return fields[key].contents() if key in fields else None
    except Exception as error:  # a value that contradicts its type
        raise CheckpointError(f"{path}: {key} is broken: {first_line(error)}") from None


def _notes(kinds: Iterable[str]) -> list[str]:
    counts = Counter(kind for kind in kinds if _stored_type(kind) not in FLOATING)
    if not counts:
        return []
    listed = ", ".join(f"{number} as {kind}" for kind, number in counts.most_common())
    return [
        f"of {sum(counts.values())} quantised tensors ({listed}) the values are dequantised: what "
        f"is computed has lost what the quantisation lost"
    ]

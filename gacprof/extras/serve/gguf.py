"""A GGUF file for llama.cpp: architecture ``llama``, or ``deci`` where layers differ.

Queries and keys are permuted from transformers' halves to llama.cpp's neighbouring pairs, as its
own converter does. Vectors stay F32; of quantised types the rows of every matrix are cut into
blocks of 32, which the sizes must divide into. The ``gguf`` package packs and quantises.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import gacprof
from gacprof.checkpoint import open_tensors
from gacprof.checkpoint.gguf_headers import NAMES
from gacprof.checkpoint.inventory import Inventory
from gacprof.core import Progress, factors
from gacprof.core.errors import CheckpointError
from gacprof.core.files import sync
from gacprof.extras.serve.checking import check_in_llama_cpp, prompt_of, reference
from gacprof.extras.serve.decoder import Decoder, read_decoder
from gacprof.extras.serve.folder import EXPORTED, NO_TOKENIZER
from gacprof.extras.serve.request import Check, Export, ExportRequest, Written
from gacprof.extras.serve.tokenizer import Vocabulary, read_tokenizer
from gacprof.resizing.output import write_provenance
from gacprof.resizing.workspace import digest, require_space, workspace


class Type(NamedTuple):
    """An element type: its number in ``general.file_type`` (llama.h, llama_ftype), the bytes an
    element takes, and torch's name. Quantised ones have none, and a 2-byte scale for every 32."""

    number: int
    nbytes: float
    stored: str = ""


TYPES = {
    "f32": Type(0, 4, "float32"),
    "f16": Type(1, 2, "float16"),
    "bf16": Type(32, 2, "bfloat16"),
    "q8_0": Type(7, 34 / 32),
    "q4_0": Type(2, 18 / 32),
}

BLOCK = 32
"""Elements that share a scale in Q8_0 and Q4_0 (ggml-common.h, QK8_0 and QK4_0)."""

ROWS_AT_ONCE = 1 << 22
"""Elements converted at a time: 32 MB in float64."""

_GGUF = {ours: theirs for theirs, ours in NAMES.items()}


@dataclass(frozen=True, kw_only=True)
class GgufExport(Export):
    """A GGUF file whose matrices are of the element type ``kind``. Without a tokenizer it has no
    vocabulary."""

    decoder: Decoder
    kind: str
    vocabulary: Vocabulary | None

    @property
    def file(self) -> str:
        return f"model-{self.kind}.gguf"

    def write(self, out: Path, progress: Progress | None) -> Written:
        total = sum(self._nbytes(stored) for stored in self.decoder.names)
        with workspace(out, digest([gacprof.__version__, self.kind])) as folder:
            require_space(folder, total)
            self._write(folder / self.file, total, progress)
            sync(folder / self.file)
            write_provenance(folder, self.inventory, EXPORTED, to="gguf")
        parameters = sum(self.inventory.tensors[name].numel for name in self.decoder.names)
        notes = () if self.vocabulary else (NO_TOKENIZER,)
        return Written((self.file,), parameters, (out / self.file).stat().st_size, notes)

    def run(self, out: Path, progress: Progress | None) -> Check:
        """Every tensor is read back too: of a quantised file tokens alone would say little."""
        back, file = self.compare(out), out / self.file
        prompt = prompt_of(self.tokenizer, int(self.decoder.config["vocab_size"]))
        ours = reference(self.inventory.path, prompt, progress)
        check = check_in_llama_cpp(ours, file, self.kind == "f32")
        return replace(check, tensors=back.tensors)

    def _write(self, path: Path, total: int, progress: Progress | None) -> None:
        import gguf

        writer = gguf.GGUFWriter(path, architecture(self.decoder))
        _add_metadata(writer, self.decoder, self.kind)
        if self.vocabulary is not None:
            self.vocabulary.add_to(writer)
        else:
            writer.add_tokenizer_model("no_vocab")
        extra = _rope_factors(self.decoder)
        if extra is not None:
            writer.add_tensor("rope_freqs.weight", extra)
        for stored, name in self.decoder.names.items():
            info = self.inventory.tensors[stored]
            kind = gguf.GGMLQuantizationType[self._kind(stored).upper()]
            nbytes = self._nbytes(stored)
            writer.add_tensor_info(
                gguf_name(name), info.shape, np.dtype(np.float32), nbytes, raw_dtype=kind
            )
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        if extra is not None:
            writer.write_tensor_data(extra)
        done = 0
        for stored in self.decoder.names:
            writer.write_tensor_data(self._converted(stored))
            done += self._nbytes(stored)
            if progress is not None:
                progress(done, total, "bytes of weights")
        writer.close()

    def compare(self, out: Path) -> Check:
        import gguf

        path = out / self.file
        reader = gguf.GGUFReader(path)
        found = {tensor.name: tensor for tensor in reader.tensors}
        for stored, name in self.decoder.names.items():
            there, info = found.get(gguf_name(name)), self.inventory.tensors[stored]
            if there is None or tuple(int(n) for n in there.shape) != info.shape[::-1]:
                raise CheckpointError(f"{path}: {gguf_name(name)} is not as it was written")
            values = np.ascontiguousarray(there.data).reshape(-1).view(np.uint8)
            if not np.array_equal(values, self._converted(stored).reshape(-1).view(np.uint8)):
                raise CheckpointError(f"{path}: {gguf_name(name)} holds other values than written")
        return Check(True, len(found))

    def _kind(self, stored: str) -> str:
        """The type of one tensor: vectors stay F32, as llama.cpp's converter has them."""
        return self.kind if len(self.inventory.tensors[stored].shape) == 2 else "f32"

    def _nbytes(self, stored: str) -> int:
        numel = self.inventory.tensors[stored].numel
        return int(numel * TYPES[self._kind(stored)].nbytes)

    def _converted(self, stored: str) -> NDArray[Any]:
        """The tensor in its type, permuted where it has to be."""
        import gguf

        reader = open_tensors(self.inventory)
        values, dtype = reader.read(stored), reader.info(stored).dtype
        heads = _heads_of(self.decoder, stored)
        if heads:
            values = pairs_from_halves(values, heads)
        kind = self._kind(stored)
        narrow = TYPES[kind].stored
        if narrow == dtype:
            return np.ascontiguousarray(values)
        blocks = []
        step = max(1, ROWS_AT_ONCE // max(1, values[:1].size))
        for start in range(0, len(values), step):
            wide = factors.widen(np.ascontiguousarray(values[start : start + step]), dtype)
            if narrow:
                blocks.append(factors.narrow(wide, narrow))
            else:
                type_ = gguf.GGMLQuantizationType[kind.upper()]
                blocks.append(gguf.quants.quantize(wide.astype(np.float32), type_))
        return np.concatenate(blocks)


def prepare(inventory: Inventory, request: ExportRequest) -> GgufExport:
    """A GGUF file. Raises :class:`CheckpointError` for what llama.cpp's Llama cannot compute."""
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise CheckpointError(
            "writing GGUF needs the gguf package: pip install 'gacprof[gguf]'"
        ) from None
    kind = (request.type or "f16").lower()
    if kind not in TYPES:
        raise CheckpointError(f"--type {request.type}: write {', '.join(TYPES)}")
    decoder = read_decoder(inventory)
    decoder.refuse_factors("a GGUF file")
    reason, (rope, _) = decoder.beyond("llama.cpp's Llama"), decoder.rope
    if rope not in ("default", "linear", "llama3"):
        reason = reason or f"its RoPE is scaled by '{rope}', only linear and llama3 are written"
    if reason:
        raise CheckpointError(f"{decoder.path}: {reason}: export --to transformers")
    if not TYPES[kind].stored:
        _refuse_blocks(decoder, kind)
    size, tokenizer = int(decoder.config["vocab_size"]), request.tokenizer_folder(inventory)
    vocabulary = read_tokenizer(tokenizer, size, request.tokenizer_pre)
    return GgufExport(
        inventory=inventory,
        decoder=decoder,
        kind=kind,
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        serve=f"llama-server -m {{out}}/model-{kind}.gguf",
        engine="xllamacpp",
        no_engine="" if vocabulary else "llama.cpp does not serve a file without a vocabulary",
    )


def _refuse_blocks(decoder: Decoder, kind: str) -> None:
    """Raise :class:`CheckpointError` for a matrix whose rows do not divide into blocks."""
    for stored, name in decoder.names.items():
        shape = decoder.inventory.tensors[stored].shape
        if len(shape) == 2 and shape[1] % BLOCK:
            raise CheckpointError(
                f"{decoder.path}: {name.removesuffix('.weight')} has rows of {shape[1]}, and "
                f"{kind} packs {BLOCK} entries a block: realign its widths to multiples of {BLOCK} "
                "first, or write --type f16"
            )


def architecture(decoder: Decoder) -> str:
    """``deci`` keeps widths and heads per layer, ``llama`` has one of each."""
    return "llama" if decoder.has_equal_heads and len(set(decoder.widths)) == 1 else "deci"


def gguf_name(name: str) -> str:
    """A Llama's tensor name as llama.cpp looks for it."""
    module, _, kind = name.rpartition(".")
    if module in _GGUF:
        return f"{_GGUF[module]}.{kind}"
    _, _, layer, part = module.split(".", 3)
    return f"blk.{layer}.{_GGUF[part]}.{kind}"


def pairs_from_halves(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows (or a bias) of queries or keys: entry i beside entry i + d/2 of every head.

    transformers rotates those two by the same angle; llama.cpp's Llama rotates neighbours.
    """
    half = len(values) // heads // 2
    turned = values.reshape(heads, 2, half, *values.shape[1:]).swapaxes(1, 2)
    return turned.reshape(values.shape)


def _heads_of(decoder: Decoder, stored: str) -> int:
    """The heads whose rows have to be permuted; 0 for all tensors but queries' and keys'."""
    name = decoder.names[stored]
    if not name.startswith("model.layers."):
        return 0
    attention = decoder.attentions[int(name.split(".")[2])]
    if ".self_attn.q_proj." in name:
        return attention.heads
    return attention.kv_heads if ".self_attn.k_proj." in name else 0


def _add_metadata(writer: Any, decoder: Decoder, kind: str) -> None:
    config = decoder.config
    heads = [a.heads for a in decoder.attentions]
    kv_heads = [a.kv_heads for a in decoder.attentions]
    is_plain = architecture(decoder) == "llama"
    writer.add_name(Path(decoder.path).name or "model")
    writer.add_file_type(TYPES[kind].number)
    writer.add_quantization_version(2)  # ggml.h, GGML_QNT_VERSION
    writer.add_block_count(len(decoder.widths))
    writer.add_context_length(int(config.get("max_position_embeddings", 2048)))
    writer.add_embedding_length(int(config["hidden_size"]))
    writer.add_feed_forward_length(decoder.widths[0] if is_plain else list(decoder.widths))
    writer.add_head_count(heads[0] if is_plain else heads)
    writer.add_head_count_kv(kv_heads[0] if is_plain else kv_heads)
    writer.add_key_length(decoder.head_dim)
    writer.add_value_length(decoder.head_dim)
    writer.add_rope_dimension_count(decoder.head_dim)
    writer.add_rope_freq_base(float(config["rope_theta"]))
    writer.add_layer_norm_rms_eps(float(config.get("rms_norm_eps", 1e-6)))
    writer.add_vocab_size(int(config["vocab_size"]))
    rope, scaling = decoder.rope
    if rope == "linear":
        from gguf import RopeScalingType

        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(scaling["factor"]))


def _rope_factors(decoder: Decoder) -> NDArray[np.float32] | None:
    """What Llama 3.1's scaling divides every frequency by [head_dim/2]; None without it.

    Wavelengths above old/low are stretched by ``factor``, those below old/high stay, and between
    them the two are blended (transformers, modeling_rope_utils.py, llama3).
    """
    rope, scaling = decoder.rope
    if rope != "llama3":
        return None
    dim, factor = decoder.head_dim, float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    old = float(scaling["original_max_position_embeddings"])
    exponents = np.arange(0, dim, 2, dtype=np.float64) / dim
    wavelengths = 2 * math.pi * float(decoder.config["rope_theta"]) ** exponents
    blend = np.clip((old / wavelengths - low) / (high - low), 0.0, 1.0)
    return (1 / ((1 - blend) / factor + blend)).astype(np.float32)

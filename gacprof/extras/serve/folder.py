"""Hugging Face folders: renamed weights, config, code, tokenizer; and the same read back.

``AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True)`` loads the one with model code
of its own without gacprof: factor pairs, widths and heads layer by layer. Its base model is a
subclass of transformers' own, so that vLLM's and SGLang's Transformers backends take it too; those
have one head count for all layers. The plain one has every layer padded to the same width and a
config for every server.

The bytes come from gacprof.resizing: streamed tensor by tensor, padded with zeros where a format
asks for it, into a hidden folder that is renamed when all is written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import getsource
from pathlib import Path
from typing import Any

import numpy as np

import gacprof
from gacprof.checkpoint import mirrored_files, open_tensors, scan
from gacprof.checkpoint.config import refuse_oversized, without_heads
from gacprof.checkpoint.inventory import Inventory, NewSizes
from gacprof.core import Progress
from gacprof.core.errors import CheckpointError
from gacprof.core.files import write_json, write_text
from gacprof.extras.serve.carried import carried_config, carried_files, write_carried
from gacprof.extras.serve.checking import check_in_transformers, prompt_of, reference
from gacprof.extras.serve.decoder import FAMILIES, Decoder, read_decoder
from gacprof.extras.serve.request import Check, Export, ExportRequest, Written
from gacprof.planning.costs import footprint
from gacprof.resizing.changes import NewTensor, new_checkpoint
from gacprof.resizing.output import notes_on, weights_files, write_provenance
from gacprof.resizing.sizes import Uniform
from gacprof.resizing.values import Resizer
from gacprof.resizing.workspace import digest, source_identity, workspace
from gacprof.resizing.writers import INDEX, index_of, write_weights

NO_TOKENIZER = (
    "no tokenizer was found beside the weights: engines take token ids only; give --tokenizer DIR"
)
EXPORTED = "gacprof.exported/1"
"""Schema of the record that lies beside an export."""
_ONE_DEVICE = "heads are factored in groups, which are not split: serve it on one device"


@dataclass(frozen=True, kw_only=True)
class FolderExport(Export):
    """A folder to be written: stored tensors under new ``names``, some dims padded (``sizes``).
    ``code`` maps a file's name to its text, ``tokenizer`` is the folder to take the tokenizer's
    files from."""

    to: str
    names: Mapping[str, str]
    config: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    sizes: NewSizes = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @cached_property
    def _resizer(self) -> Resizer:
        reader = open_tensors(self.inventory)
        return Resizer(reader, new_checkpoint(self.inventory, self.sizes))

    @cached_property
    def _tensors(self) -> dict[str, NewTensor]:
        made = self._resizer.new.tensors
        return {new: replace(made[old], name=new) for old, new in self.names.items()}

    def write(self, out: Path, progress: Progress | None) -> Written:
        files = weights_files(self.inventory, self._tensors, named_anew=True)
        used = {info.file for info in self.inventory.tensors.values()}
        source = source_identity(self.inventory, used)
        key = digest([gacprof.__version__, self.to, source, dict(self.config)])
        with workspace(out, key) as folder:
            write_weights(folder, files, self._resizer, progress)
            if len(files) > 1:
                write_json(folder / INDEX, index_of(files))
            for name, text in self.code.items():
                write_text(folder / name, text)
            write_json(folder / "config.json", dict(self.config))
            carried = carried_files(Path(self.inventory.folder), self.tokenizer)
            copied = write_carried(carried, folder)
            write_provenance(folder, self.inventory, EXPORTED, to=self.to)
        notes = self.notes
        if not any(name.startswith("tokenizer") for name in copied):
            notes = (*notes, NO_TOKENIZER)
        if any(module.kind == "grouped" for module in self.inventory.modules):
            notes = (*notes, _ONE_DEVICE)
        names = (*(file.name for file in files), "config.json", *self.code, *copied)
        parameters = sum(math.prod(tensor.shape) for tensor in self._tensors.values())
        return Written(names, parameters, sum(file.nbytes for file in files), notes)

    def run(self, out: Path, progress: Progress | None) -> Check:
        tables = [m.in_features for m in self.inventory.modules if m.kind == "embedding"]
        prompt = prompt_of(self.tokenizer, min(tables, default=1))
        ours = reference(self.inventory.path, prompt, progress)
        return check_in_transformers(ours, out, own_code=bool(self.code))

    def compare(self, out: Path) -> Check:
        reader = open_tensors(scan(out))
        for tensor in self._tensors.values():
            stored, at = reader.read(tensor.name), 0
            if stored.shape != tensor.shape or reader.info(tensor.name).dtype != tensor.dtype:
                raise CheckpointError(f"{out}: {tensor.name} has not the shape that was written")
            for block in self._resizer.blocks(tensor):
                if not np.array_equal(_bits(stored[at : at + len(block)]), _bits(block)):
                    raise CheckpointError(f"{out}: {tensor.name} has other values than written")
                at += len(block)
        return Check(True, len(self.names))


def _bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """As unsigned integers, so that NaN equals itself."""
    return np.ascontiguousarray(values).view(f"u{values.itemsize}")


def remote_code(name: str, **words: str) -> str:
    """The text of a template of this package with ``words`` replaced (``Llama="Qwen2"``), and what
    it imports of gacprof written out."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    imported = f"from {without_heads.__module__} import without_heads\n"
    text = text.replace(imported, f"\n{getsource(without_heads)}")
    for word, other in words.items():
        text = text.replace(word, other)
    return text


MODULE = "modeling_gacprof"


def prepare(inventory: Inventory, request: ExportRequest) -> FolderExport:
    """A folder for transformers. Raises :class:`CheckpointError` for a bias its class lacks."""
    serve = "AutoModelForCausalLM.from_pretrained('{out}', trust_remote_code=True)"
    return with_code("transformers", serve, read_decoder(inventory), request)


def with_code(to: str, serve: str, decoder: Decoder, request: ExportRequest) -> FolderExport:
    """The folder with the model's own code."""
    for module in decoder.factored:
        expected = _bias_of(decoder, module.name)
        has = any(gemm.bias for gemm in module.gemms)
        if has != expected:
            raise CheckpointError(
                f"{decoder.path}: {module.name} is stored {'with' if has else 'without'} a "
                f"bias, a {decoder.family} computes {'without' if has else 'with'} one"
            )
    words = {"Llama": FAMILIES[decoder.family], "llama": decoder.family}
    return FolderExport(
        to=to,
        serve=serve,
        inventory=decoder.inventory,
        names=decoder.names,
        config=_config(decoder),
        code={f"{MODULE}.py": remote_code("remote_llama.py", **words)},
        tokenizer=request.tokenizer_folder(decoder.inventory),
    )


def _bias_of(decoder: Decoder, module: str) -> bool:
    """Whether transformers' class has a bias there."""
    part = module.rsplit(".", 1)[-1]
    if part == "lm_head" or decoder.family == "mistral":
        return False
    if decoder.family == "qwen2":
        return part in ("q_proj", "k_proj", "v_proj")
    key = "mlp_bias" if part in ("gate_proj", "up_proj", "down_proj") else "attention_bias"
    return bool(decoder.config.get(key, False))


def _config(decoder: Decoder) -> dict[str, Any]:
    family = FAMILIES[decoder.family]
    # transformers warns of a rope_scaling, None too
    config = {k: v for k, v in decoder.config.items() if (k, v) != ("rope_scaling", None)}
    kinds = {"AutoConfig": "Config", "AutoModel": "Model", "AutoModelForCausalLM": "ForCausalLM"}
    ranks = {m.name: [gemm.K for gemm in m.gemms[1:]] for m in decoder.factored}
    return config | {
        "model_type": f"gacprof_{decoder.family}",
        "architectures": [f"Gacprof{family}ForCausalLM"],
        "auto_map": {auto: f"{MODULE}.Gacprof{family}{kind}" for auto, kind in kinds.items()},
        "factor_ranks": {name: r[0] if len(r) == 1 else r for name, r in ranks.items()},
        "layer_widths": list(decoder.widths),
        "layer_heads": [[a.heads, a.kv_heads] for a in decoder.attentions],
    }


def prepare_uniform(inventory: Inventory, request: ExportRequest) -> FolderExport:
    """A plain folder, as ``gacprof realign --uniform`` writes it. Raises :class:`CheckpointError`
    where no plain config describes it."""
    refuse_oversized(inventory.config, inventory)
    chosen = Uniform().request(inventory)
    mirrored = mirrored_files(inventory, chosen.sizes)
    before, after = inventory.parameters, footprint(inventory, chosen.sizes).parameters
    cost = f"padding cost {after - before:,} parameters ({after / before - 1:+.1%})"
    return FolderExport(
        to="uniform",
        serve="vllm serve {out}",
        inventory=inventory,
        names={name: name for name in inventory.tensors},
        config=carried_config(mirrored.get("config.json", {}), inventory.path),
        sizes=chosen.sizes,
        tokenizer=request.tokenizer_folder(inventory),
        notes=(cost, *chosen.notes, *notes_on(inventory, chosen.sizes, mirrored)),
    )

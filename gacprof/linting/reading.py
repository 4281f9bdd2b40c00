"""Where a config is read from: a file, a folder with or without weights, the hub, a dict.

Of weights only headers are read. They fill in what a config leaves out, and widths that differ
from layer to layer are judged each.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gacprof.core.errors import CheckpointError, LintError
from gacprof.demands.configs import Config, config_of

if TYPE_CHECKING:
    from gacprof.checkpoint.folder import Folder

CONFIGS = ("config.json", "adapter_config.json", "params.json")


@dataclass(frozen=True)
class NamedConfig:
    """A config with the name of where it is from, and what was noticed while it was read."""

    name: str
    config: Config
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.config.whole:
            raise LintError(f"{self.name}: the config is empty: there is nothing to judge")


def config_named(source: str | Path | Mapping[str, Any]) -> NamedConfig:
    """Raises :class:`CheckpointError` for a source that cannot be read, in one line."""
    if isinstance(source, Mapping):
        return NamedConfig("config", config_of(source))
    from gacprof.checkpoint import folder as folders

    path = Path(source)
    if path.is_dir():
        return _of_folder(folders.LocalFolder(path), str(source))
    if path.is_file():
        if path.suffix == ".safetensors":
            return _of_folder(folders.LocalFolder(path.parent), str(source))
        where = folders.LocalFolder(path.parent, path.name)
        return NamedConfig(
            str(source), config_of(folders.json_object(where, path.name, constants=True))
        )
    if path.exists():
        raise CheckpointError(
            f"{source}: is no regular file: give a config.json or a folder with one"
        )
    if folders.is_hub_id(str(source)) and not str(source).endswith(".json"):
        return _of_folder(folders.HubFolder(str(source)), str(source), headers=False)
    raise CheckpointError(f"{source}: there is no such file or folder")


def is_config(source: str | Path) -> bool:
    """Whether it is a config's file, or a folder that has a config and no weights."""
    from gacprof.checkpoint.containers import WEIGHTS

    path = Path(source)
    if path.is_file():
        return path.suffix == ".json" and not path.name.endswith(".index.json")
    if not path.is_dir() or not any((path / name).is_file() for name in CONFIGS):
        return False
    return not any(one.name.endswith(WEIGHTS) for one in path.iterdir())


def _of_folder(folder: Folder, name: str, headers: bool = True) -> NamedConfig:
    from gacprof.checkpoint.folder import json_object

    there = folder.names()
    found = next((one for one in CONFIGS if one in there), None)
    if found is None:
        raise CheckpointError(f"{name}: has no config.json: give one, or a folder with one")
    values = json_object(folder, found, constants=True)
    if "quantization_config" not in values and "hf_quant_config.json" in there:
        values = {**values, "quantization_config": json_object(folder, "hf_quant_config.json")}
        values["quantization_config"].setdefault("quant_method", "modelopt")
    named = NamedConfig(name, config_of(values))
    if headers and any(one.endswith((".safetensors", ".safetensors.index.json")) for one in there):
        return _with_headers(named, folder)
    return named


def _with_headers(named: NamedConfig, folder: Folder) -> NamedConfig:
    """With what the weights' headers say, where there are any."""
    from gacprof.checkpoint.containers import find_container, read_container

    try:
        tensors = read_container(folder, find_container(folder)).tensors
    except CheckpointError as error:
        return replace(named, notes=(*named.notes, f"headers are not used: {error}"))
    shapes = {name: one.shape for name, one in tensors.items() if one.dtype in PLAIN}
    factor = next(filter(FACTOR.search, sorted(shapes)), None)
    if factor is not None:
        raise LintError(
            f"{named.name}: its weights are factor pairs ({factor}), whose sizes its config does "
            "not say; 'gacprof diagnose' judges them (--gpu, --tp), and lint a config.json alone"
        )
    return replace(named, config=with_shapes(named.config, shapes))


FACTOR = re.compile(r"_proj\.(?!lora_|base_layer)\w+\.weight$|_[uv]_proj\.weight$")
"""Names of low-rank factors: q_proj.ALinear.weight (ASVD), k_proj.VT.weight (PaLU), q_u_proj.weight
(SVD-LLM)."""

PLAIN = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Element types of weights that are stored in their own shape: 4-bit ones are packed."""


def with_shapes(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> Config:
    """A config with what plain weights' shapes say: sizes that it leaves out, and the widths of
    MLPs where they differ from layer to layer."""
    found: dict[str, int] = {}
    widths: Counter[int] = Counter()
    for name, shape in shapes.items():
        if len(shape) != 2:
            continue
        if name.endswith("embed_tokens.weight"):
            found |= {"vocab_size": shape[0], "hidden_size": shape[1]}
        elif name.endswith(".mlp.down_proj.weight"):
            widths[shape[1]] += 1
    if len(widths) == 1:
        found["intermediate_size"] = next(iter(widths))
    new = {key: value for key, value in found.items() if config.get(key) is None}
    ragged = tuple(sorted(widths.items())) if len(widths) > 1 else config.widths
    return replace(config, values={**config.values, **new}, widths=ragged)

"""What an export carries of a foreign checkpoint: settings and files, by allow-list.

A config can name code: ``attn_implementation: "org/kernel"`` is fetched from a hub and run, and a
tokenizer's ``auto_map`` names a class to import. Users load an exported folder with
``trust_remote_code=True``, because it brings our code. So nothing that a source says reaches it
but numbers, tokens, and plain words under keys that are known to take one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gacprof.checkpoint.config import passed, refuse_not_finite, require_transformers
from gacprof.checkpoint.folder import LocalFolder, json_object
from gacprof.checkpoint.scanning import TOKENIZER_FILES
from gacprof.core.dtypes import FLOATING
from gacprof.core.errors import CheckpointError
from gacprof.core.files import copy, write_json

TOKENIZER_SETTINGS = frozenset(
    (
        *("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token"),
        *("mask_token", "add_bos_token", "add_eos_token", "add_prefix_space", "legacy"),
        *("additional_special_tokens", "extra_special_tokens", "added_tokens_decoder"),
        *("chat_template", "clean_up_tokenization_spaces", "split_special_tokens", "errors"),
        *("spaces_between_special_tokens", "padding_side", "truncation_side", "trim_offsets"),
        *("use_default_system_prompt", "model_input_names", "do_lower_case", "sp_model_kwargs"),
        *("tokenizer_class", "model_max_length", "fuse_unk", "byte_fallback", "image_token"),
    )
)
"""Keys of a tokenizer_config.json that are tokens, templates and switches (transformers,
tokenization_utils_base.py). What names a class to import, a file or a hub is not among them."""

_WHOLE, _NUMBER, _SWITCH, _IDS = (int,), (int, float), (bool,), (int, list)
DECODER_SETTINGS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("num_hidden_layers", "max_position_embeddings", "sliding_window"), _WHOLE),
    **dict.fromkeys(("max_window_layers", "pad_token_id", "bos_token_id"), _WHOLE),
    **dict.fromkeys(("rms_norm_eps", "initializer_range", "attention_dropout"), _NUMBER),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_sliding_window", "use_cache"), _SWITCH),
    **{"eos_token_id": _IDS, "hidden_act": (str,), "layer_types": (list,), "model_type": (str,)},
}
"""Keys of a Llama-like decoder's config.json with their types (transformers: configuration_llama.py
and those of Mistral, Qwen 2 and Qwen 3), but for RoPE and the sizes that the tensors say."""

_LICENCES = ("LICENSE*", "NOTICE*")
_WORD = re.compile(r"[A-Za-z]\w{0,99}")


def decoder_settings(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The :data:`DECODER_SETTINGS` that a config has. Raises :class:`CheckpointError` for one that
    is of another type."""
    found = {key: config[key] for key in DECODER_SETTINGS if key in config}
    for key, value in found.items():
        refuse_unless(value is None or _is(DECODER_SETTINGS[key], value), path, key, value)
    return found


def rope_scaling(scaling: Any, path: str) -> dict[str, Any]:
    """A RoPE's scaling: numbers, lists of them, and a word for its kind. Raises
    :class:`CheckpointError` for anything else."""
    refuse_unless(isinstance(scaling, Mapping), path, "rope_scaling", scaling)
    for key, value in scaling.items():
        harmless = _is((str,), value) if key in ("rope_type", "type") else _is_numeric(value)
        refuse_unless(harmless, path, f"rope_scaling's {key[:40]}", value)
    return dict(scaling)


def refuse_unless(fine: bool, path: str, key: str, value: object) -> None:
    """Raise :class:`CheckpointError` naming a setting, unless it is ``fine``."""
    if not fine:
        raise CheckpointError(
            f"{path}: its config.json says {key} is {str(value)[:40]!r}, which no decoder takes: "
            "mend the config"
        )


def _is(kinds: tuple[type, ...], value: Any) -> bool:
    if isinstance(value, list):
        words = kinds == (list,)
        return list in kinds and all(_is((str,) if words else (int,), one) for one in value)
    if isinstance(value, str):
        return str in kinds and _WORD.fullmatch(value) is not None
    return type(value) in kinds and math.isfinite(value)


def carried_config(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    """What of a ``config.json`` another loader may see.

    Raises :class:`CheckpointError` for a model type that this transformers does not have: only its
    config class says which words are settings.
    """
    version = require_transformers().__version__
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise CheckpointError(
            f"{path}: its config.json names the model type {str(kind)[:40]!r}, which transformers "
            f"{version} does not have: what the settings mean is not known"
        )
    refuse_not_finite(config, path)
    found = passed(config, CONFIG_MAPPING[kind])
    dtype = config.get("torch_dtype", config.get("dtype"))
    return found | ({"torch_dtype": dtype} if dtype in FLOATING else {})


def matching(folder: Path, patterns: Sequence[str]) -> list[str]:
    """The files of these names in a folder; links that lead outside are left out."""
    local = LocalFolder(folder)
    found = [name for name in local.names() if any(fnmatch(name, p) for p in patterns)]
    return [name for name in found if local.holds(name)]


def carried_files(source: Path, tokenizer: Path) -> Iterator[tuple[str, Path | dict[str, Any]]]:
    """Licence and generation settings of the folder ``source``, and the tokenizer of another: by
    name the file to copy, or the content that is left of it. Links that lead outside are not
    followed.

    Raises :class:`CheckpointError` for settings that are no JSON object.
    """
    for name in matching(source, ("generation_config.json", *_LICENCES)):
        numbers = name.endswith(".json")
        yield name, _numeric(json_object(LocalFolder(source), name)) if numbers else source / name
    for name in matching(tokenizer, TOKENIZER_FILES):
        if name == "tokenizer_config.json":
            yield name, _tokenizer_settings(json_object(LocalFolder(tokenizer), name))
        elif ".py" not in name:
            yield name, tokenizer / name


def write_carried(found: Iterable[tuple[str, Path | dict[str, Any]]], folder: Path) -> list[str]:
    """Write what :func:`carried_files` found; returns the names."""
    names = []
    for name, content in found:
        names.append(name)
        if isinstance(content, Path):
            copy(content, folder / name)
        else:
            write_json(folder / name, content)
    return names


def _tokenizer_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: value for key, value in config.items() if key in TOKENIZER_SETTINGS}
    if not _WORD.fullmatch(str(found.get("tokenizer_class"))):
        found.pop("tokenizer_class", None)
    if type(found.get("model_max_length")) not in (int, float):
        found.pop("model_max_length", None)
    return found


def _numeric(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if _is_numeric(value)}


def _is_numeric(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_numeric, value))
    return value is None or (isinstance(value, bool | int | float) and math.isfinite(value))


@contextmanager
def tokenizer_alone(folder: Path) -> Iterator[Path]:
    """A folder that holds of ``folder`` what is carried of its tokenizer, and is removed
    afterwards."""
    with TemporaryDirectory(prefix="gacprof-") as made:
        write_carried(carried_files(Path(made), folder), Path(made))
        yield Path(made)


@contextmanager
def seen_by_loader(folder: Path) -> Iterator[Path]:
    """A folder in its place for loaders that read ``config.json`` themselves: the same weights, as
    links, and of the settings what is carried. It is removed afterwards."""
    config = carried_config(json_object(LocalFolder(folder), "config.json"), str(folder))
    with TemporaryDirectory(prefix="gacprof-") as made:
        for name in matching(folder, ("*.safetensors", "*.safetensors.index.json")):
            (Path(made) / name).symlink_to((folder / name).absolute())
        write_json(Path(made) / "config.json", config)
        yield Path(made)

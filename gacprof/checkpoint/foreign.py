"""A foreign checkpoint as other loaders may see it: its weights, and settings that name no code.

A config can name code: ``attn_implementation: "org/kernel"`` is fetched from a hub and run. So what
is handed on to transformers or an engine is an allow-list (:func:`.config.passed`), and links that
lead out of the folder are not followed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gacprof.checkpoint.config import passed, refuse_not_finite
from gacprof.checkpoint.folder import LocalFolder, parse_json
from gacprof.core.dtypes import FLOATING
from gacprof.core.errors import CheckpointError
from gacprof.core.files import read_bytes, write_json


def carried_config(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    """What of a ``config.json`` another loader may see.

    Raises :class:`CheckpointError` for a model type that this transformers does not have: only its
    config class says which words are settings.
    """
    from gacprof.checkpoint.skeleton import require_transformers

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


def json_object(path: Path) -> dict[str, Any]:
    """Raises :class:`CheckpointError` for a file that is no JSON object."""
    try:
        found: Any = parse_json(read_bytes(path), str(path))
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    return found


@contextmanager
def seen_by_loader(folder: Path) -> Iterator[Path]:
    """A folder in its place for loaders that read ``config.json`` themselves: the same weights, as
    links, and of the settings what is carried. It is removed afterwards."""
    config = carried_config(json_object(folder / "config.json"), str(folder))
    with TemporaryDirectory(prefix="gacprof-") as made:
        for name in matching(folder, ("*.safetensors", "*.safetensors.index.json")):
            (Path(made) / name).symlink_to((folder / name).absolute())
        write_json(Path(made) / "config.json", config)
        yield Path(made)

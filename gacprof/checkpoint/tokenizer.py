"""The tokenizer that a checkpoint brings, in its folder or inside a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gacprof.checkpoint.gguf_headers import gguf_in
from gacprof.checkpoint.skeleton import quiet, require_transformers
from gacprof.core.errors import CheckpointError, first_line


def tokenizer_beside(checkpoint: str | Path) -> Any | None:
    """The tokenizer in a checkpoint's folder or in a GGUF file; None where there is none.

    Raises :class:`CheckpointError` where one is there and cannot be loaded.
    """
    path = Path(checkpoint)
    folder = path if path.is_dir() else path.parent
    if any(folder.glob("tokenizer*")):
        return _load(folder)
    file = gguf_in(path)
    return None if file is None else _load(file.parent, gguf_file=file.name)


def _load(folder: Path, **more: str) -> Any:
    transformers = require_transformers()
    try:
        with quiet(transformers):
            return transformers.AutoTokenizer.from_pretrained(
                str(folder), local_files_only=True, trust_remote_code=False, **more
            )
    except Exception as error:  # a tokenizer file can be wrong in any way
        raise CheckpointError(
            f"{folder}: its tokenizer cannot be loaded: {first_line(error)}"
        ) from None

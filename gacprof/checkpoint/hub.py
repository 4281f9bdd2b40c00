"""Checkpoints on the Hugging Face hub, from their headers: nothing else is downloaded."""

from __future__ import annotations

from pathlib import Path

from gacprof.checkpoint.containers import read_json_object
from gacprof.checkpoint.inventory import Contents
from gacprof.checkpoint.safetensors import tensor_info
from gacprof.core.errors import CheckpointError


def read_hub(repository: str) -> Contents:
    """Return the tensors and the config of ``org/name`` or ``org/name@revision``.

    Raises :class:`CheckpointError` where the hub cannot be asked or has no safetensors there.
    """
    name, _, revision = repository.partition("@")
    try:
        from huggingface_hub import get_safetensors_metadata, hf_hub_download

        metadata = get_safetensors_metadata(name, revision=revision or None)
        config = hf_hub_download(name, "config.json", revision=revision or None)
    except ImportError:
        raise CheckpointError(
            f"{repository}: no such folder; the hub needs: pip install 'gacprof[hub]'"
        ) from None
    except Exception as error:  # whatever the library and its HTTP stack raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CheckpointError(f"{repository}: no such folder, and the hub says: {reason}") from None
    tensors = {}
    for file, header in metadata.files_metadata.items():
        for tensor, info in header.tensors.items():
            entry = {"dtype": info.dtype, "shape": info.shape, "data_offsets": info.data_offsets}
            tensors[tensor] = tensor_info(tensor, entry, file, 0)
    return Contents(tensors, read_json_object(Path(config)), container="safetensors")

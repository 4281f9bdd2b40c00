"""The model of a GGUF file: transformers reads it, every weight dequantised."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from gacprof.checkpoint.gguf_headers import gguf_in
from gacprof.checkpoint.skeleton import quiet, require_transformers
from gacprof.core.errors import CheckpointError, first_line

_FAULTS = ("missing_keys", "mismatched_keys", "unexpected_keys")


def load_gguf(path: Path, dtype: torch.dtype) -> nn.Module:
    """The model of a GGUF file, or of the only one in a folder, on the CPU.

    Raises :class:`CheckpointError` where transformers cannot read it, or a parameter would stay
    without its weights.
    """
    file = gguf_in(path)
    if file is None:
        raise CheckpointError(f"{path}: there is no single *.gguf file")
    transformers = require_transformers()
    # Newer versions keep the blocks where they have kernels for them.
    plain = getattr(transformers, "GgufConfig", None)
    more = {} if plain is None else {"quantization_config": plain(dequantize=True)}
    with quiet(transformers):
        try:
            model, report = transformers.AutoModelForCausalLM.from_pretrained(
                str(file.parent),
                gguf_file=file.name,
                torch_dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                **more,
            )
        except ImportError as error:
            raise CheckpointError(
                f"{file}: {first_line(error)}: pip install 'gacprof[gguf]'"
            ) from None
        except Exception as error:  # what a foreign file raises in transformers has no common type
            raise CheckpointError(
                f"{file}: transformers {transformers.__version__} cannot read it: "
                f"{first_line(error)}"
            ) from None
    faults = [f"{len(report[key])} {key.replace('_', ' ')}" for key in _FAULTS if report[key]]
    if faults:
        raise CheckpointError(f"{file}: does not fit {type(model).__name__}: {', '.join(faults)}")
    found: nn.Module = model
    return found

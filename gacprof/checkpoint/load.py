"""A checkpoint of any layout as a transformers model, every weight accounted for; its tokenizer.

No code that a checkpoint brings is run and nothing is unpickled by import: the model's class is
transformers' own, the tensors come through :mod:`gacprof.checkpoint.scanning`.

The model of a GGUF file: transformers reads it, every weight dequantised.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gacprof.checkpoint.config import require_transformers
from gacprof.checkpoint.folder import refuse_endless
from gacprof.checkpoint.gguf_headers import gguf_in
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.layouts.widths import STACKED
from gacprof.checkpoint.scanning import TensorReader, open_tensors, scan
from gacprof.checkpoint.skeleton import build_skeleton, quiet
from gacprof.core.dtypes import FLOATING, full_name
from gacprof.core.errors import CheckpointError, first_line

_DERIVED = {
    r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$": "computed from the config",
    r"\.(attn|attention)\.(bias|masked_bias)$": "a causal mask, made as needed",
    r"(^|\.)position_ids$": "a counter, made as needed",
}
"""Tensors that old checkpoints store and models make for themselves."""


@dataclass(frozen=True)
class Loaded:
    """``ignored`` names tensors of the file that the model does not take, with the reason."""

    model: nn.Module
    inventory: Inventory
    dtype: torch.dtype
    ignored: dict[str, str] = field(default_factory=dict)


def load_model(
    path: str | Path,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """The model of a checkpoint, in eval mode, factor pairs as modules, per-layer widths right.

    ``dtype`` defaults to the stored one, the widest where several are stored. Raises
    :class:`CheckpointError` where a parameter would stay without its weights, a tensor would
    stay unused, or transformers is missing.
    """
    return load(path, dtype, device).model


def load(
    path: str | Path,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str = "cpu",
) -> Loaded:
    """As :func:`load_model`, with what was ignored and the dtype chosen."""
    require_transformers()
    inventory = scan(path)
    _refuse_packed(inventory)
    chosen = dtype_of(dtype) if dtype is not None else stored_dtype(inventory)
    where = torch.device(device)
    if inventory.container == "gguf":
        return Loaded(_placed(load_gguf(Path(inventory.path), chosen), where), inventory, chosen)
    reader = open_tensors(inventory)
    model, names = build_skeleton(inventory, chosen)
    try:
        ignored = _assign(model, reader, names, chosen, where)
    except _MisfitError as misfit:
        if not _is_plain(inventory):
            raise
        model, ignored = _load_plain(model, reader, chosen, misfit), {}
    _run_odd_experts(model, inventory, chosen)
    return Loaded(_placed(model, where), inventory, chosen, ignored)


def _run_odd_experts(model: nn.Module, inventory: Inventory, dtype: torch.dtype) -> None:
    """Let transformers run experts one by one where a width's rows are no multiple of 16 bytes:
    torch's grouped product of all refuses those."""
    widths = {dim.size for dim in inventory.dims if dim.role in ("expert", STACKED)}
    choose: Any = getattr(model, "set_experts_implementation", None)
    if choose is not None and any(width * dtype.itemsize % 16 for width in widths):
        choose("eager")


def _placed(model: nn.Module, device: torch.device) -> nn.Module:
    return model.to(device).eval().requires_grad_(False)


class _MisfitError(CheckpointError):
    """Names in the file and names in the model differ."""


def dtype_of(name: torch.dtype | str) -> torch.dtype:
    """A floating-point dtype by torch's name or a common short one (``bf16``, ``fp32``)."""
    found = name if isinstance(name, torch.dtype) else getattr(torch, full_name(name), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise CheckpointError(f"dtype '{name}' is unknown: use float32, bfloat16 or float16")
    return found


def _refuse_packed(inventory: Inventory) -> None:
    if inventory.is_quantised:
        method = inventory.scheme and inventory.scheme.name
        raise CheckpointError(
            f"{inventory.path} is quantised ({method or 'packed weights'}): it runs in "
            "its own library only; scan and diagnose work"
        )


def stored_dtype(inventory: Inventory) -> torch.dtype:
    """The widest floating-point dtype that the checkpoint stores."""
    stored = {info.dtype for info in inventory.tensors.values() if info.dtype in FLOATING}
    found = [getattr(torch, name) for name in sorted(stored) if not name.startswith("float8")]
    if not found:
        raise CheckpointError(f"{inventory.path}: no floating-point weights to run")
    return reduce(torch.promote_types, found)


def _assign(
    model: nn.Module,
    reader: TensorReader,
    names: dict[str, str],
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, str]:
    """Put every tensor in its place. Returns those left out, with reasons."""
    places = model.state_dict()
    state: dict[str, torch.Tensor] = {}
    ignored: dict[str, str] = {}
    for tensor in reader:
        place = names.get(tensor, tensor)
        if place not in places:
            ignored[tensor] = _reason(tensor, reader.inventory, model)
            continue
        value = reader.torch(tensor)
        if places[place].is_floating_point() and not value.is_floating_point():
            raise CheckpointError(
                f"{reader.inventory.path}: {tensor} is stored as {reader.info(tensor).dtype}, as "
                f"no weight of {type(model).__name__} is: it runs in the library that packed it"
            )
        state[place] = _own_copy(value, dtype, device)
    # one that is stored by itself stays itself
    tied = (tied_parameters(model) & places.keys()) - state.keys()
    _refuse_missing(places.keys() - state.keys() - tied, reader.inventory, model)
    model.load_state_dict(state, strict=False, assign=True)
    if tied:
        model.tie_weights()  # type: ignore[operator]
    _refuse_missing([n for n, p in model.named_parameters() if p.is_meta], reader.inventory, model)
    return ignored


def tied_parameters(model: nn.Module) -> set[str]:
    """Parameters of a transformers model that share another's storage by its config's word, which
    has the class's default where the file says nothing: the head, mostly."""
    tied = getattr(model.config, "tie_word_embeddings", False)
    return set(getattr(model, "_tied_weights_keys", None) or ()) if tied else set()


def _own_copy(tensor: torch.Tensor, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A contiguous copy in memory that torch allocated, which is aligned as files are not."""
    target = dtype if tensor.is_floating_point() else tensor.dtype
    return torch.empty(tensor.shape, dtype=target, device=device).copy_(tensor)


def _reason(tensor: str, inventory: Inventory, model: nn.Module) -> str:
    for pattern, reason in _DERIVED.items():
        if re.search(pattern, tensor):
            return reason
    raise _MisfitError(
        f"{inventory.path}: {type(model).__name__} has no place for {tensor}: "
        "its config names another model than its tensors"
    )


def _refuse_missing(missing: Iterable[str], inventory: Inventory, model: nn.Module) -> None:
    names = sorted(missing)
    if names:
        raise _MisfitError(
            f"{inventory.path}: the file has no weights for {names[0]}"
            + (f" and {len(names) - 1} more" if len(names) > 1 else "")
            + f" of {type(model).__name__}; they would be random"
        )


def _is_plain(inventory: Inventory) -> bool:
    """Whether transformers' own loading may be asked: dense and uniform.

    transformers 5 keeps a mixture's experts in one tensor and splits it on saving. Where nothing
    in a checkpoint is compressed, it knows best; it is held to the same rule: no weight may stay
    random and none unused.
    """
    return all(module.kind in ("dense", "embedding") for module in inventory.modules) and all(
        dim.kind != "hidden" for dim in inventory.dims
    )


def _load_plain(
    built: nn.Module, reader: TensorReader, dtype: torch.dtype, misfit: CheckpointError
) -> nn.Module:
    """The model by transformers' own loading. Raises ``misfit`` where that fits no better.

    It gets the config as we let it pass and the tensors, and no path: from a folder it would
    read the config anew, and adapters and generation settings with it.
    """
    kind: Any = type(built)
    cpu = torch.device("cpu")
    with quiet(require_transformers()):
        try:
            model, report = kind.from_pretrained(
                None,
                config=built.config,
                state_dict={name: _own_copy(reader.torch(name), dtype, cpu) for name in reader},
                torch_dtype=dtype,
                output_loading_info=True,
            )
        except Exception:  # what a foreign checkpoint raises in transformers has no common type
            raise misfit from None
    if _faults(report):
        raise misfit
    return model


def _faults(report: dict[str, Any]) -> list[str]:
    """What transformers says did not fit."""
    kinds = ("missing_keys", "mismatched_keys", "unexpected_keys")
    return [f"{len(report[kind])} {kind.replace('_', ' ')}" for kind in kinds if report[kind]]


def load_gguf(path: Path, dtype: torch.dtype) -> nn.Module:
    """The model of a GGUF file, or of the only one in a folder, on the CPU.

    Raises :class:`CheckpointError` where transformers cannot read it, or a parameter would stay
    without its weights.
    """
    file = gguf_in(path)
    if file is None:
        raise CheckpointError(f"{path}: there is no single *.gguf file")
    refuse_endless(file.parent)
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
    faults = _faults(report)
    if faults:
        raise CheckpointError(f"{file}: does not fit {type(model).__name__}: {', '.join(faults)}")
    return model


def tokenizer_of(checkpoint: str | Path) -> Any | None:
    """The tokenizer in a checkpoint's folder or in a GGUF file; None where there is none.

    Raises :class:`CheckpointError` where one is there and cannot be loaded.
    """
    path = Path(checkpoint)
    folder, more = path if path.is_dir() else path.parent, {}
    if not any(folder.glob("tokenizer*")):
        file = gguf_in(path)
        if file is None:
            return None
        folder, more = file.parent, {"gguf_file": file.name}
    refuse_endless(folder)
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

"""Checkpoints of given names and shapes, and what an inventory says as plain values.

Those of the compression tools, restored from their headers, are in ``tool_folders``.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gacprof.checkpoint.inventory import Inventory
from gacprof.core.dtypes import BY_NAME

Shapes = Mapping[str, tuple[int, ...]]


def write_safetensors(path: Path, shapes: Shapes, dtype: str = "float16", **dtypes: str) -> Path:
    """A sparse safetensors file of zeros; ``dtypes`` by the last word of tensor names."""
    entries: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        element = BY_NAME[dtypes.get(name.rpartition(".")[2], dtype)]
        start, end = end, end + math.prod(shape) * element.itemsize
        entries[name] = {"dtype": element.code, "shape": shape, "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)
    return path


def checkpoint(folder: Path, shapes: Shapes, config: Mapping[str, Any] | None = None) -> Path:
    """A folder with model.safetensors and, if given, config.json."""
    write_safetensors(folder / "model.safetensors", shapes)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_torch_zip(path: Path, pickled: bytes, data: Mapping[str, int]) -> Path:
    """A torch.save file around ``pickled`` with records of zeros of the given sizes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickled)
        for key, size in data.items():
            archive.writestr(f"archive/data/{key}", bytes(size))
    return path


def plain_inventory(inventory: Inventory) -> dict[str, Any]:
    """What the frozen answers hold of an inventory."""
    return {
        "layout": inventory.layout,
        "fingerprint": inventory.fingerprint,
        "container": inventory.container,
        "parameters": inventory.parameters,
        "main_dtype": inventory.main_dtype,
        "own_head": inventory.has_own_head,
        "quantised": inventory.is_quantised,
        "tensors": len(inventory.tensors),
        "side_files": list(inventory.side_files),
        "attentions": _sorted([vars(attention) for attention in inventory.attentions]),
        "modules": [
            {
                "name": module.name,
                "role": module.role,
                "layer": module.layer,
                "kind": module.kind,
                "in": module.in_features,
                "out": module.out_features,
                "dtype": module.dtype,
                "gemms": [[gemm.weight, gemm.N, gemm.K, gemm.bias] for gemm in module.gemms],
                "dims": list(module.dims),
            }
            for module in inventory.modules
        ],
        "dims": [
            {
                "name": dim.name,
                "kind": dim.kind,
                "size": dim.size,
                "places": [[p.tensor, p.axis, p.start, int(p.unit)] for p in dim.places],
                "feeds": [[feed.weight, feed.axis] for feed in dim.feeds],
                "params_per_unit": dim.params_per_unit,
                "layer": dim.layer,
                "role": dim.role,
                "dense_size": dim.dense_size,
                "padding": dim.padding,
                "ordered": dim.ordered,
                "adjustable": dim.adjustable,
                "most": dim.max_size if dim.dense_size else None,
            }
            for dim in inventory.dims
        ],
    }


def same_fields(frozen: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Of a frozen answer what :func:`plain_inventory` holds too."""
    same = {key: frozen[key] for key in answer.keys() & frozen.keys()}
    same["attentions"] = _sorted(same["attentions"])
    dims = [{key: value for key, value in dim.items() if key != "why"} for dim in same["dims"]]
    return same | {"dims": dims}


def _sorted(entries: list[dict[str, int]]) -> list[dict[str, int]]:
    return sorted(entries, key=lambda entry: sorted(entry.items()))

"""What is fuzzed: a good file of each kind, how it is damaged, and the verbs that read it."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from decoders import modules_of, write_decoder
from mutations import (
    damaged_bytes,
    damaged_json,
    damaged_lines,
    damaged_safetensors,
    of_json,
)  # fmt: skip

CANARY = "code-was-run"
"""A file that only code from a pickle would make."""


@dataclass(frozen=True)
class Target:
    """``folder`` holds a good input; ``file`` in it is damaged by ``damage``; ``read`` is given the
    damaged copy of the folder and an empty folder to write into."""

    name: str
    folder: Path
    file: str
    damage: Callable[[bytes, random.Random], bytes]
    read: Callable[[Path, Path], object]


def targets(folder: Path) -> list[Target]:
    """Good files of every kind, made in ``folder``."""
    model = _model(folder / "model")
    pickled = _pickled(folder / "pickled", model)
    evil = _evil(folder / "evil")
    run = _run(folder / "run")
    chain = _chain(folder / "chain", model, run)
    suite = _suite(folder / "suite")
    structured = of_json(damaged_json)
    return [
        Target("safetensors", model, "model.safetensors", damaged_safetensors, _whole_chain),
        Target("config.json", model, "config.json", structured, _whole_chain),
        Target("pickle", pickled, "pytorch_model.bin", damaged_bytes, _whole_chain),
        Target("evil pickle", evil, "pytorch_model.bin", damaged_bytes, _whole_chain),
        Target("map", chain, "map.json", structured, _use_map),
        Target("plan", chain, "plan.json", structured, _use_plan),
        Target("diagnosis", chain, "diagnosis.json", structured, _report),
        Target("run.json", run, "run.json", structured, _build_map),
        Target("points.json", run, "points.json", structured, _build_map),
        Target("resumed run.json", run, "run.json", structured, _resume),
        Target("resumed journal", run, "journal.jsonl", of_json(damaged_lines), _resume),
        Target("samples", run, "samples.parquet", damaged_bytes, _build_map),
        Target("journal", run, "journal.jsonl", of_json(damaged_lines), _build_map),
        Target("suite", suite, "suite.toml", damaged_bytes, _use_suite),
    ]


# --- good files


def _model(folder: Path) -> Path:
    """A factored Llama of a few thousand parameters, as ASVD leaves it."""
    folder.parent.mkdir(parents=True)
    ranks = dict.fromkeys(modules_of(2), 5)
    return write_decoder(
        folder, hidden=16, widths=(24, 24), heads=[(1, 1)] * 2, num_attention_heads=1,
        num_key_value_heads=1, ranks=ranks, factors=("BLinear", "ALinear"),
        architectures=["ASVDLlamaForCausalLM"], truncation_ranks=ranks,
    )  # fmt: skip


def _pickled(folder: Path, model: Path) -> Path:
    import torch
    from safetensors.torch import load_file

    folder.mkdir()
    torch.save(load_file(model / "model.safetensors"), folder / "pytorch_model.bin")
    shutil.copy(model / "config.json", folder)
    return folder


class _Touch:
    def __reduce__(self) -> tuple[Any, ...]:
        return open, (CANARY, "w")


def _evil(folder: Path) -> Path:
    """A pickle that makes a file when something runs what it names."""
    folder.mkdir()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": _Touch()}))
    return folder


def _run(folder: Path) -> Path:
    """A finished sweep, a part of it still in the journal."""
    from gacprof.sweeping import read_blocks, run_sweep
    from gacprof.sweeping.store import PARQUET, RunFolder, frame_of
    from gacprof.sweeping.suite import parse_suite

    tables = [
        {"operator": "linear", "axis": axis, "values": [{"from": 4, "to": 24}],
         "dims": {"M": 8, ("N" if axis == "K" else "K"): 16}, "dtype": "float32",
         "flags": {"bias": False, "cache": "cold"}}
        for axis in "NK"
    ]  # fmt: skip
    timing = {"blocks": 8, "most_blocks": 8}
    suite = parse_suite({"name": "small", "timing": timing, "sweep": tables}, "the fuzzer")
    run_sweep(suite, _device(), folder)
    blocks = read_blocks(folder)
    frame_of(blocks[:-5]).to_parquet(folder / PARQUET, index=False, write_page_checksum=True)
    store = RunFolder(folder)
    for block in blocks[-5:]:
        store.append(block)
    store.close()
    return folder


def _device() -> Any:
    from recorded_device import RecordedDevice

    return RecordedDevice(lambda p: 5 + p.dim["K"] * 0.1 + (p.dim["N"] % 8 > 0))


def _chain(folder: Path, model: Path, run: Path) -> Path:
    import gacprof

    folder.mkdir()
    built = gacprof.build_map(run, out=folder / "map.json")
    gacprof.plan(model, built, tokens={8: 1.0}, dtype="float32").save(folder / "plan.json")
    found = gacprof.diagnose(model, built, tokens={8: 1.0}, dtype="float32")
    (folder / "diagnosis.json").write_text(json.dumps(found.as_dict()))
    shutil.copytree(model, folder / "model")
    return folder


def _suite(folder: Path) -> Path:
    folder.mkdir()
    source = Path(__file__).parents[2] / "sweeps" / "quick.toml"
    shutil.copy(source, folder / "suite.toml")
    return folder


# --- what reads them; each may raise GacprofError and nothing else


def _whole_chain(folder: Path, out: Path) -> None:
    """Scan, diagnose, pad and rewrite: all that is done with a foreign checkpoint unseen."""
    import gacprof
    from gacprof.core.errors import GacprofError

    gacprof.scan(folder)
    with suppress(GacprofError):
        gacprof.diagnose(folder, "cpu-example")
    gacprof.realign(folder, "minimal", out / "aligned")


def _use_map(folder: Path, out: Path) -> None:
    import gacprof

    loaded = gacprof.CliffMap.load(folder / "map.json")
    for curve in loaded.curves:
        loaded.candidates(
            curve.operator, axis=curve.axis, near=curve.points.d[0], dtype=curve.dtype,
            flags=curve.flags, **curve.fixed,
        )  # fmt: skip
    gacprof.diagnose(folder / "model", loaded)
    gacprof.plan(folder / "model", loaded, time_limit=2.0)


def _use_plan(folder: Path, out: Path) -> None:
    import gacprof

    gacprof.realign(folder / "model", folder / "plan.json", out / "aligned")


def _report(folder: Path, out: Path) -> None:
    import gacprof

    gacprof.report(out=out / "page", diagnosis=folder / "diagnosis.json")


def _build_map(folder: Path, out: Path) -> None:
    import gacprof

    gacprof.build_map(folder, out=out / "map.json")


def _resume(folder: Path, out: Path) -> None:
    """Goes on in a copy: what a resume changes is its own."""
    from gacprof.sweeping import run_sweep, suite_of

    shutil.copytree(folder, out, dirs_exist_ok=True)
    try:
        run_sweep(suite_of(out), _device(), out, resume=True)
    finally:
        shutil.rmtree(out)
        out.mkdir()


def _use_suite(folder: Path, out: Path) -> None:
    from gacprof.sweeping.suite import load_suite

    suite = load_suite(folder / "suite.toml")
    suite.curves("cpu")

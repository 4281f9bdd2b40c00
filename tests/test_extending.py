"""One package adds an operator, a device, a compressor and a GPU generation, by entry points alone
(docs/extend.md)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkpoint_making import checkpoint
from plug_ins import found_in, write_package
from suites import over, suite_of

import gacprof
from gacprof.devices.opening import open_device
from gacprof.kernels.tiers import predict
from gacprof.sweeping import run_sweep

THEIRS = {
    "their_operator": """
        import gacprof

        @gacprof.operator(x=("K",))
        def doubled(x):
            return x + x
        """,
    "their_device": """
        from gacprof.core.points import Environment
        from gacprof.devices.device import BlockTimes, Device, Session, TimedCall

        class Npu(Device):
            timer = "npu"

            def __init__(self, which):
                self.environment = Environment("npu", f"NPU {which}", "npu1")

            def session(self, slots, reuse_bytes=0):
                return Curve(slots)

        class Curve(Session):
            failed = {}

            def __init__(self, slots):
                self.us = [14.0 if slot.point.dim["K"] % 16 else 10.0 for slot in slots]

            def block(self, order):
                return BlockTimes(tuple(TimedCall(slot, self.us[slot]) for slot in order))

        opened = Npu
        """,
    "their_compressor": """
        from gacprof.checkpoint.layouts.linear import Linear
        from gacprof.checkpoint.layouts.layout import Compressor

        class TinyFactors(Compressor):
            name = "tiny-factors"

            def found(self, contents):
                for name in contents.tensors:
                    module, _, part = name.partition(".right.")
                    if part == "weight":
                        yield Linear(module, (f"{module}.left.weight",), inner=name)
        """,
    "their_method": """
        from gacprof.extras.compress.methods.method import PlainSvd

        class Halves(PlainSvd):
            name = "halves"
        """,
    "their_chips": """
        from gacprof.kernels.tiers import AlignmentTier, Architecture

        CHIPS = (
            Architecture(
                "sm200", "X200",
                {"float16": (AlignmentTier(32, "TMA of 32 bytes", "nvjet2", "it says so"),)},
            ),
        )
        """,
}
ENTRIES = """\
[gacprof.operators]
theirs = their_operator
[gacprof.devices]
npu = their_device:opened
[gacprof.compressors]
tiny = their_compressor:TinyFactors
[gacprof.methods]
halves = their_method:Halves
[gacprof.tiers]
theirs = their_chips
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = write_package(tmp_path_factory.mktemp("theirs"), THEIRS, ENTRIES)
    with found_in(folder):
        yield folder


def test_their_operator_is_swept_on_their_device_into_a_map(package, tmp_path):
    axis = over("K", range(64, 97), {}, operator="doubled", dtype="float16")
    with open_device("npu:3") as device:
        run_sweep(suite_of(axis, blocks=6, most_blocks=6), device, tmp_path / "run")
    made = gacprof.build_map(tmp_path / "run")
    curve = made.curve("doubled", "K")
    assert made.environment.name == "NPU 3"
    assert curve.safe == [64, 80, 96] and len(curve.misaligned) == 30


def test_their_checkpoint_is_read_and_planned_as_any_other(package, tmp_path):
    q = "model.layers.0.self_attn.q_proj"
    shapes = {f"{q}.right.weight": (13, 64), f"{q}.left.weight": (64, 13)}
    folder = checkpoint(tmp_path / "model", shapes)
    assert gacprof.scan(folder).layout == "tiny-factors"
    gacprof.realign(folder, "minimal", tmp_path / "out")
    again = gacprof.scan(tmp_path / "out")
    assert [(d.name, d.size) for d in again.dims] == [(f"{q}:rank", 16)]
    assert again.layout == "tiny-factors"


OFFERED = """
import sys
sys.path.insert(0, sys.argv[1])
from gacprof.extras.compress.methods import method_named
from gacprof.core.request import options_of
from gacprof.extras.compress.request import CompressRequest
print(dict(options_of(CompressRequest))["method"].help)
print(method_named("halves", {}).name)
"""


def test_their_method_is_offered_and_found(package):
    """In a process of its own: what an option offers is told once."""
    command = [sys.executable, "-c", OFFERED, str(package)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert shown.stdout.splitlines() == [
        "One of asvd, svd-llm, kfac-svd, palu, llm-pruner, drop-layers, svd, halves.", "halves",
    ], shown.stderr  # fmt: skip


def test_their_gpu_has_tiers(package):
    assert [predict("sm200", "float16", {"K": k}).sentence for k in (104, 112)] == [
        "K is no multiple of 16: no kernel is known for it",
        "all rows are multiples of 16: TMA of 32 bytes (nvjet2)",
    ]

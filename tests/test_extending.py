"""One package adds an operator, a device, a compressor and a GPU generation, by entry points alone
(docs/extend.md)."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as pip leaves it: modules, and what they bring."""
    folder = tmp_path_factory.mktemp("theirs")
    for name, code in THEIRS.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(code))
    about = folder / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRIES)
    return folder


def with_theirs(package: Path, code: str, *arguments: object) -> str:
    started = f"import sys; sys.path.insert(0, {str(package)!r})\n{textwrap.dedent(code)}"
    command = [sys.executable, "-c", started, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_their_operator_is_swept_on_their_device_into_a_map(package, tmp_path):
    suite = {
        "name": "theirs",
        "timing": {"blocks": 6, "most_blocks": 6},
        "sweep": [
            {"operator": "doubled", "axis": "K", "values": [{"from": 64, "to": 96}],
             "dtype": "float16"},
        ],
    }  # fmt: skip
    printed = with_theirs(
        package,
        """
        import json, sys, gacprof
        from gacprof.devices.opening import open_device
        from gacprof.sweeping import run_sweep
        from gacprof.sweeping.suite import parse_suite
        suite = parse_suite(json.loads(sys.argv[2]), "theirs")
        with open_device("npu:3") as device:
            run_sweep(suite, device, sys.argv[1])
        m = gacprof.build_map(sys.argv[1])
        curve = m.curve("doubled", "K")
        print(json.dumps([m.environment.name, curve.safe, len(curve.misaligned)]))
        """,
        tmp_path / "run",
        json.dumps(suite),
    )
    name, safe, misaligned = json.loads(printed)
    assert name == "NPU 3" and safe == [64, 80, 96] and misaligned == 30


def test_their_checkpoint_is_read_and_planned_as_any_other(package, tmp_path):
    printed = with_theirs(
        package,
        """
        import sys, torch
        from pathlib import Path
        from safetensors.torch import save_file
        import gacprof
        q = "model.layers.0.self_attn.q_proj"
        folder = Path(sys.argv[1])
        folder.mkdir()
        shapes = {f"{q}.right.weight": (13, 64), f"{q}.left.weight": (64, 13)}
        save_file({n: torch.randn(s) for n, s in shapes.items()}, folder / "model.safetensors")
        found = gacprof.scan(folder)
        gacprof.realign(folder, "minimal", folder.parent / "out")
        again = gacprof.scan(folder.parent / "out")
        print(found.layout, [(d.name, d.size) for d in again.dims], again.layout)
        """,
        tmp_path / "model",
    )
    name = "model.layers.0.self_attn.q_proj:rank"
    assert printed.split("\n")[0] == f"tiny-factors [('{name}', 16)] tiny-factors"


def test_their_method_is_offered_and_found(package):
    shown = with_theirs(
        package,
        """
        import sys
        from gacprof.extras.compress.methods import method_named
        from gacprof.core.request import options_of
        from gacprof.extras.compress.request import CompressRequest
        print(dict(options_of(CompressRequest))["method"].help)
        print(method_named("halves", {}).name)
        """,
    )
    assert shown.splitlines() == [
        "One of asvd, svd-llm, kfac-svd, palu, llm-pruner, drop-layers, svd, halves.",
        "halves",
    ]


def test_their_gpu_has_tiers(package):
    printed = with_theirs(
        package,
        """
        from gacprof.kernels.tiers import predict
        for k in (104, 112):
            print(predict("sm200", "float16", {"K": k}).sentence)
        """,
    )
    assert printed.splitlines() == [
        "K is no multiple of 16: no kernel is known for it",
        "all rows are multiples of 16: TMA of 32 bytes (nvjet2)",
    ]


def test_what_cannot_be_loaded_is_named_in_a_line(package, tmp_path):
    (tmp_path / "broken-1.0.dist-info").mkdir()
    (tmp_path / "broken-1.0.dist-info" / "entry_points.txt").write_text(
        "[gacprof.compressors]\nbroken = nowhere:Tool\n"
    )
    printed = with_theirs(
        tmp_path,
        """
        from gacprof.checkpoint.layouts.tools import compressors
        from gacprof.core.errors import GacprofError
        try:
            compressors()
        except GacprofError as error:
            print(error)
        """,
    )
    assert (
        printed == "the compressors of 'nowhere:Tool' cannot be loaded: No module named 'nowhere'\n"
    )

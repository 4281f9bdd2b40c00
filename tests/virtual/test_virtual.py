"""A virtual GPU: where it is refused, and what an unmodified PyTorch sees of it."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from gacprof.cliffmap.build import build_map
from gacprof.cliffmap.run_folder import RunFolder
from gacprof.core.errors import GacprofError
from gacprof.hardware.datasheet import GPUS, gpu_row
from gacprof.kernels.dispatch import FOLDER, load_table, shipped_tables
from gacprof.virtual import run
from gacprof.virtual.ask import dispatch
from gacprof.virtual.build import find_torch, libraries
from gacprof.virtual.profiles import gpus, profile

REPOSITORY = Path(__file__).parent.parent.parent
SEEN = """
import json, os, sys
sys.path.append(sys.argv[1])
import torch
from torch.nn import functional
from gacprof.virtual.run import clear, launches

device = torch.cuda.get_device_properties(0)
rows = torch.ones(8, 64, device="cuda", dtype=torch.bfloat16)
clear()
functional.softmax(rows, -1)
rows @ rows.T
kernels = [launch.kernel for launch in launches()]
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    torch.softmax(rows, -1)
clear()
graph.replay()
graph.replay()
replayed = [launch.replayed for launch in launches()]
try:
    torch.empty(1 << 40, device="cuda")
    memory = "given"
except torch.OutOfMemoryError:
    memory = "refused"
with torch.profiler.profile() as profiler:
    torch.softmax(rows, -1)
    torch.cuda.synchronize()
profiled = [event.name for event in profiler.events() if "CUDA" in str(event.device_type)]
seen = dict(name=device.name, sms=device.multi_processor_count, kernels=kernels, memory=memory,
            replayed=replayed, profiled=profiled, marked=os.environ["GACPROF_VIRTUAL"])
print(json.dumps(seen), file=open(sys.argv[2], "w"))
"""
ASKED = """
import json, sys
import torch
names = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
answers = []
for head_dim, dtype, lengths, batch, kv_heads, groups, mask, causal in json.load(open(sys.argv[1])):
    dtype = getattr(torch, dtype)
    q_len, kv_len = lengths
    query = torch.empty(batch, kv_heads * groups, q_len, head_dim, dtype=dtype, device="cuda")
    key = torch.empty(batch, kv_heads, kv_len, head_dim, dtype=dtype, device="cuda")
    mask_dtype = {"none": None, "float": dtype, "bool": torch.bool}[mask]
    bias = mask_dtype and torch.empty(batch, 1, *lengths, dtype=mask_dtype, device="cuda")
    gqa = groups > 1
    choice = torch._fused_sdp_choice(query, key, key, bias, 0.0, causal, enable_gqa=gqa)
    answers.append(names[choice])
json.dump(answers, open(sys.argv[2], "w"))
"""

MASKS = (("none", False), ("none", True), ("float", False), ("bool", False))


@pytest.mark.parametrize("sign", ["dev/nvidia0", "dev/nvidiactl", "proc/driver/nvidia", "dev/dxg"])
def test_a_real_driver_is_noticed(tmp_path: Path, sign: str) -> None:
    assert run.real_driver(tmp_path) == []
    (tmp_path / sign).parent.mkdir(parents=True)
    (tmp_path / sign).touch()
    assert run.real_driver(tmp_path) == [tmp_path / sign]


def test_a_virtual_gpu_is_refused_beside_a_real_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "real_driver", lambda: [Path("/dev/nvidia0")])
    with pytest.raises(GacprofError, match="/dev/nvidia0"):
        run.virtual("h100", ["true"])


@pytest.mark.parametrize("gpu", gpus())
def test_numbers_that_choices_depend_on_have_a_source(gpu: str) -> None:
    row = gpu_row(next(key for key in GPUS if key.replace("-", "") == gpu))
    idle = {"memory_khz", "bus_bits"}
    assert {name for name, (_, source) in row["virtual"].items() if source == "unsourced"} <= idle


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(GacprofError, match="h100"):
        profile("h1000")


def test_a_python_without_a_cuda_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GacprofError, match="does not run"):
        find_torch(tmp_path / "python")


@pytest.mark.parametrize("gpu", ["a100", "rtx5090"])
def test_pytorch_sees_the_gpu_and_its_launches_are_noted(
    gpu: str, cuda_python: Path, tmp_path: Path
) -> None:
    out = tmp_path / "seen.json"
    assert run.virtual(gpu, [str(cuda_python), "-c", SEEN, str(REPOSITORY), str(out)]) == 0
    seen = json.loads(out.read_text(encoding="utf-8"))
    assert seen["name"] == profile(gpu).name
    assert seen["sms"] == profile(gpu).values["sms"]
    assert seen["marked"] == gpu
    assert "softmax_warp_forward" in seen["kernels"][0]
    assert seen["kernels"][1].startswith("cublas TN m=8 n=8 k=64 a=bfloat16")
    assert seen["replayed"] == [True, True]
    assert seen["memory"] == "refused"
    assert "softmax_warp_forward" in seen["profiled"][0]


@pytest.mark.parametrize("gpu", ["a100", "h100"])
def test_a_sweep_ends_in_a_map_of_kernels_without_latencies(
    gpu: str, cuda_python: Path, tmp_path: Path
) -> None:
    if run.virtual(gpu, [str(cuda_python), "-c", "import gacprof, pandas, scipy"]):
        pytest.skip("that python has no gacprof[measure]")
    sweep = [str(cuda_python), "-m", "gacprof", "sweep", "quick", "--out", str(tmp_path / "run")]
    assert run.virtual(gpu, sweep) == 0
    cliff_map = build_map(tmp_path / "run")
    assert cliff_map.environment.kind == "virtual"
    failures = RunFolder(tmp_path / "run").points.failures
    assert {why for axis in failures.values() for why in axis.values()} <= {
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"
    }
    for curve in cliff_map.curves:
        for verdict in curve.sizes:
            assert (verdict.verdict, verdict.latency_us, verdict.penalty) == ("unknown", None, None)
            assert verdict.reason


def test_a_command_keeps_its_exit_status(cuda_python: Path) -> None:
    assert run.virtual("l4", [str(cuda_python), "-c", "raise SystemExit(7)"]) == 7


def test_the_stand_ins_stop_where_they_were_not_asked_for(cuda_python: Path) -> None:
    driver = libraries(find_torch(cuda_python))[0]
    environment = os.environ | {"LD_PRELOAD": str(driver)}
    done = subprocess.run(["true"], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "gacprof virtual" in done.stderr


@pytest.mark.parametrize("gpu", ["h100", "b200", "l40s"])
def test_a_shipped_table_agrees_with_pytorch_at_random_questions(
    gpu: str, cuda_python: Path, tmp_path: Path
) -> None:
    release = find_torch(cuda_python).release
    if (gpu, release) not in shipped_tables():
        pytest.skip(f"no table of torch {release} ships")
    draw = random.Random(gpu)
    questions = []
    for _ in range(20_000):
        dtype = draw.choice(("bfloat16", "float16", "float32"))
        lengths = [draw.choice((1, draw.randint(2, 4096))) for _ in range(2)]
        if draw.random() < 0.3:  # equal lengths are a kind of their own, which chance would miss
            lengths[1] = lengths[0]
        heads = draw.choice((1, 2, 16)), draw.choice((1, 2, 8)), draw.choice((1, 1, 4, 7))
        mask, causal = draw.choice(MASKS)
        questions.append([draw.randint(1, 512), dtype, lengths, *heads, mask, causal])
    asked, answered = tmp_path / "questions.json", tmp_path / "answers.json"
    asked.write_text(json.dumps(questions), encoding="utf-8")
    assert run.virtual(gpu, [str(cuda_python), "-c", ASKED, str(asked), str(answered)]) == 0
    table = load_table(gpu, release)
    for question, backend in zip(questions, json.loads(answered.read_text()), strict=True):
        head_dim, dtype, lengths, _, _, groups, mask, causal = question
        answer = table.sdpa(head_dim, dtype, *lengths, causal=causal, mask=mask, gqa=groups > 1)
        assert answer.backend == backend, question


def test_a_table_is_made_to_the_bytes_that_ship(cuda_python: Path, tmp_path: Path) -> None:
    release = find_torch(cuda_python).release
    if ("a10", release) not in shipped_tables():
        pytest.skip(f"no table of torch {release} ships")
    table = dispatch("a10", torch_python=cuda_python, out=tmp_path / "a10.json")
    shipped = FOLDER / f"a10-torch{release}.json"
    assert table.release == release
    assert (tmp_path / "a10.json").read_bytes() == shipped.read_bytes()

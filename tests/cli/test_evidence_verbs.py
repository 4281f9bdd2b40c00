"""Evidence and explanations as a user asks for them."""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path

import pytest
from recorded_device import RecordedDevice
from suites import over, suite_of

from gacprof.core.points import Environment, Point
from gacprof.extras.evidence import collecting
from gacprof.kernels.evidence import METRICS, KernelCounters, write_counters
from gacprof.kernels.names import Kernel
from gacprof.sweeping import read_samples, run_sweep

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)
SUITE = suite_of(
    over("K", range(32, 73, 8), {"M": 8, "N": 16}, dtype="float32"),
    processes=1, blocks=4, most_blocks=4,
)  # fmt: skip
GPU = Environment("cuda", "an A100", "sm80", {}, {"torch": "2.9.1", "cudnn": "91002"})
CPU = Environment("cpu", "a CPU", "x86_64", {}, {"torch": "2.13.0"})


def swept(folder: Path, where: Environment, jump: float = 2.0) -> Path:
    def answer(point):
        return 10.0 * (jump if point.dim["K"] >= 56 else 1.0)

    run_sweep(SUITE, RecordedDevice(answer, where), folder)
    return folder


def points(folder: Path) -> list[Point]:
    return [sample.point for sample in read_samples(folder)]


# explain -----------------------------------------------------------------------------------


def test_explain_says_what_107_costs_and_why(run):
    message = run("explain", "a100-published", "--op", "attention", "--d", "107", "--why")
    assert message.code == 0
    for words in (
        "head_dim 107 takes 2.15 ms", "SDPA takes flash", "q, k, v padded to 112 by three kernels",
        "FlashAttention-2 template 128 with even_k=false", "+45 % over 128", "rules of SDPA",
    ):  # fmt: skip
        assert words in message.out
    data = json.loads(
        run("explain", "a100-published", "--op", "attention", "--d", "107", "--json").out
    )
    assert [cause["kind"] for cause in data["causes"]] == ["padding", "template"]
    assert data["causes"][0]["share"] == pytest.approx(0.28, abs=0.01)
    assert data["curve"].startswith("attention head_dim")


def test_explain_picks_the_curve_that_was_asked_for(run):
    def curve(*more):
        message = run("explain", "a100-published", "--op", "linear", "--json", *more)
        assert message.code == 0, message.err
        return json.loads(message.out)["curve"]

    assert "linear K (M=1 N=4096)" in curve("--d", "4095", "--axis", "K", "--fixed", "M=1")
    assert "linear M " in curve("--d", "1729", "--axis", "M")
    message = run(
        "explain", "a100-published", "--op", "attention", "--d", "104", "--flag",
        "backend=efficient", "--json",
    )  # fmt: skip
    assert "backend=efficient" in json.loads(message.out)["curve"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("conv", "--d", "8"), "has no such curve of conv"),
        (("attention", "--d", "161"), "161 was not measured"),
        (("attention", "--d", "64", "--dtype", "int8"), "none has dtype = int8 (there are "),
        (("attention", "--d", "64", "--axis", "K"), "none has axis = K"),
        (("attention", "--d", "64", "--flag", "mask=x"), "flag mask = x"),
        (("linear", "--d", "64", "--fixed", "M=3"), "none has M = 3"),
        (("linear", "--d", "64", "--samples", "nonesuch"), "nonesuch"),
        (("linear", "--d", "64", "--fixed", "M"), "--fixed takes"),
        (("linear", "--d", "0"), "d is 0"),
    ],
)
def test_explain_refuses_what_the_map_cannot_answer(run, arguments, message):
    run("explain", "a100-published", "--op", *arguments).refused(message)


def test_explain_takes_counters_of_the_maps_own_device_only(run, tmp_path):
    cpu, gpu = swept(tmp_path / "cpu", CPU), swept(tmp_path / "gpu", GPU)
    assert run("map", "build", gpu).code == 0
    asked = ("explain", gpu / "cliffmap.json", "--op", "linear", "--d", "48", "--samples")
    run(*asked, cpu).refused("was measured on")
    run(*asked, gpu).refused("holds no counters")


# evidence ncu ------------------------------------------------------------------------------


def test_without_ncu_it_says_how_to_get_it_and_carries_on(run, tmp_path, monkeypatch):
    monkeypatch.setattr(collecting, "find_ncu", lambda: None)
    folder = swept(tmp_path / "run", GPU)
    message = run("evidence", "ncu", folder, "--edges")
    assert message.code == 0 and "install the CUDA toolkit" in message.out
    data = json.loads(run("evidence", "ncu", folder, "--edges", "--json").out)
    assert data["launches"] == [] and "ncu" in data["problem"]
    assert sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) == [
        "points.json", "run.json", "samples.parquet",
    ]  # fmt: skip


def test_only_edges_and_their_neighbours_are_counted(run, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        collecting, "collect",
        lambda points, report, timeout, index: asked.extend(points) or collecting.Evidence(),
    )  # fmt: skip
    assert run("evidence", "ncu", swept(tmp_path / "run", GPU), "--edges").code == 0
    assert sorted(p.dim["K"] for p in asked) == [40, 48, 56, 64]
    asked.clear()
    assert run("evidence", "ncu", tmp_path / "run").code == 0
    assert len(asked) == 6


def test_a_report_is_read_without_a_gpu(run, report):
    message = run("evidence", "ncu", "--report", report)
    assert message.code == 0 and "daxpy" in message.out and "LDG.8×262,144" in message.out
    launches = json.loads(run("evidence", "ncu", "--report", report, "--json").out)["launches"]
    assert len(launches) == 3 and launches[1]["values"]["duration_ns"] == 249216
    assert "collected without" in launches[0]["absent"]["dram_read_bytes"]


def test_a_report_of_something_else_is_told_apart_from_the_sweep(run, tmp_path, report):
    folder = swept(tmp_path / "run", GPU)
    message = run("evidence", "ncu", folder, "--report", report)
    assert message.code == 0 and "no launch in" in message.out
    assert not (folder / "ncu.json").exists()


def test_counters_beside_a_map_are_evidence_of_its_causes(run, tmp_path):
    def launch(opcode):
        values = dict.fromkeys((metric.key for metric in METRICS), None)
        return KernelCounters(Kernel("k"), "sm80", "an A100", (), values, {}, {opcode: 9})

    folder = swept(tmp_path / "run", GPU, jump=0.5)
    known = {p: launch("LDG.E.U16" if p.dim["K"] < 56 else "LDG.E.128") for p in points(folder)}
    write_counters(folder, {point: [counted] for point, counted in known.items()})
    assert run("map", "build", folder).code == 0
    message = run("explain", folder / "cliffmap.json", "--op", "linear", "--d", "48", "--why")
    assert "loads of 2 bytes (LDG.2) instead of 16 (LDG.16)" in message.out
    assert "Nsight Compute counters" in message.out
    ((cliff,),) = (
        c["cliffs"] for c in json.loads((folder / "cliffmap.json").read_text())["curves"]
    )
    assert cliff["cause"] == "at 48: loads of 2 bytes (LDG.2) instead of 16 (LDG.16)"


def test_ncu_needs_samples_of_a_gpu_with_cliffs(run, tmp_path):
    run("evidence", "ncu").refused("sweep's folder")
    run("evidence", "ncu", tmp_path, "--edges").refused("not a sweep's folder")
    run("evidence", "ncu", swept(tmp_path / "cpu", CPU), "--edges").refused("evidence cpu")
    flat = swept(tmp_path / "flat", GPU, jump=1.0)
    run("evidence", "ncu", flat, "--edges").refused("has no cliff")


# evidence cpu ------------------------------------------------------------------------------


def test_cpu_implementations_name_the_tiers_of_the_next_map(run, tmp_path):
    folder = swept(tmp_path / "run", CPU)
    message = json.loads(run("evidence", "cpu", folder, "--json").out)
    assert len(message) == 6
    assert all(one["mechanism"] or one["reason"] for one in message)
    assert run("map", "build", folder).code == 0
    (curve,) = json.loads((folder / "cliffmap.json").read_text())["curves"]
    assert set(curve["mechanisms"]) == {one["mechanism"] for one in message} - {None}
    read = run("evidence", "cpu", folder, "--edges")
    assert read.code == 0 and "implementations.json" in read.out


def test_a_gpus_samples_are_no_cpus(run, tmp_path):
    run("evidence", "cpu", swept(tmp_path / "run", GPU)).refused("no CPU")
    run("evidence", "cpu", tmp_path).refused("not a sweep's folder")


def test_garbled_evidence_stops_the_map_with_a_line(run, tmp_path):
    folder = swept(tmp_path / "run", CPU)
    (folder / "implementations.json").write_text("{")
    run("map", "build", folder).refused("implementations.json", "collect it again")
    assert not (folder / "cliffmap.json").exists()


# evidence names -------------------------------------------------------------------------


def test_names_are_read_and_unknown_ones_kept(run):
    gemm = "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_128x128_64x3_tn_align2>(x)"
    reduce = "void cublasLt::splitKreduce_kernel<32, 16, int, float>(x)"
    (group, other) = json.loads(run("evidence", "names", gemm, reduce, "new_op", "--json").out)
    assert group["main"]["alignment"] == 2 and group["main"]["split_k"]
    assert [kernel["role"] for kernel in group["after"]] == ["split_k_reduce"]
    assert other["main"]["provider"] == "unknown" and other["main"]["name"] == "new_op"
    assert "unknown: new_op" in run("evidence", "names", "new_op").out


# evidence sdpa -------------------------------------------------------------------------


def test_sdpa_is_told_by_rules_for_any_chip(run, monkeypatch):
    message = run("evidence", "sdpa", "--head-dim", "107", "--arch", "sm80", "--torch", "2.9.1")
    assert message.code == 0 and "SDPA takes flash; q, k and v are padded to 112" in message.out
    masked = run(
        "evidence", "sdpa", "--head-dim", "107", "--arch", "sm90", "--torch", "2.9.1",
        "--mask", "float", "--json",
    )  # fmt: skip
    choice = json.loads(masked.out)
    assert choice["backend"] == "math" and set(choice["refusals"]) >= {"flash", "efficient"}
    run("evidence", "sdpa", "--head-dim", "64", "--arch", "gfx90a").refused("no CUDA architecture")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    run("evidence", "sdpa", "--head-dim", "64").refused("--arch")


def test_names_come_from_stdin_too(run, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("ampere_h1688gemm_128x64_sliced1x2_tn\n\n"))
    message = run("evidence", "names", "-", "--json")
    assert [group["main"]["name"] for group in json.loads(message.out)] == [
        "ampere_h1688gemm_128x64_sliced1x2_tn"
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    run("evidence", "names", "-").refused("no kernel names on stdin")

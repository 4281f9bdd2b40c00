"""The command for a lent GPU: it ends in time, a kill leaves an archive, a second run goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from pathlib import Path

import pytest
from planted import PlantedRun

from gacprof.cliffmap.cliffmap import load_map
from gacprof.cliffmap.run_folder import RunHeader, RunWriter
from gacprof.core.points import Axis
from gacprof.kernels.ncu import METRICS
from gacprof.sweeping.suite import load_suite

TOOLS = Path(__file__).parents[1] / "tools"
RUN = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/first_gpu"]
from first_gpu import __main__ as first
first.FOLDER, first.WHEELS = Path("runs/first-gpu").resolve(), Path("wheels")
first.ENDING_S, first.PACK_EVERY_S = 3, 0.2
def step(name, limit_s, code, least_s=0, finding=""):
    return first.Step(name, limit_s, (sys.executable, "-c", code), least_s, finding)
def steps(device):
    return [
        step("quick", 20, "print('seen'); open('quick.json', 'w').write('1' * 4000)"),
        step("hangs", 2, "import signal, time; signal.signal(2, signal.SIG_IGN); "
             "open('hung', 'a').write('x' * 1000); time.sleep(60)"),
        step("fails", 20, "raise SystemExit(1)", finding="nothing.json"),
        step("finds", 20, "raise SystemExit(1)", finding="quick.json"),
        step("long", 90, "print('never')", least_s=80),
    ]
first.steps = steps
first.MACHINE = "print('a machine')"
sys.argv = ["first_gpu", *sys.argv[2:]]
first.main()
"""


def begin(
    folder: Path, *words: str, machine: str = "a machine", hangs: bool = True
) -> subprocess.Popen[str]:
    code = RUN.replace("a machine", machine)
    if not hangs:
        code = code.replace("time.sleep(60)", "")
    command = [sys.executable, "-c", code, str(TOOLS), *words]
    variables = os.environ | {"OUT": str(folder / "out")}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def archived(folder: Path) -> dict[str, str]:
    """The archive's files by name."""
    with tarfile.open(folder / "out/first-gpu.tar.gz") as packed:
        files = {name: packed.extractfile(name) for name in packed.getnames()}
        return {name: file.read().decode() for name, file in files.items() if file}


def test_it_ends_in_time_and_goes_on_with_what_was_cut(tmp_path: Path) -> None:
    started = time.monotonic()
    assert begin(tmp_path, "--seconds", "25").wait(60) == 1
    assert time.monotonic() - started < 25
    files = archived(tmp_path)
    outcomes = [line.split("\t")[:2] for line in files["steps.tsv"].splitlines()]
    assert outcomes == [
        ["quick", "0"],
        ["hangs", "cut after 2 s"],
        ["fails", "1"],
        ["finds", "1"],
    ]
    assert files["quick.log"] == "seen\n" and files["quick.json"] == "1" * 4000
    assert begin(tmp_path, "--seconds", "25").wait(60) == 1
    again = archived(tmp_path)
    names = [line.split("\t")[0] for line in again["steps.tsv"].splitlines()]
    assert names == ["quick", "hangs", "fails", "finds", "hangs", "fails"]
    assert again["hung"] == "x" * 2000
    begin(tmp_path, "--seconds", "25", "--steps", "quick").wait(60)
    assert archived(tmp_path)["quick.log"] == "seen\nseen\n"  # named, though it was done


def test_nsight_compute_is_asked_for_all_counters_that_are_read(tmp_path: Path) -> None:
    sys.path.insert(0, str(TOOLS / "first_gpu"))
    from first_gpu import __main__ as first

    (tmp_path / "ncu").write_text("#!/bin/sh\necho $*\n")
    (tmp_path / "ncu").chmod(0o755)
    command = next(step.command for step in first.steps("cuda") if step.name == "ncu")
    variables = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    words = done.stdout.split()
    assert set(words[words.index("--metrics") + 1].split(",")) == set(METRICS.values())
    assert Path(words[-1]).is_file()


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM])
def test_a_kill_leaves_an_archive_of_all_so_far(tmp_path: Path, sign: signal.Signals) -> None:
    process = begin(tmp_path, "--seconds", "25")
    deadline = time.monotonic() + 20
    while not (tmp_path / "runs/first-gpu/hung").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(sign)
    process.wait(20)
    files = archived(tmp_path)
    assert files["hung"] == "x" * 1000 and "running.new" not in files
    if sign == signal.SIGKILL:
        left = int((tmp_path / "runs/first-gpu/running.new").read_text())
        begin(tmp_path, "--seconds", "7").wait(20)  # too little for another step
        with pytest.raises(ProcessLookupError):
            os.killpg(left, 0)


def test_a_cut_archive_of_another_machine_is_kept_beside(tmp_path: Path) -> None:
    begin(tmp_path, "--seconds", "16").wait(60)
    whole = (tmp_path / "out/first-gpu.tar.gz").read_bytes()
    shutil.rmtree(tmp_path / "runs/first-gpu")
    (tmp_path / "runs/first-gpu.tar.gz").write_bytes(whole[: len(whole) * 9 // 10])
    process = begin(tmp_path, "--seconds", "16", machine="another machine", hangs=False)
    process.wait(60)
    files = archived(tmp_path)
    assert files["machine.json"] == "another machine"
    assert files["before/machine.json"] == "a machine"
    assert files["steps.tsv"].startswith("quick\t0")


def test_without_its_packages_it_stops_at_once(tmp_path: Path) -> None:
    process = begin(tmp_path, "--seconds", "25", machine="'; raise SystemExit(1) #")
    assert process.wait(20) == 3
    assert "steps.tsv" not in archived(tmp_path)


def test_attention_is_swept_apart_and_nothing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sys.path.insert(0, str(TOOLS / "first_gpu"))
    from first_gpu import __main__ as first

    monkeypatch.setattr(first, "FOLDER", tmp_path)
    first.split_suite()
    products, attention = (
        load_suite(tmp_path / f"full-{part}.toml").axes for part in ("products", "attention")
    )
    assert {axis.operator for axis in attention} == {"attention"}
    assert "attention" not in {axis.operator for axis in products}
    assert set(products) | set(attention) == set(load_suite("full").axes)


def test_what_came_back_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sys.path.insert(0, str(TOOLS / "first_gpu"))
    from read import read  # type: ignore[import-not-found]

    axis = Axis("linear", "K", tuple(range(64, 97)), {"M": 4, "N": 64}, "float16")
    planted = PlantedRun((axis,))
    made = tmp_path / "made"
    run = RunWriter.create(made / "quick", RunHeader("quick", planted.environment, (axis,)))
    for block in planted.blocks(axis):
        run.append(block)
    run.fold()
    RunWriter.create(made / "full", RunHeader("full", planted.environment, (axis,)))
    plane = {"dtype": "bfloat16", "M": 1024, "sizes": [4096, 4097], "us": [50.0, 120, 130, 140]}
    names = ["nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "cutlass_80_wmma_align1"]
    plane |= {"names": names, "kernels": [[0], [1], [1], []]}
    (made / "planes.json").write_text(json.dumps({"planes": [plane]}))
    clocks = "timestamp, clocks.current.sm [MHz], power.draw [W]\n"
    clocks += (
        "2026/11/27 02:00:00.000, 345 MHz, 70.10 W\n2026/11/27 02:00:00.100, 1980 MHz, 690 W\n"
    )
    (made / "clocks1.csv").write_text(clocks)
    archive = tmp_path / "first-gpu.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(made, "")
    out = tmp_path / "read"
    read(archive, out)
    assert load_map(out / "quick.json").curves[0].with_verdict("safe") == [64, 72, 80, 88, 96]
    assert (out / "quick/index.html").is_file()
    assert not (out / "full.json").exists()
    assert load_map(out / "joined.json").curves == load_map(out / "quick.json").curves
    printed = capsys.readouterr().out
    assert "345 to 1980 MHz" in printed and "690 W" in printed
    assert "align1" in printed and "not seen" in printed


def test_what_the_package_needs_is_carried_to_a_machine_without_network() -> None:
    """But for what an image with PyTorch has: seen in the first one that was lent."""
    in_the_image = {"numpy", "packaging", "rich", "safetensors"}
    project = tomllib.loads((TOOLS.parent / "pyproject.toml").read_text(encoding="utf-8"))
    names = {re.split(r"[<>=]", need)[0] for need in project["project"]["dependencies"]}
    carried = (TOOLS / "first_gpu" / "wheels.py").read_text(encoding="utf-8")
    missing = {name for name in names if f'"{name.replace("_", "-")}"' not in carried}
    assert missing == in_the_image

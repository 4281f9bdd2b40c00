"""What nobody foresaw, and streams that are not as usual: one line, an exit code of its own."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from decoders import write_decoder
from plug_ins import found_in, write_package

import gacprof
from gacprof.demonstrating.models import write_demo_checkpoint


def command(*words: object, **env: str) -> dict:
    path = [sys.executable, "-m", "gacprof", *map(os.fsencode, map(str, words))]
    return {"args": path, "env": os.environ | env, "timeout": 120}


def started(*words: object, **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(**command(*words, **env), capture_output=True)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError(5), "a fault of gacprof's own, KeyError: 5"),
        (MemoryError(), "out of memory (MemoryError: MemoryError)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes"), "out of memory"),
        (RecursionError("maximum recursion depth exceeded"), "RecursionError"),
    ],
)
def test_a_fault_is_one_line_and_is_not_taken_for_a_finding(run, monkeypatch, error, said):
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(gacprof, "verify", fails, raising=False)
    shown = run("verify", "a", "b", "--json")
    assert shown.code == 70 and said in shown.err and shown.err.count("\n") == 1
    assert json.loads(shown.out)["kind"] == "Fault"
    monkeypatch.setenv("GACPROF_TRACEBACK", "1")
    assert "Traceback" in run("verify", "a", "b").err


def test_closed_streams_take_nothing_and_nothing_lands_in_a_file(tmp_path):
    folder = write_decoder(tmp_path / "model")
    words = ["realign", folder, "--strategy", "minimal", "--out", tmp_path / "out"]

    def closed() -> None:
        for number in (0, 1, 2):
            os.close(number)

    done = subprocess.run(**command(*words), preexec_fn=closed)
    assert done.returncode == 0
    gacprof.realign(folder, "minimal", tmp_path / "again")
    for file in (tmp_path / "again").glob("*.safetensors"):
        assert file.read_bytes() == (tmp_path / "out" / file.name).read_bytes()


def test_output_that_cannot_be_written_is_told():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(**command("map", "list"), stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2 and done.stderr.count(b"\n") == 1
    assert b"No space left on device" in done.stderr


def test_a_disk_that_fills_in_mid_sweep_names_place_and_resume(tmp_path):
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))

    words = ["sweep", "--op", "linear", "--axis", "K", "--range", "8:24", "--fixed", "M=16,N=16",
             "--device", "cpu", "--no-isolate", "--out", tmp_path / "run"]  # fmt: skip
    plain = command(*words, PYTHONDONTWRITEBYTECODE="1")  # the limit would cut what is cached, too
    done = subprocess.run(**plain, preexec_fn=limited, capture_output=True)
    assert done.returncode == 2, done.stderr
    assert f"writing to {tmp_path / 'run'} failed: File too large" in done.stderr.decode()
    assert b"--resume" in done.stderr and done.stderr.count(b"\n") == 1


def test_a_terminal_of_another_encoding_gets_escapes(run):
    asked = ("map", "show", "a100-published", "--op", "attention")
    other = started(*asked, PYTHONIOENCODING="ascii")
    assert other.returncode == 0 and not other.stderr
    assert "●" in run(*asked).out and "\\u25cf" in other.stdout.decode("ascii")
    data = started(*asked[:3], "--json", PYTHONIOENCODING="latin-1").stdout.decode("latin-1")
    assert json.loads(data) == json.loads(run(*asked[:3], "--json").out)


def test_paths_that_are_no_utf8_are_read_written_and_shown(run, tmp_path):
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/m\xff"))
    folder = write_decoder(tmp_path / "model", tokenizer="bytes").rename(odd)
    known = write_demo_checkpoint(tmp_path / "known").rename(f"{odd}-known")
    asked = ["diagnose", folder, "--map", "cpu-example"]
    shown = started(*asked)
    assert shown.returncode in (0, 1) and not shown.stderr
    for words in (
        asked,
        ["plan", known, "--map", "cpu-example", "--out", f"{odd}-plan.json"],
        ["realign", folder, "--strategy", "minimal", "--out", f"{odd}-out"],
        ["export", folder, "--to", "vllm", "--check", "tensors", "--out", f"{odd}-served"],
    ):
        done = run(*words, "--json")
        assert done.code in (0, 1) and not done.err and json.loads(done.out), (words, done.err)


@pytest.mark.parametrize(
    ("group", "code", "message"),
    [
        ("compressors", "one = 5", "it is of type int, Compressor is needed"),
        ("devices", "def one(index): return 5", "it is of type int, Device is needed"),
        ("devices", "def one(index): raise ValueError('no GPU')", "cannot be opened: no GPU"),
        ("operators", "one = 5", "it is of type int, Operator or module is needed"),
        ("tiers", "one = 5", "'int' object has no attribute 'CHIPS'"),
        ("compressors", "raise SystemExit(3)", "cannot be loaded: 3"),
    ],
)
def test_a_plug_in_of_the_wrong_kind_is_named(run, group, code, message, tmp_path):
    write_package(tmp_path, {"theirs": code}, f"[gacprof.{group}]\nmine = theirs:one\n")
    quick = ("sweep", "quick", "--no-isolate")
    asks = {
        "compressors": ["diagnose", write_decoder(tmp_path / "model"), "--map", "cpu-example"],
        "devices": [*quick, "--device", "mine:0", "--out", tmp_path / "run"],
        "operators": ["sweep", "--op", "other", "--axis", "K", "--range", "8:9", "--dry-run"],
        "tiers": ["map", "rules", "--gpu", "h100", "--torch", "2.11", "--out", tmp_path / "m.json"],
    }
    with found_in(tmp_path):
        run(*asks[group]).refused(message)

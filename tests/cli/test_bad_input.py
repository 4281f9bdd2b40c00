"""Bad input: one clear line on stderr, exit code 2, nothing written, nothing changed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def copy(asvd, tmp_path):
    """The checkpoint's config and weights, to be spoiled."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((asvd / name).read_bytes())
    return folder


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "model.safetensors").unlink(), "model"),
        (lambda f: os.truncate(f / "model.safetensors", 100_000), "model.safetensors"),
        (lambda f: (f / "config.json").write_text("{"), "config.json"),
    ],
)
def test_a_damaged_checkpoint_is_refused_by_every_verb(
    run, copy, planted_map, tmp_path, spoil, message
):
    spoil(copy)
    before = snapshot(copy)
    run("diagnose", copy, "--map", planted_map).refused(message)
    run("plan", copy, "--map", planted_map, "--out", tmp_path / "plan.json").refused(message)
    run("realign", copy, "--strategy", "minimal", "--out", tmp_path / "out").refused(message)
    run("verify", copy, copy).refused(message)
    run("sweep", "--for", copy, "--dry-run").refused(message)
    assert snapshot(copy) == before
    assert not (tmp_path / "plan.json").exists() and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("map", "build", ".", "--name", "../x"), "a map's name"),
        (("map", "export", "a100-published", "--out", "/proc/none.json"), "/proc/none.json"),
        (("map", "build", "file"), "it is a file"),
        (("map", "build", "nonesuch"), "no such folder"),
        (("map", "build", "."), "not a sweep's folder"),
        (("sweep", "cpu", "--device", "cpu", "--out", "new", "--resume"), "nothing to resume"),
    ],
)
def test_places_that_cannot_be_read_or_written_are_named(
    run, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    run(*arguments).refused(message)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_output_folder_that_exists_is_left_alone(run, asvd, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    run("realign", asvd, "--strategy", "minimal", "--out", tmp_path / "out").refused("out")
    assert snapshot(tmp_path / "out") == {"mine.txt": b"mine"}
    run("demo", "--out", tmp_path / "out").refused("holds no demo")
    assert snapshot(tmp_path / "out") == {"mine.txt": b"mine"}


@pytest.mark.parametrize(
    "arguments",
    [
        ("sweep",),
        ("sweep", "quick", "--for", "x"),
        ("sweep", "quick", "--device", "tpu", "--no-isolate"),
        ("sweep", "nonesuch"),
        ("sweep", "--for", "nonesuch", "--tokens", "one"),
        ("realign", "x", "--out", "y"),
        ("realign", "x", "--out", "y", "--strategy", "maximal"),
        ("plan", "x"),
        ("nonesuch",),
        ("map", "show"),
        ("report", "--out", "page"),
        ("bench", "nonesuch"),
        ("map", "candidates", "a100-published", "--op", "conv", "--axis", "K", "--near", "107"),
    ],
)
def test_usage_errors_are_one_line(run, arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(*arguments).refused()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("realign", "--strategy", "minimal"),
        ("compress", "--method", "svd", "--ratio", "0.3", "--device", "cpu"),
        ("export", "--to", "uniform"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_output_below_links_in_a_circle_is_refused(run, copy, tmp_path, arguments):
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    verb, *options = arguments
    run(verb, copy, *options, "--out", tmp_path / "a" / "x").refused()


CTRL_C_IN_AN_IMPORT = """
import os, signal, sys, gacprof.cli

class Interrupting:
    def find_spec(self, name, *_):
        if name == "typer":
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:  # as a callback within an import loses it
                pass

sys.meta_path.insert(0, Interrupting())
sys.argv = ["gacprof", "--version"]
gacprof.cli.main()
"""


def test_ctrl_c_while_the_command_line_is_imported_ends_it_quietly():
    command = [sys.executable, "-c", CTRL_C_IN_AN_IMPORT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_in_a_sweep_exits_130_and_the_sweep_goes_on(run, tmp_path, monkeypatch):
    from gacprof.devices.device import Device
    from gacprof.sweeping import read_blocks

    (tmp_path / "t.toml").write_text(
        'name = "t"\n[timing]\nprocesses = 1\nblocks = 6\nmost_blocks = 6\n'
        '[[sweep]]\noperator = "linear"\naxis = "K"\n'
        "values = [{ from = 8, to = 20 }]\ndims = { M = 4, N = 8 }\n"
    )
    arguments = ("sweep", tmp_path / "t.toml", "--device", "cpu", "--out", tmp_path / "run",
                 "--no-isolate")  # fmt: skip
    real, calls = Device.blocks, []

    def interrupted(self, wanted):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(self, wanted)

    monkeypatch.setattr(Device, "blocks", interrupted)
    stopped = run(*arguments)
    assert stopped.code == 130 and stopped.err.count("\n") == 1
    assert f"what was measured is in {tmp_path / 'run'}" in stopped.err
    before = read_blocks(tmp_path / "run")
    assert len(before) == 3
    resumed = run(*arguments, "--resume", "--json")
    assert resumed.code == 0 and json.loads(resumed.out)["blocks"] == 6
    assert read_blocks(tmp_path / "run")[:3] == before
    assert run("map", "build", tmp_path / "run").code in (0, 1)  # 1: noisy, as a busy machine is


def test_a_reader_that_goes_away_is_no_error():
    """Exit code 1 would say that something was found; 141 is that of a program ended by SIGPIPE."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "gacprof", "map", "list"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("gacprof dia", "diagnose"),
        ("gacprof diagnose --m", "--map"),
        ("gacprof diagnose MODEL --map h100-", "h100-published"),
        ("gacprof map show cpu", "cpu-example"),
        ("gacprof plan MODEL --objective la", "latency"),
    ],
)
def test_a_shell_completes_verbs_options_and_their_values(run, monkeypatch, words, offered):
    monkeypatch.setenv("_GACPROF_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert run().out.split() == [offered]


@pytest.mark.parametrize("arguments", [(), ("map",), ("evidence",)])
def test_no_arguments_give_the_help(run, arguments):
    message = run(*arguments)
    assert message.code == 0 and message.err == ""
    assert "Usage" in message.out and len(message.out.splitlines()) > 5

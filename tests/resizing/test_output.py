"""The output appears whole or not at all, and a killed run goes on where it was."""

import fcntl
import json
import os
import resource
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from checkpoint_making import PEAK_KIB, checkpoint
from checkpoint_making import told_by as told_by_python
from forked import forked, told_by
from safetensors.numpy import load_file

from gacprof.checkpoint import open_tensors, scan
from gacprof.core.errors import CheckpointError
from gacprof.resizing import realign


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "gacprof.json"}


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def killing(after):
    """Ends the process once so much is done."""

    def progress(done, total, what):
        if done >= after:
            os.kill(os.getpid(), signal.SIGKILL)

    return progress


def kill_after(count, source, out):
    """Realign in a process that is killed after ``count`` bytes; returns what it left."""

    def run():
        realign(source, "minimal", out, progress=killing(count))

    assert forked(run) == -signal.SIGKILL
    assert not out.exists()
    (left,) = out.parent.glob(f".{out.name}.realign-*")
    return left


@pytest.fixture
def killed(make_factored, tmp_path):
    """A source of three shards, what a run left that was killed after the first, and the size of
    that; ``fresh`` is the whole output."""
    source = make_factored([13, 11, 9], shards=3)
    realign(source, "minimal", tmp_path / "fresh")
    first = (tmp_path / "fresh" / "model-00001-of-00003.safetensors").stat().st_size
    return source, kill_after(first + 1, source, tmp_path / "out"), first


def test_a_killed_run_is_resumed_and_gives_the_same_bytes(killed, tmp_path):
    source, left, _ = killed
    assert "model-00001-of-00003.safetensors" in names(left)
    assert any(name.startswith(".model-00002-of-00003.safetensors.") for name in names(left))
    result = realign(source, "minimal", tmp_path / "out")
    assert result.resumed == ("model-00001-of-00003.safetensors",)
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
    assert not list(tmp_path.glob(".*realign*"))


def test_factors_of_a_resumed_cut_come_from_one_decomposition(make_factored, tmp_path):
    """u and v lie in different shards; the run is killed between them."""
    source, out = make_factored([13], shards=2), tmp_path / "out"
    first = source / "model-00001-of-00002.safetensors"
    module = "model.layers.0.self_attn.q_proj"
    assert set(load_file(first)) == {f"{module}.ALinear.bias", f"{module}.BLinear.weight"}

    def cut(progress=None):
        inventory = scan(source, factors=("{module}.ALinear.weight", "{module}.BLinear.weight"))
        realign(inventory, {dim.name: 8 for dim in inventory.dims}, out, progress=progress)

    made = []
    for _ in range(2):  # v is written, u is not
        assert forked(cut, killing(1200)) == -signal.SIGKILL
        (left,) = tmp_path.glob(".out.realign-*")
        assert first.name in names(left)
        made.append((left / ".cuts" / "0.npz").stat().st_mtime_ns)
    assert made[0] == made[1]  # the second run did not decompose anew
    cut()
    old, new = open_tensors(source), open_tensors(out)
    pairs = [
        [reader.read(f"{module}.{part}Linear.weight").astype(np.float64) for part in "AB"]
        for reader in (old, new)
    ]
    u, s, vt = np.linalg.svd(pairs[0][0] @ pairs[0][1])
    np.testing.assert_allclose(pairs[1][0] @ pairs[1][1], (u[:, :8] * s[:8]) @ vt[:8], atol=1e-5)


def test_a_finished_file_that_was_damaged_meanwhile_is_written_again(killed, tmp_path):
    source, left, first = killed
    os.truncate(left / "model-00001-of-00003.safetensors", first - 4)
    result = realign(source, "minimal", tmp_path / "out")
    assert result.resumed == ()
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_a_planted_workspace_is_not_taken_for_finished(killed, tmp_path):
    """A copy of what a killed run left, record and times and all, with zeros for weights."""
    source, left, first = killed
    shutil.move(left, tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", left)
    forged = left / "model-00001-of-00003.safetensors"
    times = forged.stat()
    forged.write_bytes(forged.read_bytes()[:400] + bytes(first - 400))
    os.utime(forged, ns=(times.st_atime_ns, times.st_mtime_ns))
    (left / "modeling_evil.py").write_text("evil")
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for name in ("config.json", "model-00002-of-00003.safetensors"):
        (left / name).symlink_to(precious)
    result = realign(source, "minimal", tmp_path / "out")
    assert result.resumed == ()
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")
    assert precious.read_text() == "mine"
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())


def test_a_link_in_the_workspaces_place_is_refused(make_factored, tmp_path):
    source = make_factored([13, 11], shards=2)
    left = kill_after(1, source, tmp_path / "out")
    shutil.rmtree(left)
    (tmp_path / "elsewhere").mkdir()
    left.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="is a link or somebody else's folder"):
        realign(source, "minimal", tmp_path / "out")
    assert names(tmp_path / "elsewhere") == [] and not os.path.lexists(tmp_path / "out")


def test_an_output_that_exists_or_lies_in_the_checkpoint_is_refused(make_factored, tmp_path):
    source, out = make_factored([13]), tmp_path / "out"
    out.mkdir()
    (out / "precious").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    for place, why in (
        (out, "exists already"),
        (tmp_path / "dangling", "exists already"),
        (source / "aligned", "lies in the checkpoint"),
    ):
        with pytest.raises(CheckpointError, match=why):
            realign(source, "minimal", place)
    assert contents(out) == {"precious": b"mine"} and not (source / "aligned").exists()


def test_two_runs_do_not_write_the_same_output(make_factored, tmp_path):
    source = make_factored([13], shards=1)
    left = kill_after(1, source, tmp_path / "out")
    handle = os.open(left, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with pytest.raises(CheckpointError, match="another process"):
            realign(source, "minimal", tmp_path / "out")
        assert left.exists()
    finally:
        os.close(handle)


def test_a_write_that_fails_leaves_nothing_and_says_so_in_one_line(make_factored, tmp_path):
    source = make_factored([13])

    def on_a_full_disk():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        with pytest.raises(CheckpointError) as refused:
            realign(source, "minimal", tmp_path / "out")
        return str(refused.value)

    message = told_by(on_a_full_disk)
    assert "\n" not in message and "File too large" in message
    assert names(tmp_path) == ["source"]


def test_a_disk_without_room_is_refused_before_anything_is_written(
    make_factored, tmp_path, monkeypatch
):
    source = make_factored([13])
    usage = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(CheckpointError, match="needed"):
        realign(source, "minimal", tmp_path / "out")
    assert names(tmp_path) == ["source"]


def test_an_interrupted_run_leaves_nothing(make_factored, tmp_path):
    def interrupt(done, total, what):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        realign(make_factored([13]), "minimal", tmp_path / "out", progress=interrupt)
    assert names(tmp_path) == ["source"]


MEMORY = f"""
import json, sys{PEAK_KIB}
from gacprof.resizing import realign
written = realign(sys.argv[1], "minimal", sys.argv[1] + "-out").bytes_written
peak = 1024 * peak_kib()
print(json.dumps({{"peak": peak, "bytes": written, "torch": "torch" in sys.modules}}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_peak_memory_does_not_grow_with_the_checkpoint(tmp_path):
    """Seven pairs of 2 × 17 MB in a sparse file: more than the bound if it were held at once."""
    rank, features, largest = 1023, 8192, 2 * 1023 * 8192
    shapes = {}
    for layer in range(7):
        module = f"model.layers.{layer}.self_attn.q_proj"
        shapes[f"{module}.ALinear.weight"] = (features, rank)
        shapes[f"{module}.BLinear.weight"] = (rank, features)
    checkpoint(tmp_path / "source", shapes, {})
    found = json.loads(told_by_python(MEMORY, tmp_path / "source"))
    bound = 2 * largest + 100_000_000
    assert found["bytes"] > 1.5 * bound and not found["torch"]
    assert found["peak"] <= bound


def test_a_link_to_a_file_outside_is_not_copied(make_factored, tmp_path):
    source = make_factored([13])
    (tmp_path / "secret").write_text('{"mine": true}')
    for name in ("tokenizer.json", "gacprof.json"):
        (source / name).unlink(missing_ok=True)
        (source / name).symlink_to("../secret")
    result = realign(source, "minimal", tmp_path / "out")
    assert names(tmp_path / "out") == ["config.json", "gacprof.json", "model.safetensors"]
    assert any("'tokenizer.json' is a link" in note for note in result.notes)
    assert "mine" not in (tmp_path / "out" / "gacprof.json").read_text()


@pytest.mark.parametrize(
    "shard", ["gacprof.json", "tokenizer_config.json", ".cuts/a.safetensors", "a.partial"]
)
def test_a_shard_under_another_files_name_is_refused(make_factored, tmp_path, shard):
    source = make_factored([13, 11], shards=2)
    index = source / "model.safetensors.index.json"
    old = "model-00002-of-00002.safetensors"
    (source / shard).parent.mkdir(exist_ok=True)
    (source / old).rename(source / shard)
    index.write_text(index.read_text().replace(old, shard))
    with pytest.raises(CheckpointError, match="no name for weights"):
        realign(source, "minimal", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_config_with_infinity_is_written_as_it_was(make_factored, tmp_path):
    source = make_factored([13])
    config = json.loads((source / "config.json").read_text()) | {"limit": [0.0, float("inf")]}
    (source / "config.json").write_text(json.dumps(config))
    realign(source, "minimal", tmp_path / "out")
    new = json.loads((tmp_path / "out" / "config.json").read_text())
    assert new["limit"] == [0.0, float("inf")]
    assert set(new["truncation_ranks"].values()) == {16}

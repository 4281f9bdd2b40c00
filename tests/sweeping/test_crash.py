"""What survives a power cut: only what was synced, under names that were synced."""

import os
import stat
from pathlib import Path

from test_run import device, suite

from gacprof.sweeping import store
from gacprof.sweeping.run import run_sweep
from gacprof.sweeping.store import PARQUET, read_blocks


class Disk:
    """What is on disk: the bytes of each file and the names of each folder at their last fsync.

    The cruellest reading of fsync(2): a write, a new name, a rename or a removal that was not
    followed by an fsync of its file or folder has not happened.
    """

    def __init__(self, monkeypatch) -> None:
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        real = os.fsync

        def fsync(descriptor: int) -> None:
            real(descriptor)
            there, place = os.fstat(descriptor), Path(f"/proc/self/fd/{descriptor}").resolve()
            if stat.S_ISDIR(there.st_mode):
                self._names[there.st_ino] = {p.name: p.stat().st_ino for p in place.iterdir()}
            else:
                self._bytes[there.st_ino] = place.read_bytes()

        monkeypatch.setattr(os, "fsync", fsync)

    def after_a_power_cut(self, folder: Path, into: Path) -> Path:
        into.mkdir()
        for name, inode in self._names.get(folder.stat().st_ino, {}).items():
            (into / name).write_bytes(self._bytes.get(inode, b""))
        return into


FOLDED_AT = 500
LONG = suite((8, 9), blocks=600, most_blocks=600)


def test_a_power_cut_loses_at_most_the_block_under_way(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "FOLD_AT_LEAST", FOLDED_AT)
    disk = Disk(monkeypatch)
    run = tmp_path / "run"
    kept = []

    def progress(done, total, point):
        """Called when all earlier blocks are done and the next is about to begin."""
        if done and (done < 12 or abs(done - FOLDED_AT) < 5 or done == 580):
            left = disk.after_a_power_cut(run, tmp_path / f"{done}")
            kept.append((done, len(read_blocks(left))))

    run_sweep(LONG, device(), run, progress=progress)
    assert len(kept) == 11 + 9 + 1
    assert all(done == left for done, left in kept), kept
    assert (tmp_path / f"{FOLDED_AT}" / PARQUET).exists(), "a fold lies between: loses nothing"


def test_what_a_power_cut_leaves_is_resumed(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    run = tmp_path / "run"

    def progress(done, total, point):
        if done == 5:
            disk.after_a_power_cut(run, tmp_path / "left")

    whole = run_sweep(suite(), device(), run, progress=progress)
    assert len(read_blocks(disk.after_a_power_cut(run, tmp_path / "end"))) == whole.blocks
    rest = run_sweep(suite(), device(), tmp_path / "left", resume=True)
    assert (rest.points, rest.unfinished) == (whole.points, 0)
    assert read_blocks(tmp_path / "left")[:5] == read_blocks(run)[:5]

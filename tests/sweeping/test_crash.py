"""What survives a power cut: only what was synced, under names that were synced."""

import os
import stat
from pathlib import Path

from test_run import device, suite

from gacprof.sweeping.run import run_sweep
from gacprof.sweeping.store import PARQUET, read_samples


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


def test_a_power_cut_loses_at_most_the_point_being_measured(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    run = tmp_path / "run"
    kept = []

    def progress(done, total, point):
        """Called when all earlier visits are done and the next is about to begin."""
        if done and (done < 12 or 495 < done < 505 or done == 700):
            kept.append(
                (done, len(read_samples(disk.after_a_power_cut(run, tmp_path / f"{done}"))))
            )

    run_sweep(suite(range(1, 400)), device(), run, progress=progress)
    assert len(kept) == 11 + 9 + 1
    assert all(done == left for done, left in kept), kept
    assert (tmp_path / "504" / PARQUET).exists(), "a fold lies between, and loses nothing"


def test_what_a_power_cut_leaves_is_resumed(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    run = tmp_path / "run"

    def progress(done, total, point):
        if done == 5:
            disk.after_a_power_cut(run, tmp_path / "left")

    whole = run_sweep(suite(), device(), run, progress=progress)
    rest = run_sweep(suite(), device(), tmp_path / "left", resume=True)
    assert rest.visits == whole.visits
    assert read_samples(tmp_path / "left")[:5] == read_samples(run)[:5]


def test_a_finished_sweep_is_on_disk(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    summary = run_sweep(suite(), device(), tmp_path / "run")
    left = disk.after_a_power_cut(tmp_path / "run", tmp_path / "left")
    assert len(read_samples(left)) == summary.visits

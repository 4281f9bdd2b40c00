"""Files appear whole or not at all, and nothing is left beside them."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest
import torch
from forked import forked, told_by

from gacprof.core.errors import ReportError
from gacprof.core.files import (
    beginning,
    read_bytes,
    read_json,
    read_text,
    refuse_to_replace,
    replacing,
    write_text,
)
from gacprof.resizing.writers import save_tensors


def test_what_a_killed_process_left_is_removed_by_the_next_and_nothing_else(tmp_path):
    path, other = tmp_path / "map.json", tmp_path / ".map.json.bak"
    other.write_text("mine")

    def killed_while_writing():
        with replacing(path) as temporary:
            temporary.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

    assert forked(killed_while_writing) == -signal.SIGKILL
    assert len(list(tmp_path.glob(".map.json.????????"))) == 1 and not path.exists()
    with replacing(path) as first:
        first.write_text("first")
        write_text(path, "second")  # another process's, meanwhile
        assert first.exists()
    assert path.read_text() == "first"
    assert {p.name for p in tmp_path.iterdir()} == {"map.json", ".map.json.bak"}


def test_tensors_on_a_full_disk_are_an_error_of_the_system(tmp_path):
    path = tmp_path / "model.safetensors"

    def on_a_full_disk():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        with pytest.raises(OSError, match="File too large") as refused:
            save_tensors(path, {"a": torch.zeros(9999)})
        return refused.value.filename

    assert told_by(on_a_full_disk) == str(path)
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_leads_nowhere_is_not_replaced(tmp_path):
    link = tmp_path / "map.json"
    link.symlink_to(link)
    with pytest.raises(ReportError, match="leads nowhere"):
        refuse_to_replace(link, "map", lambda path: True)


@pytest.fixture(params=["fifo", "device", "link to a device"])
def special(request, tmp_path):
    """What a path can be that neither ends nor may be replaced."""
    path = tmp_path / "run.json"
    if request.param == "fifo":
        os.mkfifo(path)
    elif request.param == "device":
        path = Path("/dev/zero")
    else:
        path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("read", [beginning, read_bytes, read_text, read_json])
def test_only_regular_files_are_read(special, read):
    with pytest.raises(OSError, match="no regular file") as refused:
        read(special)
    assert refused.value.filename == str(special)


def test_only_regular_files_are_replaced(special):
    before = special.lstat()
    with pytest.raises(OSError, match="no regular file"), replacing(special):
        pytest.fail("nothing is written for it")
    with pytest.raises(ReportError, match="no regular file"):
        refuse_to_replace(special, "map", lambda path: True)
    assert os.path.samestat(before, special.lstat())


def test_a_file_larger_than_memory_is_not_read(tmp_path):
    path = tmp_path / "sparse.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(OSError, match="more than"):
        read_json(path)

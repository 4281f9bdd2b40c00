"""Files appear whole or not at all, and nothing is left beside them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gacprof.core.errors import ReportError
from gacprof.core.files import refuse_to_replace, replacing, write_text

KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from gacprof.core.files import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_is_removed_by_the_next_and_nothing_else(tmp_path):
    path, other = tmp_path / "map.json", tmp_path / ".map.json.bak"
    other.write_text("mine")
    subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, path], check=False)
    assert len(list(tmp_path.glob(".map.json.????????"))) == 1 and not path.exists()
    with replacing(path) as first:
        first.write_text("first")
        write_text(path, "second")  # another process's, meanwhile
        assert first.exists()
    assert path.read_text() == "first"
    assert {p.name for p in tmp_path.iterdir()} == {"map.json", ".map.json.bak"}


def test_tensors_on_a_full_disk_are_an_error_of_the_system(tmp_path):
    code = (
        "import resource, sys, torch; from pathlib import Path\n"
        "from gacprof.core.files import write_tensors\n"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "try: write_tensors(Path(sys.argv[1]), {'a': torch.zeros(9999)})\n"
        "except OSError as error: print(error.filename, error.strerror)\n"
    )
    path = tmp_path / "model.safetensors"
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert done.stdout == f"{path} File too large\n", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_link_that_leads_nowhere_is_not_replaced(tmp_path):
    link = tmp_path / "map.json"
    link.symlink_to(link)
    with pytest.raises(ReportError, match="leads nowhere"):
        refuse_to_replace(link, "map", lambda path: True)

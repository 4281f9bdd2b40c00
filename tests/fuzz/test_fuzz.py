"""Nine damaged files of every kind, the same ones each run; ``make fuzz`` reads 20,000."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

COUNT = 126


def test_no_damaged_file_leads_to_anything_but_an_answer_or_a_clear_refusal():
    fuzzer = Path(__file__).parent / "fuzzer.py"
    command = [sys.executable, str(fuzzer), "--count", str(COUNT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{COUNT} inputs" in done.stdout and "refused" in done.stdout

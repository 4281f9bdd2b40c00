"""Four damaged files of every kind, the same ones each run; ``make fuzz`` reads 20,000."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from fuzzer import FINE, fuzz

COUNT = 56


def test_no_damaged_file_leads_to_anything_but_an_answer_or_a_clear_refusal(tmp_path):
    found = list(fuzz(tmp_path, COUNT))
    assert len(found) == COUNT and {o.kind for o in found} >= {"refused"}
    assert [outcome for outcome in found if outcome.kind not in FINE] == []

"""One kill and one termination of realign; ``make torture`` does 100 of all verbs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from torture import FINE, SIGNALS, VERBS, Torturer, torture

QUICK = "realign"


def test_what_is_stopped_at_any_moment_goes_on_and_loses_nothing(tmp_path):
    found = torture(tmp_path / "scratch", 2, only=QUICK, tell=lambda outcome: None)
    assert [o for o in found if o.kind not in FINE] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [verb.name for verb in VERBS if verb.name != QUICK])
def test_the_verbs_that_take_longer_too(name, tmp_path):
    found = torture(tmp_path / "scratch", 2 * len(SIGNALS), only=name, tell=lambda outcome: None)
    assert [o for o in found if o.kind not in FINE] == []


def test_half_an_output_is_seen(tmp_path, monkeypatch):
    """The torturer itself: a verb that leaves half a file under the output's name is found out."""
    torturer, verb = Torturer(tmp_path / "scratch"), VERBS[1]
    whole = {"map.json": "the digest of the whole"}
    torturer._renew()
    (tmp_path / "scratch" / "work" / "map.json").write_text("{")
    assert torturer._lost(verb, whole, {})[0] == "half output"
    (tmp_path / "scratch" / "work" / "map.json").unlink()
    (tmp_path / "scratch" / "work" / "suite.toml").write_text("")
    assert torturer._lost(verb, whole, {}) == ("input changed", "suite.toml")

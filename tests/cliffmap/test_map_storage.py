"""What is refused on loading, with the place and the reason, and what it costs to load."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from pathlib import Path

import pytest

from gacprof.cliffmap import CliffMap, shipped_maps
from gacprof.core.errors import MapError


@pytest.fixture
def data(a100) -> dict:
    return json.loads(json.dumps(a100.as_dict()))


@pytest.fixture
def refused(tmp_path):
    def load(content) -> str:
        path = tmp_path / "map.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(MapError) as error:
            CliffMap.load(path)
        assert str(path) in str(error.value) and "\n" not in str(error.value)
        return str(error.value)

    return load


CHECK = {"name": "carry-over", "effect": 0.1, "bound": math.inf, "passed": True}


def first(data: dict) -> dict:
    """Its first curve, of attention over head_dim."""
    return data["curves"][0]


def turned_round(data: dict) -> None:
    cliff = first(data)["cliffs"][0]
    cliff["before"], cliff["after"] = cliff["after"], cliff["before"]


def one_point(data: dict) -> None:
    first(data)["points"] = {name: column[:1] for name, column in first(data)["points"].items()}


DAMAGED = [
    (lambda m: m.update(schema="gacprof.cliffmap/4", galaxies=[]), "newer than the gacprof.cliffm"),
    (
        lambda m: m.update(schema="gacprof.cliffmap/1"),
        "make it anew: gacprof map build RUN (RUN: its sweep's folder",
    ),
    (lambda m: m.update(schema="gacprof.plan/1"), "'gacprof.plan/1', not gacprof.cliffmap/3"),
    (lambda m: m.pop("schema"), "'schema' is missing"),
    (lambda m: first(m)["cliffs"][0].update(after=1000), "names 1000"),
    (turned_round, "a cliff runs from"),
    (lambda m: m["curves"][1]["points"]["latency_us"].__setitem__(4, -3.0), "curves[1] (linear M"),
    (lambda m: m["curves"][1]["points"]["latency_us"].__setitem__(4, math.nan), "a finite number"),
    (lambda m: m.update(checks=[CHECK]), "should be a finite number"),
    (lambda m: first(m)["points"]["low_us"].__setitem__(0, 1e9), "low_us at d=64"),
    (one_point, "needs two dims at least"),
    (lambda m: first(m)["points"]["d"].__setitem__(3, 66), "d=66 is there twice"),
    (lambda m: first(m)["points"]["d"].__setitem__(3, 60), "d=60 stands after d=66"),
    (lambda m: first(m)["points"]["count"].pop(), "differ in length"),
    (lambda m: first(m).update(speed=1), "curves[0]"),
    (lambda m: m["curves"].append(first(m)), "two curves are the same one"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGED)
def test_a_damaged_map_is_refused_with_the_place_and_the_reason(data, refused, damage, message):
    damage(data)
    assert message in refused(data)


def test_a_map_of_the_version_before_is_refused_with_what_makes_it_anew(fixtures):
    kept = fixtures / "artefacts-0.1" / "h100-published.cliffmap.json"
    with pytest.raises(
        MapError, match=r"is gacprof\.cliffmap/2, .*: gacprof map build RUN"
    ) as found:
        CliffMap.load(kept)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("text", ["", "[]", "not json", '{"schema": [1]}'])
def test_what_is_no_map_at_all(text, refused):
    refused(text)


def called_safe(curve: dict) -> None:
    curve["safe"].append(curve["misaligned"].pop(0))


def called_misaligned(curve: dict) -> None:
    curve["misaligned"].append(curve["safe"].pop())


def of_another_time(curve: dict) -> None:
    curve["points"]["penalty_high"][0] = 0.0
    curve["points"]["latency_us"][0] *= 1.5


def counted_twice(curve: dict) -> None:
    curve["coverage"]["failed"] = {str(curve["points"]["d"][0]): "out of memory"}


@pytest.mark.parametrize(
    ("contradict", "message"),
    [
        (called_safe, r"curves\[0\] \(.*\): 'safe' names \d+, whose penalty may be"),
        (called_misaligned, r"'misaligned' names \d+, whose penalty may be as low as 0"),
        (lambda c: c["misaligned"].append(c["safe"][0]), "is called safe and misaligned"),
        (of_another_time, r"the penalty of 64 is .*, its bounds are"),
        (
            lambda c: c["cliffs"][0].update(jump=c["cliffs"][0]["jump"] + 0.05),
            r"→ \d+ says .*, the",
        ),
        (lambda c: c["coverage"].update(measured=1), "dims were measured, there are"),
        (counted_twice, "among the measured and the failed"),
    ],
)
def test_findings_that_the_points_contradict(data, refused, contradict, message):
    contradict(first(data))
    assert re.search(message, refused(data))


def test_a_name_that_is_neither_file_nor_shipped():
    with pytest.raises(MapError, match=r"no map 'h900'.*a100-published"):
        CliffMap.load("h900")


def test_a_missing_file_a_folder_and_bytes(tmp_path):
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.json", tmp_path, tmp_path / "bytes.json"):
        with pytest.raises(MapError, match="cannot read the map"):
            CliffMap.load(path)


def test_saving_where_it_cannot_be_saved(a100, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MapError, match="cannot write the map"):
        a100.save(tmp_path / "file" / "map.json")


@pytest.mark.parametrize("name", shipped_maps())
def test_shipped_maps_are_small_and_saved_as_they_were_loaded(name, tmp_path):
    loaded = CliffMap.load(name)
    assert loaded.name == name and loaded.curves
    path = Path(sys.modules["gacprof.maps"].__file__).parent / f"{name}.json"
    assert path.stat().st_size < 2_000_000
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_a_fifo_is_named_as_what_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    for name in ("fifo", "./fifo"):
        with pytest.raises(MapError, match="it is no regular file"):
            CliffMap.load(name)

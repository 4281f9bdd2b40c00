"""docs/schemas: made of today's types, and true of what verbs write."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from json_schemas import file_of, json_schemas

from gacprof.cli.app import main
from gacprof.cliffmap import CliffMap
from gacprof.planning import Plan

jsonschema = pytest.importorskip("jsonschema")

SCHEMAS = Path(__file__).parents[2] / "docs/schemas"
MAP = "h100-published"
ATTENTION = (MAP, "--op", "attention", "--axis", "head_dim")


def check(data: dict) -> str:
    """Validate an output by the schema that it names; returns the name."""
    name = data["schema"].removeprefix("gacprof.")
    schema = json.loads((SCHEMAS / file_of(name)).read_text())
    jsonschema.Draft202012Validator(schema).validate(data)
    return name


def test_the_published_schemas_are_current():
    made = {file_of(name): schema for name, schema in json_schemas().items()}
    assert made.keys() == {path.name for path in SCHEMAS.glob("*.json")}
    for name, schema in made.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        kept = json.loads((SCHEMAS / name).read_text())
        assert kept == json.loads(json.dumps(schema)), (
            f"{name}: python tools/json_schemas.py docs/schemas"
        )


def test_every_id_in_the_code_has_a_schema(pytestconfig):
    named = {
        found
        for path in (Path(pytestconfig.rootpath) / "gacprof").rglob("*.py")
        for found in re.findall(r'= "gacprof\.([a-z-]+/\d)"', path.read_text())
    }
    read_only = {"cliffmap/2", "run/1"}
    assert named and named - read_only <= json_schemas().keys()


@pytest.fixture
def printed(monkeypatch, capsys):
    """The JSON of a verb."""

    def printed(*words: object) -> list[dict]:
        monkeypatch.setattr(sys, "argv", ["gacprof", *map(str, words), "--json"])
        with pytest.raises(SystemExit):
            main()
        data = json.loads(capsys.readouterr().out)
        return data if isinstance(data, list) else [data]

    return printed


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("map", "show", MAP), "cliffmap/3"),
        (("map", "list"), "map-facts/1"),
        (("map", "diff", "a100-published", MAP), "map-diff/1"),
        (("map", "check", MAP), "compatibility/1"),
        (("map", "candidates", *ATTENTION, "--near", 107), "candidate/1"),
        (("map", "intersect", "a100-published", *ATTENTION), "intersection/1"),
        (("map", "export", MAP), "safedims/1"),
        (("explain", MAP, "--op", "attention", "--d", 107), "explanation/1"),
        (("gpus",), "gpus/1"),
        (("doctor",), "component/1"),
        (("map", "show", "no-such-map"), "error/1"),
    ],
)
def test_what_verbs_print_of_maps_is_valid(printed, words, name):
    assert {check(one) for one in printed(*words)} == {name}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("diagnose", "MODEL", "--map", "MAP"), "diagnosis/1"),
        (("diagnose", "MODEL", "--gpu", "h100"), "diagnosis/1"),
        (("lint", "CONFIG", "--gpu", "h100"), "lint/1"),
        (("plan", "MODEL", "--map", "MAP", "--out", "OUT.json"), "plan/1"),
        (("pareto", "MODEL", "--map", "MAP", "--objective", "pad"), "pareto/1"),
        (("realign", "MODEL", "--out", "OUT", "--strategy", "minimal"), "realign-result/1"),
    ],
)
def test_what_verbs_print_of_models_is_valid(printed, asvd, planted_map, tmp_path, words, name):
    at = tmp_path / "cliffmap.json"
    planted_map.save(at)
    places = {"MODEL": asvd, "MAP": at, "OUT": tmp_path / "out", "OUT.json": tmp_path / "p.json"}
    places["CONFIG"] = asvd / "config.json"  # lint refuses the factor pairs beside it
    assert {check(one) for one in printed(*(places.get(word, word) for word in words))} == {name}
    for left in (tmp_path / "p.json", tmp_path / "out/gacprof.json"):
        if left.exists():
            assert check(json.loads(left.read_text())) in {"plan/1", "realigned/1"}


def test_files_of_0_1_are_read(fixtures):
    at = fixtures / "artefacts-0.1"
    earlier = CliffMap.load(at / "h100-published.cliffmap.json")
    assert earlier.curve("attention", "head_dim").safe
    assert check(earlier.as_dict()) == "cliffmap/3"
    plan = Plan.load(at / "plan.json")
    assert plan.choices and check(plan.as_dict()) == "plan/1"

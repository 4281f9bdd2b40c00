"""docs/schemas: made of today's types, and true of the files that verbs write. What verbs print is
validated wherever a test has them print it (conftest's ``run``)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from decoders import write_decoder
from json_schemas import file_of, json_schemas
from schemas import SCHEMAS, check

from gacprof.planning import Plan

jsonschema = pytest.importorskip("jsonschema")


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
    read_only = {"run/1"}
    assert named and named - read_only <= json_schemas().keys()


@pytest.mark.parametrize(
    ("words", "left", "name"),
    [
        (("plan", "MODEL", "--gpu", "h100", "--out", "OUT"), "", "plan/1"),
        (("realign", "MODEL", "--out", "OUT", "--strategy", "minimal"), "gacprof.json",
         "realigned/1"),
        (("compress", "DENSE", "--out", "OUT", "--method", "svd", "--ratio", 0.3,
          "--device", "cpu"), "gacprof.json", "compressed/1"),
        (("export", "DENSE", "--out", "OUT", "--to", "transformers", "--check", "tensors"),
         "gacprof.json", "exported/1"),
        (("map", "rules", "--gpu", "h100", "--out", "OUT"), "", "rules/1"),
        (("lint", "CONFIG", "--tp", 8, "--write-baseline", "OUT"), "", "lint-baseline/1"),
        (("lint", "--design", "hidden=512,layers=2,heads=8,vocab=1024"), None, "lint-design/1"),
        (("map", "export", "cpu-example"), None, "safedims/1"),
    ],
    ids=lambda value: value if isinstance(value, str) and "/" in value else "",
)  # fmt: skip
def test_files_and_outputs_are_valid(run, asvd, tmp_path, words, left, name):
    places = {"MODEL": asvd, "OUT": tmp_path / "out", "CONFIG": asvd / "config.json"}
    if "DENSE" in words:
        places["DENSE"] = write_decoder(tmp_path / "dense")
    ended = run(*(places.get(word, word) for word in words), "--json")
    assert ended.code in (0, 1), ended.err
    written = ended.out if left is None else (tmp_path / "out" / left).read_text()
    assert check(json.loads(written)) == name


def test_a_plan_of_0_1_is_read(fixtures):
    plan = Plan.load(fixtures / "artefacts-0.1" / "plan.json")
    assert plan.choices and check(plan.as_dict()) == "plan/1"

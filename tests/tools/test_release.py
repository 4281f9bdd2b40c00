"""A release: one version, workflows that GitHub reads, a wheel that installs by itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

import gacprof

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_one_version_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), flags=re.M)
    newest = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)
    assert cited and newest
    assert {project["version"], cited[1], newest[1]} == {gacprof.__version__}


@pytest.mark.skipif(find_spec("check_jsonschema") is None, reason="needs check-jsonschema")
@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-actions", [ROOT / "action.yml"]),
    ],
)
def test_github_reads_the_workflows(schema, files):
    asked = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*asked, *map(str, files)], capture_output=True, text=True)
    assert files and done.returncode == 0, done.stdout + done.stderr


def test_what_the_workflows_run_is_in_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    asked = {
        target
        for path in WORKFLOWS
        for target in re.findall(r"run: make ([a-z-]+)", path.read_text())
    }
    assert asked and asked <= targets


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The bin folder of an environment that holds the wheel made of the sdist, and no more."""
    place = tmp_path_factory.mktemp("release")
    built = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(place / "dist"), str(ROOT)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert built.returncode == 0, built.stdout[-2000:] + built.stderr[-2000:]
    assert len(list((place / "dist").glob("*.tar.gz"))) == 1
    (wheel,) = (place / "dist").glob("*.whl")
    venv.create(place / "venv", with_pip=True)
    pip = [str(place / "venv/bin/python"), "-I", "-m", "pip", "install", "--quiet"]
    done = subprocess.run(
        [*pip, "-c", str(ROOT / "constraints.txt"), str(wheel)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return place / "venv/bin"


@pytest.mark.slow
def test_the_wheel_alone_lints_diagnoses_and_shows_maps(installed, tmp_path):
    config = ROOT / "tests/fixtures/checkpoints/asvd_mha_r1"
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}

    def run(*words: str) -> subprocess.CompletedProcess:
        asked = [str(installed / "gacprof"), *words]
        return subprocess.run(asked, capture_output=True, text=True, cwd=tmp_path, env=env)

    assert run("--version").stdout.split()[-1] == gacprof.__version__
    assert "attention" in run("map", "show", "h100-published", "--op", "attention").stdout
    found = run("diagnose", str(config), "--gpu", "h100", "--json")
    assert found.returncode in (0, 1), found.stderr
    assert json.loads(found.stdout)["totals"]["judged"] == 29
    shapes = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14281, "vocab_size": 32000,
        "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(shapes))
    linted = run("lint", str(tmp_path / "config.json"), "--gpu", "h100", "--json")
    assert linted.returncode in (0, 1), linted.stderr
    assert "14281" in linted.stdout
    lacking = run("sweep", "quick", "--out", "run")
    assert lacking.returncode == 2 and "gacprof[measure]" in lacking.stderr

"""What a plain install can do: read configs, headers and maps, without what measuring needs."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from gacprof.cli.app import EXTRAS

ROOT = Path(__file__).parents[1]
CHECKPOINT = ROOT / "tests" / "fixtures" / "checkpoints" / "asvd_mha_r1"
HEAD_DIMS = ("--op", "attention", "--axis", "head_dim")

PLAIN = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)

sys.meta_path.insert(0, Missing())
from gacprof.cli import main
main()
"""


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The command line where nothing of the extras is installed."""
    code = PLAIN.format(missing=set(EXTRAS))
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    "arguments",
    [
        ("lint", CHECKPOINT / "config.json", "--gpu", "h100", "--tp", "2"),
        ("lint", "--design", "hidden=512,layers=2,heads=8,vocab=1024"),
        ("diagnose", CHECKPOINT, "--gpu", "h100"),
        ("diagnose", CHECKPOINT, "--map", "cpu-example"),
        ("map", "candidates", "h100-published", *HEAD_DIMS, "--near", "107"),
    ],
)
def test_a_plain_install_reads_configs_headers_and_maps(arguments):
    done = run(*arguments)
    assert done.returncode in (0, 1), done.stderr
    assert done.stdout
    assert not done.stderr


@pytest.mark.parametrize("arguments", [("verify", "a", "b"), ("doctor",)])
def test_a_verb_that_lacks_something_names_the_extra_in_one_line(arguments):
    done = run(*arguments)
    assert done.returncode == 2
    assert "pip install 'gacprof[measure]'" in done.stderr
    assert done.stderr.count("\n") == 1


LIGHT = """
import sys, importlib.util as util
real = util.find_spec  # as where no measurements from elsewhere are installed
util.find_spec = lambda name, *more: None if name.startswith("aiconf") else real(name, *more)
seen = []
def without(*heavy):
    seen.append({*heavy} & {*sys.modules})

import gacprof
without("torch", "numpy", "pandas", "typer", "pydantic")
gacprof.lint(sys.argv[1], gpu="h100", tp=2)
without("torch", "numpy", "pandas", "typer", "pydantic")
a100 = gacprof.CliffMap.load("a100-published")
a100.candidates("linear", axis="K", near=107, dtype="float16")
a100.latency("linear", {"M": 1, "N": 4096, "K": 4000}, "float16")
without("torch", "numpy", "pandas", "pyarrow", "matplotlib")
from gacprof.cli.app import main
for words in (["--help"], ["diagnose", "--help"], ["map", "list"], ["gpus"]):
    sys.argv = ["gacprof", *words]
    try:
        main()
    except SystemExit:
        pass
without("torch")
print(seen)
"""


def test_what_needs_nothing_heavy_imports_nothing_heavy(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", "vocab_size": 64}), encoding="utf-8")
    command = [sys.executable, "-c", LIGHT, str(config)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[set(), set(), set(), set()]", done.stderr


BARE = """
import sys
from gacprof.cli.app import EXTRAS, VERBS, main
sys.modules |= dict.fromkeys((*EXTRAS, "triton", "gguf"))  # as none of them is installed
for words in ([], ["--help"], *([verb, "--help"] for verb in VERBS), ["map", "list"], ["gpus"]):
    sys.argv = ["gacprof", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
"""


def test_a_plain_install_has_help_of_every_verb():
    done = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_extras_bring_what_the_message_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    plain = " ".join(project["dependencies"])
    packages = {"pynvml": "nvidia-ml-py"}
    for module, extra in EXTRAS.items():
        named = packages.get(module, module)
        assert named not in plain
        assert any(line.startswith(named) for line in project["optional-dependencies"][extra])

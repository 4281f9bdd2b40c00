"""The command line: verbs are functions, results are printed or JSON, failures are one line."""

from __future__ import annotations

import inspect
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_type_hints

import pytest
from safetensors.torch import load_file, save_file

import gacprof
from gacprof.checkpoint.inventory import Inventory
from gacprof.cli.app import main, make_app
from gacprof.cli.verbs import EXAMPLES, OPTION_NAMES, VERBS, command, stub_of, writable
from gacprof.core.sizes import SizeSource
from gacprof.planning import solver

ASVD = Path(__file__).parents[1] / "fixtures" / "checkpoints" / "asvd_mha_r1"


def run(*words: str) -> int:
    """The exit code of a command line."""
    with pytest.raises(SystemExit) as stopped:
        main(list(words))
    return int(stopped.value.code or 0)


def test_a_type_keeps_what_a_word_can_stand_for() -> None:
    assert writable(str | Path | Inventory) == str | Path
    assert writable(Mapping[int, float] | Sequence[float] | None) == tuple[float, ...] | None
    assert writable(Literal["a", "b"]) == Literal["a", "b"]
    assert writable(SizeSource) is None
    assert writable(Mapping[str, float] | None) is None


def test_findings_end_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diagnose", str(ASVD), "--gpu", "h100") == 1
    assert "by rules" in capsys.readouterr().out


def test_json_has_a_schema_and_all_fields(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diagnose", str(ASVD), "--gpu", "h100", "--json") == 1
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "gacprof.Diagnosis/1"
    assert len(data["dims"]) == 17


def test_json_has_null_for_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    run("table", "a100-published", "--json")
    text = capsys.readouterr().out
    assert "null" in text
    assert json.loads(text, parse_constant=pytest.fail)


def test_a_solver_prints_nothing_into_json(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(solver, "SECONDS", 0.5)
    run("plan", str(ASVD), "h100", "--objective", "gac", "--json")
    assert json.loads(capfd.readouterr().out)["schema"] == "gacprof.plan/2"


def test_a_map_and_a_gpu_are_one_parameter(capsys: pytest.CaptureFixture[str]) -> None:
    run("diagnose", str(ASVD), "h100")
    positional = capsys.readouterr().out
    run("diagnose", str(ASVD), "--map", "h100")
    assert capsys.readouterr().out == positional


@pytest.mark.parametrize(
    "words",
    [
        ["diagnose", "no/such/folder", "--gpu", "h100"],
        ["diagnose", str(ASVD), "--gpu", "z100"],
        ["diagnose", str(ASVD)],
        ["diagnose", str(ASVD), "--gpu", "h100", "--tp", "many"],
        ["diagnose", str(ASVD), "--gpu", "h100", "--tokens", "1", "1023.9"],
        ["plan", str(ASVD), "h100", "--multiple", "1.5"],
        ["plan", str(ASVD), "h100", "--memory", "1e400"],
        ["plan", str(ASVD), "h100", "--tokens", "9" * 30],
        ["explain", "9" * 30, "h100", "--dim", "K"],
        ["explain", "-7", "h100", "--dim", "K"],
        ["sweep", "--model", str(ASVD), "--ranks", "64", "--dry-run"],
        ["plan", str(ASVD), "h100", "--out", str(ASVD)],
        ["verify", str(ASVD), str(ASVD), "--tokens", "0"],
        ["map", "show", "no-such-map"],
        ["map", "show", str(ASVD.parent / "no-such-map.json")],
        ["map", "shwo"],
        ["realign", str(ASVD), "pad1.5", "out"],
        ["lint", "Qwen/Qwen3-8B"],
        ["no-such-verb"],
        ["realign", str(ASVD), "pad8", str(ASVD)],
        ["realign", str(ASVD), "padu", "out"],
        ["plan", str(ASVD)],
        ["plan", str(ASVD), "--gpu"],
        ["plan", str(ASVD), "--gpu", "h100", "--map", "h100"],
        ["plan", str(ASVD), "h100", "--tp", "4", "8"],
        ["plan", str(ASVD), "h100", "--budget", "80"],
        ["plan", str(ASVD), "h100", "--budget", "-0.5"],
        ["plan", str(ASVD), "h100", "--budget", "lots"],
        ["plan", str(ASVD), "h100", "--objective", "qualty"],
        ["plan", str(ASVD), "h100", "--losses", "no-such-file.json"],
        ["bench", str(ASVD), "--seconds", "-1"],
        ["sweep", "quick", "--budget-s", "-3"],
        ["map", "build", str(ASVD)],
        ["lint"],
    ],
)
def test_what_a_user_can_mend_is_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("gacprof: ")
    assert len(printed.err.splitlines()) == 1


def test_tokens_are_counts_one_after_another(capsys: pytest.CaptureFixture[str]) -> None:
    run("diagnose", str(ASVD), "--gpu", "h100", "--tokens", "1", "64", "--json")
    assert json.loads(capsys.readouterr().out)["tokens"] == {"1": 1.0, "64": 1.0}


def test_plan_realign_verify_by_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan, aligned = str(tmp_path / "plan.json"), str(tmp_path / "aligned")
    assert run("plan", str(ASVD), "--gpu", "h100", "--objective", "pad", "--out", plan) == 0
    assert run("realign", str(ASVD), plan, aligned) == 0
    assert run("verify", str(ASVD), aligned) == 0
    assert "same function" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["map", "shwo"], ["diagnos", str(ASVD)], ["mpa", "show"]])
def test_a_misspelt_verb_names_the_right_one(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == 2
    assert re.search(r"'(map show|diagnose|map)'\?", capsys.readouterr().err)


def test_a_value_that_is_missing_brings_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    run("plan", str(ASVD))
    assert "--gpu h100" in capsys.readouterr().err


def with_other_factor_names(folder: Path) -> list[str]:
    """A copy whose factors no layout knows, and the options that name them."""
    shutil.copytree(ASVD, folder)
    names = {"ALinear": "last", "BLinear": "first"}
    weights = load_file(folder / "model.safetensors")
    for old, new in names.items():
        weights = {name.replace(old, new): tensor for name, tensor in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return ["--factors", "{module}.last.weight", "{module}.first.weight"]


@pytest.mark.parametrize("options", [[], ["--tp", "2", "--dtype", "bfloat16"], ["--factors"]])
def test_each_printed_step_is_the_next_command(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The words behind "gacprof" in each last line; diagnosing the copy finds nothing more."""
    model = tmp_path / "model"
    if options == ["--factors"]:
        options = with_other_factor_names(model)
    else:
        shutil.copytree(ASVD, model)
    places = {"plan.json": str(tmp_path / "plan.json"), "ALIGNED": str(tmp_path / "aligned")}
    words = ["diagnose", str(model), "--gpu", "h100", *options]
    codes = [run(*words)]
    for verb in ("plan", "realign", "verify"):
        last = capsys.readouterr().out.splitlines()[-1].partition("gacprof ")[2]
        words = [places.get(word, word) for word in shlex.split(last)]
        assert words[0] == verb
        codes.append(run(*words))
    assert "gacprof bench" in capsys.readouterr().out
    codes.append(run("diagnose", places["ALIGNED"], "--gpu", "h100", *options))
    assert codes == [1, 0, 0, 0, 0]


def test_a_full_disk_is_one_line_and_leaves_no_half(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, limits[1]))
    try:
        code = run("realign", str(ASVD), "pad8", str(tmp_path / "aligned"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_says_what_is_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(verb: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gacprof.cli.app.command", interrupt)
    assert run("sweep", "quick") == 130
    assert "--resume" in capsys.readouterr().err


def test_a_path_need_not_be_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder named in Latin-1 is written to JSON by an escape, and read back as it was."""
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    shutil.copytree(ASVD, folder)
    plan = str(tmp_path / "plan.json")
    assert run("plan", folder, "h100", "--objective", "pad", "--out", plan, "--json") == 0
    assert json.loads(capsys.readouterr().out)["checkpoint"] == folder
    assert json.loads(Path(plan).read_text("utf-8"))["checkpoint"] == folder
    assert run("realign", folder, plan, f"{folder}-aligned") == 0


def test_a_crash_is_no_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who reads exit codes can tell a misaligned model from a fault of gacprof."""

    def crash(verb: str) -> None:
        raise KeyError("a fault")

    monkeypatch.setattr("gacprof.cli.app.command", crash)
    assert run("diagnose", str(ASVD), "--gpu", "h100") == 70
    assert "Traceback" in capsys.readouterr().err


PLAIN = """
import sys

class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pandas", "scipy", "torch", "transformers"}:
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Lacking())
from gacprof.cli import main
main(sys.argv[1:])
"""
"""gacprof where only the packages of a plain install are found."""


def run_plain(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PLAIN, *words], capture_output=True, text=True)


def test_help_is_read_before_packages_are_installed() -> None:
    shown = run_plain("compress", "--help")
    assert shown.returncode == 0 and shown.stderr == ""
    assert "--ratio" in shown.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example_every_option_and_no_markup(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*verb.split(), "--help") == 0
    shown = capsys.readouterr().out
    for name in inspect.signature(command(verb)).parameters:
        option = name.replace("_", "-")
        assert f"--{option}" in shown or f"  {option.upper()}" in shown or name in OPTION_NAMES
    assert "`" not in shown and "----" not in shown and ":func:" not in shown
    words = shlex.split(EXAMPLES[verb])[len(verb.split()) :]
    make_app(verb).parse_args(words)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "fleet" or find_spec("ray")])
def test_the_source_tells_the_signature_that_the_function_has(verb: str) -> None:
    function = getattr(gacprof, VERBS[verb])
    hints = get_type_hints(function)
    told = inspect.signature(stub_of(verb)).parameters
    assert list(told) == list(inspect.signature(function).parameters)
    for name, parameter in inspect.signature(function).parameters.items():
        assert (told[name].kind, told[name].default) == (parameter.kind, parameter.default)
        assert str(writable(told[name].annotation)) == str(writable(hints[name]))


@pytest.mark.parametrize("words", [["map", "shwo"], ["plan", str(ASVD), "h100"]])
def test_a_plain_install_answers_in_one_line(words: list[str]) -> None:
    refused = run_plain(*words)
    assert refused.returncode == 2
    assert len(refused.stderr.splitlines()) == 1


def test_help_and_version_need_no_import_of_torch() -> None:
    code = "import sys; from gacprof.cli.app import main; main(['--help'])"
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code], capture_output=True, text=True, check=True
    )
    assert "diagnose" in done.stdout
    assert " torch" not in done.stderr and " numpy" not in done.stderr


def test_a_result_takes_no_pipes_place(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert run("plan", str(ASVD), "h100", "--out", str(tmp_path / "pipe")) == 2
    assert (tmp_path / "pipe").is_fifo()


def test_factors_are_named_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several checkpoints the original one may have none; of no checkpoint is an error."""
    folder = tmp_path / "odd"
    shutil.copytree(ASVD, folder)
    patterns = ("--factors", "{module}.ALinear.weight", "{module}.BLinear.weight")
    words = ("diagnose", str(folder), "--gpu", "h100")
    assert run(*words, *patterns) == 1
    assert run(*words, "--factors", "{module}.left", "{module}.right") == 2
    assert "select no pair" in capsys.readouterr().err

"""The verb as a user and a CI run meet it."""

import json
import os
import subprocess
import sys
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from gacprof.core.errors import LintError
from gacprof.linting import fix, lint
from gacprof.linting.design import design, requested_sizes

ROOT = Path(__file__).parents[2]


@pytest.fixture
def config(tmp_path, qwen):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(qwen), encoding="utf-8")
    return path


@pytest.fixture
def run(run):
    return partial(run, "lint")


FP8 = ("--gpu", "h100", "--quant", "fp8-block")


def test_one_look_says_four_ranks_or_expert_parallelism(run, config):
    code, out, _ = run(config, *FP8, "--tp", 8, "--engine", "vllm==0.20")
    assert code == 1
    assert "block_n = 128" in out
    assert {"--ep", "--tp 4"} <= {one["option"] for one in json.loads(run(
        config, *FP8, "--tp", 8, "--engine", "vllm==0.20", "--json")[1])["remedies"]}  # fmt: skip
    assert run(config, *FP8, "--tp", 4)[0] == 0
    assert run(config, *FP8, "--tp", 8, "--ep")[0] == 0


def test_json_has_the_documented_shape(run, config):
    _, out, _ = run(config, *FP8, "--tp", 8, "--json")
    data = json.loads(out)
    assert data["schema"] == "gacprof.lint/1"
    assert data["outcome"] == "falls_back"
    row = next(row for row in data["products"] if row["name"] == "moe.w2")
    assert row["local"] == {"N": 4096, "K": 192}
    assert (row["axis"], row["multiple"], row["since"]) == ("K", 128, "0.29")
    assert {"name", "role", "outcome", "padded_to", "why", "source"} <= row.keys()
    assert [d["outcome"] for d in data["tp_table"] if d["tp"] == 8] == ["falls_back", "ok"]


def test_other_programs_read_the_findings(run, config):
    asked = (config, *FP8, "--tp", 8)
    tree = ElementTree.fromstring(run(*asked, "--format", "junit")[1])
    failed = [one.get("name") for one in tree.iter("testcase") if one.find("failure") is not None]
    assert failed == ["moe.w1/w3", "moe.w2"]
    sarif = json.loads(run(*asked, "--format", "sarif")[1])
    results = sarif["runs"][0]["results"]
    assert {one["level"] for one in results} == {"warning"}
    assert {one["ruleId"] for one in results} == {
        r["id"] for r in sarif["runs"][0]["tool"]["driver"]["rules"]
    }
    lines = run(*asked, "--format", "github")[1].splitlines()
    assert all(line.startswith(f"::warning file={config}") for line in lines)
    assert "| moe.w2 | 4096 | 192 | falls back" in run(*asked, "--format", "markdown")[1]


def test_what_a_stranger_wrote_in_a_config_does_not_reach_the_terminal(run, tmp_path, llama):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(llama | {"model_type": "\x1b[31mred\n::error::pwn"}), "utf-8")
    for style in ("text", "markdown", "github", "junit"):
        out = run(path, "--format", style)[1]
        assert "\x1b" not in out
        assert not any(line.startswith("::error") for line in out.splitlines())


def test_every_remedy_that_changes_sizes_does_what_it_says(run, config, qwen):
    asked = {"gpu": "h100", "quant": "fp8-block", "tp": 8}
    sizes = [one for one in lint(qwen, **asked).remedies if one.kind == "size"]
    assert sizes
    for one in sizes:
        assert lint(qwen | one.config, **asked).outcome == one.outcome
    equal = next(one for one in sizes if "num_experts" in one.config)
    assert abs(equal.parameters) < 0.01
    code, out, err = run(config, *FP8, "--tp", 8, "--fix")
    assert code == 0 and "parameters" in err
    assert lint(json.loads(out), **asked).outcome == "ok"
    assert fix(qwen, **(asked | {"tp": 4})) is None


def test_a_design_is_good_on_every_target_it_claims():
    sizes = requested_sizes("hidden=4096,layers=32,heads=32,vocab=151552")
    shapes = design(sizes, ["h100", "b200"], [1, 8], ["fp8-block", "nvfp4"], 8e9)
    best = shapes[0]
    assert best.outcome == "ok"
    assert abs(best.parameters / 8e9 - 1) < 0.05
    config = best.config | {"model_type": "llama"}
    for tp in (1, 8):
        for quant in ("fp8-block", "nvfp4"):
            assert lint(config, gpu="b200", tp=tp, quant=quant).outcome == "ok"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "name a config.json"), (("--design", "hidden=1"), "needs layers"),
        (("--design", "depth=3"), "there are hidden"), (("nowhere.json",), "nowhere.json"),
        (("--design", "hidden=64,layers=1,heads=1,vocab=64", "--params", "x"), "8B or 700M"),
        *((("CONFIG", option), "") for option in ("--gpu=h100,b200", "--tp=1,2", "--quant=a,b")),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_code_2(run, config, arguments, named):
    code, _, err = run(*(config if word == "CONFIG" else word for word in arguments))
    assert code == 2
    assert named in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "asked", [{"gpu": None}, {"engine": 3}, {"quant": b"fp8"}, {"tp": 0}, {"tp": "x"},
              {"tp": "1,2"}, {"tp": 2.5}, {"tp": True}, {"ep_size": 2},
              {"lora_rank": -1}, {"colour": "red"}],
)  # fmt: skip
def test_what_the_function_cannot_take_is_refused_in_one_line(qwen, asked):
    with pytest.raises(LintError) as refused:
        lint(qwen, **asked)
    assert "\n" not in str(refused.value)


def test_the_action_and_the_hook_run_what_they_say(tmp_path, config):
    """The action's last step, with the variables that its inputs set."""
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    hook = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))[0]
    step = action["runs"]["steps"][-1]["run"]
    inputs = {
        "CONFIGS": str(config),
        "ARGUMENTS": "--gpu h100 --quant fp8-block --tp 8",
        "BASELINE": "",
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for fail_on, code in (("pads", 1), ("refused", 0)):
        environment = {**os.environ, **inputs, "FAIL_ON": fail_on, "PATH": path}
        done = subprocess.run(["bash", "-c", step], env=environment, capture_output=True, text=True)
        assert done.returncode == code
        assert "::warning file=" in done.stdout
    entry = [*hook["entry"].split(), str(config)]
    assert (
        subprocess.run(entry, env={**os.environ, "PATH": path}, capture_output=True).returncode == 0
    )


def test_the_table_of_models_is_what_the_script_makes():
    spec = spec_from_file_location("lint_table", ROOT / "tools" / "lint_table.py")
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    page = (ROOT / "docs" / "lint-models.md").read_text(encoding="utf-8")
    assert page == "\n".join(script.table()) + "\n"


@pytest.fixture
def ragged(tmp_path, llama):
    path = tmp_path / "ragged.json"
    path.write_text(json.dumps(llama | {"intermediate_size": 8806}), encoding="utf-8")
    return path


def test_misaligned_products_are_findings_on_a_named_gpu(run, ragged):
    code, out, _ = run(ragged, "--gpu", "h100")
    assert code == 1
    assert "ok for the engine, misaligned on h100" in out and "what to do" in out
    assert run(ragged)[0] == 0
    assert run(ragged, "--gpu", "h100", "--fail-on", "falls_back")[0] == 0
    for style in ("github", "junit", "sarif", "markdown"):
        code, out, _ = run(ragged, "--gpu", "h100", "--format", style)
        assert code == 1 and "misaligned" in out


def test_fail_on_says_which_findings_count(run, config, tmp_path):
    for option, code in {"pads": 1, "falls_back": 1, "wrong": 0, "refused": 0, "bad": 2}.items():
        assert run(config, *FP8, "--tp", 8, "--fail-on", option)[0] == code
    path = tmp_path / "partial.json"
    path.write_text('{"hidden_size": 4096, "intermediate_size": 11008}', encoding="utf-8")
    assert run(path)[0] == 0
    assert run(path, "--fail-on", "unknown")[0] == 1


def test_a_baseline_is_of_one_gpu_and_marks_what_is_known(run, ragged, config, tmp_path):
    known = tmp_path / "known.json"
    run(ragged, "--gpu", "h100", "--write-baseline", known)
    code, out, _ = run(ragged, "--gpu", "h100", "--baseline", known)
    assert (code, "(known)" in out) == (0, True)
    assert run(ragged, "--gpu", "b200", "--baseline", known)[0] == 1
    assert str(tmp_path) not in known.read_text(encoding="utf-8")
    run(config, *FP8, "--tp", 8, "--write-baseline", known)
    assert run(config, *FP8, "--tp", 16, "--baseline", known)[0] == 1
    known.write_text("[]", encoding="utf-8")
    assert run(config, *FP8, "--tp", 8, "--baseline", known)[0] == 2


@pytest.mark.parametrize(
    ("engine", "gpu", "misaligned"),
    [("sglang", "l40s", True), ("vllm", "l40s", False), ("tensorrt-llm", "b200", True),
     ("tensorrt-llm", "h100", False), ("vllm", "a100", False)],
)  # fmt: skip
def test_a_vision_tower_s_head_dim_is_judged_in_the_engine_s_kernel(engine, gpu, misaligned):
    """SigLIP's 72: a cliff by Triton, and by TensorRT-LLM on Blackwell."""
    vision = {"hidden_size": 1152, "num_attention_heads": 16, "num_hidden_layers": 27}
    text = {"hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8,
            "num_key_value_heads": 1, "num_hidden_layers": 18, "vocab_size": 257216,
            "head_dim": 256, "model_type": "gemma"}  # fmt: skip
    config = {"model_type": "paligemma", "vision_config": vision, "text_config": text}
    found = lint(config, engine=engine, gpu=gpu)
    named = {row.name for row in found.misaligned}
    assert (named == {"vision attention head_dim"}) == misaligned and found.outcome != "refused"
    for part, size in (({"embed_dim": 1280, "hidden_size": 3584}, 80), ({"head_dim": 64}, 64)):
        rows = lint(config | {"vision_config": vision | part}, engine=engine, gpu="h100")
        assert {r.size for r in rows.products if r.role == "vision_head_dim"} == {size}


def test_weights_that_do_not_fit_are_said_in_the_headline_with_the_least_degree(run, config, llama):
    config.write_text(json.dumps(llama), encoding="utf-8")
    assert run(config, "--gpu", "h100")[1].splitlines()[0].endswith("h100: ok")
    config.write_text(json.dumps(llama | {"num_hidden_layers": 220}), encoding="utf-8")
    code, out, _ = run(config, "--gpu", "h100")
    first = out.splitlines()[0]
    assert code == 0 and "ok, but does not fit: " in first and first.endswith("; --tp 2 fits")
    assert run(config, "--gpu", "h100", "--tp", 2)[1].splitlines()[0].endswith("h100: ok")
    said = {"json": '"outcome": "ok"', "sarif": "h100/memory", "junit": 'failures="1"',
            "markdown": "ok, but does not fit: ", "github": "does not fit: "}  # fmt: skip
    for style, words in said.items():
        asked = ("--json",) if style == "json" else ("--format", style)
        assert words in run(config, "--gpu", "h100", *asked)[1], style

"""``plan`` and ``pareto`` as a user meets them: what is printed, written and refused."""

import json
import shutil
from pathlib import Path

import pytest
from planted_blocks import linear, planted

import gacprof
from gacprof.checkpoint import scan
from gacprof.cliffmap.build import build_map
from gacprof.cliffmap.view import NOISY
from gacprof.core.points import Environment

ONE = "model.layers.0.self_attn.v_proj:rank"


@pytest.fixture
def planned(run, asvd, planted_map, tmp_path):
    """Run ``gacprof plan`` on the fixture; the plan goes to ``plan.json``."""

    def plan(*arguments):
        return run(
            "plan", asvd, "--map", planted_map, "--tokens", "1,64",
            "--out", tmp_path / "plan.json", *arguments,
        )  # fmt: skip

    return plan


def test_memory_holds_for_the_checkpoint_that_is_written(run, planned, asvd, tmp_path):
    assert planned("--memory", "5.4MB").code == 0
    assert (
        run("realign", asvd, "--plan", tmp_path / "plan.json", "--out", tmp_path / "out").code == 0
    )
    tensors = scan(tmp_path / "out").tensors.values()
    assert sum(t.nbytes for t in tensors) <= 5_400_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--budget", "nan"), "nan"),
        (("--budget", "0.1"), "nearest"),
        (("--budget", "0.9", "--budget-params", "9"), "not both"),
        (("--budget-params", "1000"), "no plan can change"),
        (("--memory", "1kB"), "no plan can change"),
        (("--memory", "plenty"), "6GB"),
        (("--tokens", "0"), "positive"),
        (("--tokens", "one"), "no token count"),
        (("--tokens", "7"), "gacprof sweep --for"),
        (("--dtype", "int4"), "int4"),
        (("--objective", "magic"), "magic"),
        (("--latency-limit", "nan"), "latency-limit"),
        (("--latency-limit", "0"), "positive"),
        (("--latency-limit", "0.1"), "nearest"),
        (("--pin", f"{ONE}=x"), "PATTERN=SIZE"),
        (("--pin", f"{ONE}=²"), "PATTERN=SIZE"),
        (("--pin", f"{ONE}=64", "--pin", f"{ONE}=72"), "twice"),
        (("--scores", "nonesuch.json"), "nonesuch.json"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(planned, tmp_path, arguments, message):
    planned(*arguments).refused(message)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "scores",
    ["", "[1]", '{"x": 1}', f'{{"{ONE}": "much"}}', f'{{"{ONE}": true}}',
     f'{{"{ONE}": 1{"0" * 400}}}', f'{{"{ONE}": 1{"0" * 9000}}}', "[" * 100_000],
)  # fmt: skip
def test_scores_that_are_none_are_refused(planned, tmp_path, scores):
    (tmp_path / "scores.json").write_text(scores)
    planned("--objective", "gac", "--scores", tmp_path / "scores.json").refused()
    assert not (tmp_path / "plan.json").exists()


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CPU's map in the checkpoint's dtype, at a size that none of its layers has."""
    made = tmp_path_factory.mktemp("elsewhere") / "cpu.json"
    blocks = planted(linear("K", range(96, 161), dtype="float32", M=7, N=11), "K", float)
    build_map(blocks, Environment("cpu", "cpu", "avx2"), name="cpu").save(made)
    return made


@pytest.mark.parametrize("name", ["a100-published", "elsewhere"])
def test_a_map_of_another_device_says_how_to_fill_it(run, asvd, tmp_path, elsewhere, name):
    cliff_map = elsewhere if name == "elsewhere" else name
    for verb in ("plan", "pareto"):
        message = run(verb, asvd, "--map", cliff_map, "--out", tmp_path / "out")
        message.refused("gacprof sweep --for")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def plan(asvd, planted_map) -> str:
    return json.dumps(gacprof.plan(asvd, planted_map, tokens=[1, 64]).as_dict())


@pytest.fixture
def edited(run, plan, asvd, tmp_path):
    """Realign by a plan that ``change(plan, the choice of ONE)`` edited."""

    def realign(change):
        data = json.loads(plan)
        choice = next(c for c in data["choices"] if c["dim"] == ONE)
        assert choice["action"] == "pad"
        change(data, choice)
        (tmp_path / "plan.json").write_text(json.dumps(data))
        return run("realign", asvd, "--plan", tmp_path / "plan.json", "--out", tmp_path / "out")

    return realign


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, c: c.update(dim="nonesuch"), "nonesuch"),
        (lambda p, c: c.update(before=77, after=80), "a rank of 76"),
        (lambda p, c: c.update(after=88, action="truncate"), "'pad', not to 'truncate'"),
        (lambda p, c: c.update(after=None), "'fuse', not to 'pad'"),
        (lambda p, c: c.update(after=257), "the dense weight's rank is 256"),
        (lambda p, c: c.update(after=81), "the plan was edited"),
        (lambda p, c: c.update(after=88, cost=c["cost"] // 80 * 88), "the plan was edited"),
        (lambda p, c: c.update(after="80"), "after"),
        (lambda p, c: c.update(kind="width"), "is a width of 76, here it is a rank"),
        (lambda p, c: p.update(choices=[]), "has no choices"),
        (lambda p, c: p.update(choices=p["choices"][:3]), "the plan was edited"),
        (lambda p, c: p["choices"].append(c), "is there twice"),
    ],
)
def test_a_plan_edited_by_hand_into_nonsense_is_refused(edited, tmp_path, change, message):
    edited(change).refused(message)
    assert not (tmp_path / "out").exists()


def test_a_plan_edited_without_its_account_is_taken_at_its_sizes(edited, tmp_path):
    def change(plan, choice):
        plan["budget"].update(checkpoint_before=None, checkpoint_after=None)
        choice.update(after=81)

    assert edited(change).code == 0
    assert scan(tmp_path / "out").dim(ONE).size == 81


def test_pareto_prints_a_table_and_writes_a_picture(run, asvd, planted_map, tmp_path):
    arguments = (
        "pareto", asvd, "--map", planted_map, "--tokens", "1,64", "--budgets", "4",
        "--out", tmp_path / "picture",
    )  # fmt: skip
    message = run(*arguments)
    assert message.code == 0
    for words in ("up to 8", "nearest to 64", "paper's DP", "gacprof energy"):
        assert words in message.out
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "picture.svg").read_text()
    data = json.loads(run(*arguments[:-2], "--json").out)
    assert data["schema"] == "gacprof.pareto/1"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "notes.txt"])
def test_a_plan_never_takes_the_place_of_what_is_none(
    planned, asvd, tmp_path, run, planted_map, name
):
    copy = tmp_path / "copy"
    shutil.copytree(asvd, copy)
    (copy / "notes.txt").write_text("mine")
    before = {p.name: p.read_bytes() for p in copy.iterdir()}
    arguments = ("--map", planted_map, "--tokens", "1,64", "--out", copy / name)
    run("plan", copy, *arguments).refused(name)
    assert {p.name: p.read_bytes() for p in copy.iterdir()} == before


def test_a_plan_takes_an_earlier_ones_place(planned):
    assert planned().code == 0
    assert planned("--objective", "pad").code == 0


def test_a_plan_that_changes_nothing_asks_for_no_copy(run, planned):
    assert "next: gacprof realign" in planned().out
    kept = planned("--pin", "*=keep")
    assert kept.code == 0 and "changes none of" in kept.out
    assert "nothing to realign" in kept.out and "gacprof realign" not in kept.out


def test_a_map_too_noisy_to_plan_by_says_so_and_what_to_do(run, asvd, planted_map, tmp_path):
    noisy = tmp_path / "noisy.json"
    data = json.loads(Path(planted_map).read_text())
    noisy.write_text(json.dumps(data | {"noise": data["noise"] | {"floor": 0.21}}))
    asked = ("plan", asvd, "--map", noisy, "--tokens", "1,64", "--out", tmp_path / "plan.json")
    why = "its A/A floor is 21.0%, above 10%; 'gacprof sweep --resume --out RUN --budget 8m'"
    kept = run(*asked)
    assert kept.code == 0 and "changes none of" in kept.out and why in kept.out
    for limit in ("--budget=0.2", "--latency-limit=-50%"):
        refused = run(*asked, limit)
        assert refused.code == 2 and f"since no size may change: {NOISY}: {why}" in refused.err
    assert "the nearest is the time of its own sizes, since" in refused.err


def test_a_budget_above_the_dense_size_is_noted_at_once(planned):
    assert "the budget 80 is above 1" in planned("--budget", 80).out


def test_a_map_that_knows_no_weight_is_not_read_as_none_misaligned(run, asvd, planted_map):
    result = run("diagnose", asvd, "--map", planted_map, "--tokens", "7")
    assert result.code == 1
    assert "Not known: none of" in result.out
    assert "--tokens 1,64" in result.out and "0 of" not in result.out


def test_a_plan_for_an_engine_says_what_was_asked_of_the_sizes_and_by_whom(planned, tmp_path):
    message = planned("--for", "gptq,group=16", "--why")
    assert message.code == 0
    assert "preset gptq,group=16: multiples of 16 for 17 dims" in message.out
    assert "groups of 16 weights share a scale" in message.out and "vllm#21695" in message.out
    made = json.loads((tmp_path / "plan.json").read_text())
    assert all(c["after"] is None or c["after"] % 16 == 0 for c in made["choices"])
    assert {demand["multiple"] for demand in made["preset"]["demands"]} == {8, 16}
    assert all(demand["source"] for demand in made["preset"]["demands"])
    assert "preset vllm: it takes any size" in planned("--preset", "vllm", "--why").out


def test_an_engine_without_factor_pairs_is_refused_in_one_line(planned, tmp_path):
    planned("--for", "gguf,q4_k").refused("cannot express the factor pair of model.layers.0")
    assert not (tmp_path / "plan.json").exists()

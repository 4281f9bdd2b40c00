"""A rule table as a file, as a source of sizes and through every verb: tiers, never a latency."""

import json
from itertools import product
from pathlib import Path

import pytest

import gacprof
from gacprof import operators
from gacprof.cliffmap import CliffMap, Use
from gacprof.core.errors import GacprofError, MapError, PlanError
from gacprof.core.files import write_json
from gacprof.devices.datasheet import sheets
from gacprof.diagnosing.sources import open_source
from gacprof.kernels import fa2
from gacprof.rules import RefusedError, serve
from gacprof.sweeping import load_suite

BASIS = "by rules, not measured"


@pytest.fixture(scope="session")
def ruled(tmp_path_factory):
    """The rule table of an H100, as a file."""
    path = tmp_path_factory.mktemp("rules") / "h100.json"
    gacprof.rule_table("h100", "2.11").save(path)
    return path


def test_the_file_says_which_sizes_are_of_which_tier_and_whence(ruled):
    data = json.loads(ruled.read_text())
    assert data["schema"] == "gacprof.rules/1" and data["basis"] == BASIS
    halves = [t for t in data["tiers"] if (t["dtype"], t["axis"]) == ("bfloat16", "K, N")]
    assert [(t["tier"], t["sizes"]) for t in halves] == [
        (1, "multiples of 8 (safe: of 64)"), (2, "multiples of 2"), (3, "any size")
    ]  # fmt: skip
    assert [t["relative"] for t in halves] == [1.0, 2.1, 3.3]
    assert all(rule["source"] and rule["says"] for t in data["tiers"] for rule in t["rules"])
    assert open_source(ruled).as_dict() == data


@pytest.mark.parametrize("torch", fa2.RECORDS)
def test_every_architecture_release_and_dtype_has_a_table(torch):
    def tiers(table, dtype):
        return [t for t in table.tiers if t.dtype == dtype and "row" not in t.operator]

    for gpu in {sheet.arch: gpu for gpu, sheet in sheets().items()}.values():
        whole = gacprof.rule_table(gpu, torch)
        for dtype in whole.dtypes:
            alone = gacprof.rule_table(gpu, torch, (dtype,))
            assert {tier.dtype for tier in alone.tiers} == {dtype}
            assert tiers(whole, dtype) == tiers(alone, dtype)


def in_dtype(suite, dtype):
    """The suite's sweeps in one dtype, as far as their operators have it."""
    if dtype == "auto":
        return suite
    kept = [s for s in suite.sweep if dtype in operators.get(s.operator).dtypes]
    changed = [s.model_copy(update={"dtype": dtype}) for s in kept]
    return suite.model_copy(update={"sweep": changed})


@pytest.mark.parametrize("suite", ["quick", "full", "paper-a"])
def test_every_point_of_a_default_suite_is_served_refused_or_not_covered(suite):
    """What a dtype or a GPU cannot do is said, and stops nothing else."""
    made = load_suite(suite)
    gpus = ("a100", "l40s", "rtx5090", "h100", "b200")
    for dtype, gpu in product(("auto", "bfloat16", "float16", "float32"), gpus):
        about = gacprof.rule_table(gpu).target
        try:
            points = list(in_dtype(made, dtype).points("cuda"))
        except GacprofError as error:
            assert "takes" in str(error)  # the experts' operator, say, takes bfloat16 alone
            continue
        served = 0
        for point in points[::31]:
            try:
                served += serve(point, about).tier >= 1
            except MapError as error:
                assert isinstance(error, RefusedError) or "no rule" in str(error)
        assert served


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tiers": []}, "make it anew: gacprof map rules --gpu h100"),
        ({"schema": "gacprof.rules/2"}, "newer than the gacprof.rules/1 of this .*upgrade gacprof"),
        ({"schema": "gacprof.rules/0"}, "earlier gacprof; make it anew: gacprof map rules --gpu "),
        ({"schema": "gacprof.rules/"}, "its schema is 'gacprof.rules/', not gacprof.rules/1"),
        ({"schema": f"gacprof.rules/{'9' * 5000}"}, "its schema is 'gacprof.rules/999"),
        ({"schema": 7}, None),
        ({"gpu": "v100"}, None),
        ({"torch": None}, None),
        ({"dtypes": "x"}, None),
        ({"name": ""}, None),
    ],
)
def test_a_table_of_other_tiers_or_another_version_is_refused(ruled, tmp_path, change, message):
    write_json(tmp_path / "changed.json", json.loads(ruled.read_text()) | change)
    with pytest.raises(MapError, match=message):
        open_source(tmp_path / "changed.json")


def test_a_rule_table_is_known_wherever_its_schema_stands_and_an_old_one_names_the_command(
    ruled, tmp_path
):
    (tmp_path / "late.json").write_text("\n" * 5000 + ruled.read_text("utf-8"))
    assert open_source(tmp_path / "late.json").basis == BASIS
    old = CliffMap.load("h100-published").as_dict()
    old["provenance"] |= {"kind": "rules", "stack": {"torch": "2.11.0"}}
    write_json(tmp_path / "old.json", old)
    with pytest.raises(MapError, match=r"gacprof map rules --gpu 'NVIDIA H100.*--torch 2\.11\.0"):
        open_source(tmp_path / "old.json")


def test_joint_candidates_are_those_of_the_best_tier_in_both_products(ruled):
    made = gacprof.rule_table("h100", "2.11")
    found = gacprof.safe_ranks((512, 384), made, within=(100, 130))
    assert [c.d for c in found] == [128]
    every = gacprof.safe_ranks((512, 384), made, within=(100, 130), safe_only=False)
    assert [c.d for c in every if c.verdict == "undecided"] == [104, 112, 120]
    assert all(set(c.as_dict()) & {"latency_us", "penalty"} == set() for c in found)
    assert BASIS in found[0].as_dict()["curve"] and found[0].tier == 1
    assert [c.d for c in gacprof.safe_ranks((4096, 384), made)][-1] <= 4096 * 384 // 4480


def test_a_size_is_judged_as_one_rank_holds_it():
    made = gacprof.rule_table("h100", "2.11")
    near = {c.d: c for c in made.candidates(
        "linear", axis="N", near=1368, shards=8, window=(1300, 1540), safe_only=False
    )}  # fmt: skip
    verdicts = [near[d].verdict for d in (1368, 1408, 1536)]  # 171, 176, 192 on a rank
    assert verdicts == ["misaligned", "undecided", "safe"]
    assert all(d % 8 == 0 for d in near)
    joint = made.joint_candidates(
        [Use("linear", {"M": 512, "K": 4096}, "N", "bfloat16", shards=8)], 1368, window=200
    )
    assert [c.d for c in joint] == [1536]


def test_a_diagnosis_names_misaligned_dims_and_no_time(asvd, ruled):
    found = gacprof.diagnose(asvd, ruled)
    odd = {dim.name for dim in found.dims if dim.size % 8}
    assert {dim.name for dim in found.dims if dim.verdict == "misaligned"} == odd and odd
    assert found.predicted_us is found.lost_us is found.recoverable_us is None
    data = json.dumps(found.as_dict())
    assert BASIS in data
    for dim in found.as_dict()["dims"]:
        assert dim["latency_us"] is None and dim["penalty"] is None
        assert dim["verdict"] == "safe" or dim["best_size"] == -(-dim["size"] // 8) * 8


def test_a_plan_aligns_every_dim_within_the_budget(asvd, ruled):
    made = gacprof.plan(asvd, ruled, budget=0.72)
    assert all(c.after % 8 == 0 and c.verdict in ("safe", "undecided") for c in made.choices)
    assert made.budget.limit is not None and made.budget.used <= made.budget.limit
    assert made.basis == BASIS and BASIS in made.warnings[0]
    assert made.predicted_before_us is made.predicted_after_us is None
    assert all(c.latency_after_us is None for c in made.choices)


def test_what_asks_for_times_is_refused(asvd, ruled):
    for limits in ({"objective": "latency"}, {"latency_limit_us": 10.0}):
        with pytest.raises(PlanError, match="is by rules, not measured and knows no latency"):
            gacprof.plan(asvd, ruled, **limits)
    with pytest.raises(PlanError, match="there is no front"):
        gacprof.pareto(asvd, ruled)
    with pytest.raises(MapError, match="it is by rules"):
        gacprof.explain(ruled, "linear", 107)


def test_a_dense_weight_is_offered_only_where_it_is_no_larger(asvd, ruled):
    made = gacprof.plan(asvd, ruled, objective="energy")
    dense = [c for c in made.choices if c.after is None or c.fusable]
    pairs = {m.name: m for m in gacprof.scan(asvd).modules}
    for choice in dense:
        module = pairs[choice.dim.rpartition(":")[0]]
        assert module.out_features * module.in_features <= choice.before * (
            module.out_features + module.in_features
        )


@pytest.mark.slow
def test_compressing_with_it_aligns_every_size(tmp_path):
    from compressing_models import make_model

    model = make_model(tmp_path / "dense")
    made = gacprof.rule_table("h100", "2.11", ("bfloat16",))  # what it will be served in
    found = gacprof.compress(model, tmp_path / "out", method="svd", ratio=0.3, cliff_map=made)
    assert found.plan is not None
    assert (found.aligned or 0) + found.undecided == len(found.plan.choices)
    assert all(size is None or size % 8 == 0 for size in found.sizes.values())
    assert any(BASIS in note for note in found.notes)
    card = (tmp_path / "out" / "README.md").read_text()
    assert BASIS in card and "µs" not in card


VERBS = {
    "show": ("map", "show", "MAP"),
    "candidates": ("map", "candidates", "MAP", "--op", "linear", "--axis", "K", "--near", 51),
    "table": ("map", "table", "MAP"),
    "export": ("map", "export", "MAP"),
    "export csv": ("map", "export", "MAP", "--format", "csv"),
    "diagnose": ("diagnose", "MODEL", "--map", "MAP"),
    "diagnose json": ("diagnose", "MODEL", "--map", "MAP", "--json"),
    "plan for a GPU": ("plan", "MODEL", "--gpu", "h100", "--torch", "2.11", "--out", "PLAN"),
    "plan json": ("plan", "MODEL", "--map", "MAP", "--out", "PLAN", "--json"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_output_says_by_rules_and_gives_no_time(verb, run, asvd, ruled, tmp_path):
    names = {"MAP": ruled, "MODEL": asvd, "PLAN": tmp_path / "plan.json"}
    code, out, err = run(*(names.get(str(word), word) for word in VERBS[verb]))
    assert code == (1 if "diagnose" in verb else 0), err  # 1: something is misaligned
    assert BASIS in out or "export csv" in verb
    assert "µs" not in out and "200 %" not in out


def test_a_rule_table_beside_a_published_map_counts_for_the_verdict(run, tmp_path):
    path = tmp_path / "a.json"
    gacprof.rule_table("h100", "2.9.1").save(path)
    code, out, _ = run(
        "map", "intersect", path, "a100-published", "--op", "attention", "--axis", "head_dim",
        "--json",
    )  # fmt: skip
    found = json.loads(out)
    assert code == 0 and {64, 96, 128, 192, 256} <= set(found["safe"]) and 112 not in found["safe"]
    assert set(found["dims"][0]["latencies_us"]) == {"a100-published"}
    assert found["dims"][0]["tiers"] == {"h100-rules": 1}


BAD = {
    "an unknown GPU": (("--gpu", "v100"), "there are a100, a100-40gb"),
    "an unknown release": (("--torch", "2.7"), "there are 2.6.0, 2.8.0"),
    "a dtype that it has not": (("--gpu", "a100", "--dtype", "fp8"), "there are float16, bfloat16"),
    "a checkpoint that is none": (("--for", "nowhere"), "nowhere"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line_with_what_is_known(what, run, tmp_path):
    more, message = BAD[what]
    out = tmp_path / "map.json"
    arguments = ("--gpu", "h100", "--torch", "2.11", "--out", out)
    code, _, err = run("map", "rules", *arguments, *more)
    assert code == 2 and message in err and err.count("\n") == 1
    assert not out.exists()


def test_the_page_of_safe_sizes_is_current(pytestconfig):
    import runpy

    root = Path(pytestconfig.rootpath)
    made = runpy.run_path(str(root / "tools" / "safe_dims.py"))["page"]()
    assert (root / "docs" / "safe-dims.html").read_text() == made
    assert "<td>1024</td>" in made and "https://" not in made.split("<script>")[1]

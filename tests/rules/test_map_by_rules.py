"""A map by rules as a file and through every verb: tiers, never a latency, and it says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import gacprof
from gacprof import api
from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.ranks import safe_ranks
from gacprof.core.errors import MapError, PlanError

BASIS = "by rules, not measured"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def asvd(fixtures: Path) -> Path:
    return fixtures / "checkpoints" / "asvd_mha_r1"


@pytest.fixture(scope="session")
def ruled(asvd: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A map for an H100 of the ASVD fixture's shapes."""
    path = tmp_path_factory.mktemp("rules") / "h100.json"
    api.map_by_rules("h100", "2.11", model=asvd, dtypes=["float16"]).save(path)
    return path


def test_the_file_is_an_ordinary_map_whose_columns_are_tiers(ruled: Path) -> None:
    loaded = CliffMap.load(ruled)
    assert loaded.by_rules and loaded.file.provenance.kind == "rules" and loaded.floor is None
    for curve in loaded.curves:
        assert curve.by_rules and set(curve.points.count) == {0}
        assert set(curve.points.median_us) <= {1.0, 2.0, 3.0}
        assert curve.rules and all(rule.source and rule.says for rule in curve.rules)
        if curve.operator == "linear":
            assert set(curve.safe) | set(curve.misaligned) == set(curve.points.d)


def test_a_point_that_the_map_does_not_hold_is_answered_by_its_rules(ruled: Path) -> None:
    found = CliffMap.load(ruled).latency("linear", {"M": 77, "N": 4096, "K": 107}, "float16")
    assert (found.latency_us, found.source) == (3.0, "by rules")


def test_joint_candidates_are_those_of_the_best_tier_in_both_products(ruled: Path) -> None:
    made = api.map_by_rules("h100", "2.11", ranks_of=[(512, 384)], dtypes=["float16"])
    found = safe_ranks((512, 384), made, within=(100, 130))
    assert [c.d for c in found] == [104, 112, 120, 128]
    assert all(set(c.as_dict()) & {"latency_us", "penalty"} == set() for c in found)
    assert found[0].as_dict()["basis"] == BASIS
    with pytest.raises(MapError, match=r"gacprof map rules --gpu"):
        safe_ranks((4096, 384), made)


def test_a_diagnosis_names_misaligned_dims_and_no_time(asvd: Path, ruled: Path) -> None:
    found = gacprof.diagnose(asvd, ruled)
    odd = {dim.name for dim in found.dims if dim.size % 8}
    assert {dim.name for dim in found.dims if dim.verdict == "misaligned"} == odd and odd
    assert found.predicted_us is found.lost_us is found.recoverable_us is None
    data = json.dumps(found.as_dict())
    assert BASIS in data
    for dim in found.as_dict()["dims"]:
        assert dim["latency_us"] is None and dim["penalty"] is None
        assert dim["verdict"] == "safe" or dim["best_size"] == -(-dim["size"] // 8) * 8


def test_a_plan_aligns_every_dim_within_the_budget(asvd: Path, ruled: Path) -> None:
    made = gacprof.plan(asvd, ruled, budget=0.72)
    assert all(choice.verdict == "safe" for choice in made.choices)
    assert made.budget.limit is not None and made.budget.used <= made.budget.limit
    assert made.basis == BASIS and BASIS in made.warnings[0]
    assert made.predicted_before_us is made.predicted_after_us is None
    assert all(c.latency_after_us is None for c in made.choices)


def test_a_preset_and_the_rules_hold_together(asvd: Path, ruled: Path) -> None:
    constraints = gacprof.Constraints(preset="vllm,group=16")
    made = gacprof.plan(asvd, ruled, objective="pad", constraints=constraints)
    ranks = [c.after for c in made.choices if c.kind == "rank" and c.after]
    assert ranks and all(rank % 16 == 0 for rank in ranks)


def test_what_asks_for_times_is_refused(asvd: Path, ruled: Path) -> None:
    for limits in ({"objective": "latency"}, {"latency_limit_us": 10.0}):
        with pytest.raises(PlanError, match="is by rules and knows no latency"):
            gacprof.plan(asvd, ruled, **limits)
    with pytest.raises(PlanError, match="there is no front"):
        gacprof.pareto(asvd, ruled)
    with pytest.raises(MapError, match="is by rules"):
        gacprof.explain_dim(ruled, "linear", 107)


def test_a_dense_weight_is_offered_only_where_it_is_no_larger(asvd: Path, ruled: Path) -> None:
    made = gacprof.plan(asvd, ruled, objective="energy")
    dense = [c for c in made.choices if c.after is None or c.fusable]
    pairs = {m.name: m for m in gacprof.scan(asvd).modules}
    for choice in dense:
        module = pairs[choice.dim.rpartition(":")[0]]
        assert module.out_features * module.in_features <= choice.before * (
            module.out_features + module.in_features
        )


@pytest.mark.slow
def test_compressing_with_it_aligns_every_size(tmp_path: Path) -> None:
    from compressing_models import make_model

    model = make_model(tmp_path / "dense")
    made = api.map_by_rules("h100", "2.11", ranks_of=model, dtypes=["float16"])
    found = gacprof.compress(model, tmp_path / "out", method="svd", ratio=0.3, cliff_map=made)
    assert found.plan is not None and found.aligned == len(found.plan.choices)
    assert any(BASIS in note for note in found.notes)
    card = (tmp_path / "out" / "README.md").read_text()
    assert BASIS in card and "µs" not in card


VERBS = {
    "show": ("map", "show", "MAP"),
    "show a curve": ("map", "show", "MAP", "--op", "linear"),
    "candidates": ("map", "candidates", "MAP", "--op", "linear", "--axis", "K", "--near", 51),
    "table": ("map", "table", "MAP"),
    "export": ("map", "export", "MAP"),
    "export csv": ("map", "export", "MAP", "--format", "csv"),
    "diagnose": ("diagnose", "MODEL", "--map", "MAP"),
    "diagnose json": ("diagnose", "MODEL", "--map", "MAP", "--json"),
    "plan": ("plan", "MODEL", "--map", "MAP", "--out", "PLAN"),
    "plan json": ("plan", "MODEL", "--map", "MAP", "--out", "PLAN", "--json"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_output_says_by_rules_and_gives_no_time(
    verb: str, run: Run, asvd: Path, ruled: Path, tmp_path: Path
) -> None:
    names = {"MAP": ruled, "MODEL": asvd, "PLAN": tmp_path / "plan.json"}
    code, out, err = run(*(names.get(str(word), word) for word in VERBS[verb]))
    assert code == (1 if "diagnose" in verb else 0), err  # 1: something is misaligned
    assert BASIS in out and "µs" not in out


def test_the_page_says_it_too(ruled: Path, asvd: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    gacprof.plan(asvd, ruled).save(plan)
    page = api.write_report(tmp_path / "page", cliff_map=ruled, plan=plan).read_text()
    assert page.count(BASIS) >= 3 and "latency [" not in page


def test_a_map_by_rules_beside_a_published_one_counts_for_the_verdict(
    run: Run, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    suite = {
        "name": "heads",
        "sweep": [{
            "operator": "attention", "axis": "head_dim", "values": [{"from": 64, "to": 256}],
            "dims": {"batch": 4, "heads": 32, "q_len": 2048}, "dtype": "float16",
        }],
    }  # fmt: skip
    api.map_by_rules("h100", "2.9.1", suite=suite).save(path)
    code, out, _ = run(
        "map", "intersect", path, "a100-published", "--op", "attention", "--axis", "head_dim",
        "--json",
    )  # fmt: skip
    found = json.loads(out)
    assert code == 0 and {64, 96, 128, 192, 256} <= set(found["safe"]) and 112 not in found["safe"]
    assert set(found["dims"][0]["latencies_us"]) == {"a100-published"}
    assert found["dims"][0]["tiers"] == {"h100-rules": 1.0} and BASIS in found["dims"][0]["basis"]


BAD = {
    "an unknown GPU": (("--gpu", "v100"), "there are a100, a100-40gb"),
    "an unknown release": (("--torch", "2.7"), "there are 2.6.0, 2.8.0"),
    "a dtype that it has not": (("--gpu", "a100", "--dtype", "fp8"), "there are float16, bfloat16"),
    "two things asked": (("--suite", "quick", "--ranks", "64x64"), "give one of a suite"),
    "no such suite": (("--suite", "nope"), "no suite 'nope'"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line_with_what_is_known(what: str, run: Run, tmp_path: Path) -> None:
    more, message = BAD[what]
    out = tmp_path / "map.json"
    arguments = ("--gpu", "h100", "--torch", "2.11", "--out", out)
    code, _, err = run("map", "rules", *arguments, *more)
    assert code == 2 and message in err and err.count("\n") == 1
    assert not out.exists()


def test_fp8_maps_hold_the_products_that_fp8_has(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "map.json"
    asked = ("--gpu", "h200", "--torch", "2.13", "--dtype", "bf16,float8_e4m3fn")
    code, _, err = run("map", "rules", *asked, "--ranks", "256x256", "--out", out)
    assert code == 0, err
    loaded = CliffMap.load(out)
    fp8 = loaded.curve("quantised", "K", "float8_e4m3", M=1024)
    assert fp8.safe and all(d % 16 == 0 for d in fp8.points.d)
    assert "no multiple of 16" in fp8.coverage.failed[104]
    assert loaded.curve("linear", "K", "bfloat16", M=1024).safe[:2] == [8, 16]


def test_head_dims_that_cudnn_may_serve_in_unknown_steps_are_undecided(tmp_path: Path) -> None:
    suite = {
        "name": "heads",
        "sweep": [{
            "operator": "attention", "axis": "head_dim", "values": [{"from": 96, "to": 136}],
            "dims": {"heads": 32, "q_len": 2048}, "dtype": "bfloat16",
        }],
    }  # fmt: skip
    api.map_by_rules("h100", "2.11", suite=suite).save(tmp_path / "map.json")
    (curve,) = CliffMap.load(tmp_path / "map.json").curves
    assert curve.safe == curve.frontier == [128]
    assert curve.undecided == [96, 104, 112, 120, 136] and 107 in curve.misaligned


def test_the_page_of_safe_sizes_is_current(pytestconfig: pytest.Config) -> None:
    import runpy

    root = Path(pytestconfig.rootpath)
    made = runpy.run_path(str(root / "tools" / "safe_dims.py"))["page"]()
    assert (root / "docs" / "safe-dims.md").read_text() == made

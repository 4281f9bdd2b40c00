"""How far the rules hold on the published points, as docs/rules.md says, and where they do not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gacprof
from gacprof.cliffmap import CliffMap
from gacprof.core.errors import MapError
from gacprof.rules.agreement import Agreement, agree


@pytest.fixture(scope="module")
def found() -> dict[str, Agreement]:
    return {
        gpu: agree(
            gacprof.rule_table(gpu, "2.9.1"),
            CliffMap.load(f"{gpu}-published"),
        )
        for gpu in ("a100", "h100")
    }


def test_the_table_of_the_document_is_the_agreement(
    found: dict[str, Agreement], pytestconfig: pytest.Config
) -> None:
    text = (Path(pytestconfig.rootpath) / "docs" / "rules.md").read_text()
    rows = re.findall(
        r"^\| (A100|H100) (?:(row_sum) )?(\w+) \| (\d+) \| (.+) \|$", text, flags=re.M
    )
    axes = {gpu: agreement.by_axis() for gpu, agreement in found.items()}
    assert len(rows) == sum(len(of_gpu) for of_gpu in axes.values())
    for gpu, stream, axis, count, cells in rows:
        operator = stream or ("attention" if axis == "head_dim" else "linear")
        compared, safe, frontier = axes[gpu.lower()][operator, axis]
        assert compared == int(count)
        shares = [
            (share.agreed, of)
            for share in (safe, frontier)
            for of in (share.by_rules, share.measured)
        ]
        said = re.findall(r"(\d+) % \((\d+)/(\d+)\)", cells)
        assert [(int(a), int(b)) for _, a, b in said] == shares
        assert [int(p) for p, *_ in said] == [round(100 * a / b) for a, b in shares]


def test_every_head_dim_of_either_gpu_is_as_the_rules_say(found: dict[str, Agreement]) -> None:
    for gpu, frontier in (("a100", 12 / 16), ("h100", 1.0)):
        compared, safe, on_frontier = found[gpu].by_axis()["attention", "head_dim"]
        assert compared > 100 and safe.precision == safe.recall == 1.0
        assert on_frontier.recall == 1.0 and on_frontier.precision == frontier


def test_no_dim_of_k_that_is_safe_as_measured_is_missed(found: dict[str, Agreement]) -> None:
    for gpu, precision in (("a100", 0.66), ("h100", 0.84)):
        _, safe, _ = found[gpu].by_axis()["linear", "K"]
        assert safe.recall == 1.0
        assert safe.precision is not None and precision < safe.precision < precision + 0.01


def test_eights_that_are_no_sixteens_are_the_counter_examples_near_4000_on_the_a100(
    found: dict[str, Agreement],
) -> None:
    curve = next(c for c in found["a100"].curves if "linear K (M=512 N=4096)" in c.curve)
    wrong = {one.d for one in curve.counter_examples if one.by_rules == "safe"}
    assert {4008, 4024, 4040, 4056, 4072, 4088} <= wrong
    assert sum(d % 16 == 0 for d in wrong) == 1  # 4048 alone is not explained by it


def test_the_cliff_after_1664_is_explained_by_a_wave_and_that_after_1088_is_not(
    found: dict[str, Agreement],
) -> None:
    by_axis = {
        c.axis: c for c in found["a100"].curves if "=2048) float16" in c.curve and "128" in c.curve
    }
    n, m = by_axis["N"], by_axis["M"]
    assert n.cliffs > len(n.unexplained) and 1664 not in {before for before, *_ in n.unexplained}
    assert 1728 not in {before for before, *_ in m.unexplained}
    assert (1088, 1089) in {(before, after) for before, after, _ in m.unexplained}


def test_undecided_dims_count_for_neither() -> None:
    made = gacprof.rule_table("a100", "2.9.1")
    published = CliffMap.load("a100-published")
    none = [c.model_copy(update={"safe": [], "misaligned": []}) for c in published.curves]
    blank = CliffMap(published.file.model_copy(update={"curves": none}))
    assert agree(made, blank).by_axis() == {}


def test_other_maps_and_other_chips_are_refused() -> None:
    made = gacprof.rule_table("a100", "2.9.1")
    h = CliffMap.load("h100-published")
    with pytest.raises(MapError, match="one architecture's rules say nothing of another"):
        agree(made, h)


def test_the_verb_prints_shares_and_each_counter_example(
    run: Callable[..., Any], tmp_path: Any
) -> None:
    path = tmp_path / "h.json"
    gacprof.rule_table("h100", "2.11").save(path)
    code, out, _ = run("map", "agree", path, "h100-published")
    assert code == 0 and "4008: safe by rules (tier 1), misaligned as measured" in out
    assert "the rules are of torch 2.11.0, the measured map is of torch 2.9.1" in out
    code, out, _ = run("map", "agree", path, "h100-published", "--json")
    axes = {(a["operator"], a["axis"]): a for a in json.loads(out)["axes"]}
    assert axes["linear", "K"]["safe"]["recall"] == 1.0

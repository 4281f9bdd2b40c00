"""How far the rules hold on the published points, as docs/rules.md says, and where they do not."""

import json
import re
from pathlib import Path

import pytest

import gacprof
from gacprof.cliffmap import CliffMap
from gacprof.core.errors import MapError
from gacprof.rules.agreement import agree


@pytest.fixture(scope="module")
def found():
    return {
        gpu: agree(
            gacprof.rule_table(gpu, "2.9.1"),
            CliffMap.load(f"{gpu}-published"),
        )
        for gpu in ("a100", "h100")
    }


def test_the_table_of_the_document_is_the_agreement(found, pytestconfig):
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
        said = re.findall(r"(\d+|–) (?:% )?\((\d+)/(\d+)\)", cells)
        assert [(int(a), int(b)) for _, a, b in said] == shares
        percents = [str(round(100 * a / b)) if b else "–" for a, b in shares]
        assert [percent for percent, *_ in said] == percents


def test_every_published_size_that_rules_call_safe_was_measured_so(found):
    """The gate of what rules claim: a safe size is right, a misaligned one too; on K and N of each
    GPU there are some, and what is not known is left undecided."""
    for gpu, agreement in found.items():
        assert [one for curve in agreement.curves for one in curve.counter_examples] == [], gpu
        axes = agreement.by_axis()
        for axis in ("K", "N"):
            compared, safe, _ = axes["linear", axis]
            assert compared > 80 and safe.precision == 1.0 and safe.agreed >= 2
        assert axes["row_sum", "K"][1].by_rules == 0


def test_other_maps_and_other_chips_are_refused():
    made = gacprof.rule_table("a100", "2.9.1")
    h = CliffMap.load("h100-published")
    with pytest.raises(MapError, match="one architecture's rules say nothing of another"):
        agree(made, h)


def test_the_verb_prints_shares_and_each_counter_example(run, tmp_path):
    path = tmp_path / "h.json"
    gacprof.rule_table("h100", "2.11").save(path)
    code, out, _ = run("map", "agree", path, "h100-published")
    assert code == 0 and "linear K" in out and "100.0 % (2/2)" in out
    assert "the rules are of torch 2.11.0, the measured map is of torch 2.9.1" in out
    code, out, _ = run("map", "agree", path, "h100-published", "--json")
    axes = {(a["operator"], a["axis"]): a for a in json.loads(out)["axes"]}
    assert axes["linear", "K"]["safe"]["precision"] == 1.0

"""The page says what was found, in words that follow the numbers, and stands alone."""

import copy
import json
import re
from pathlib import Path

import pytest

from gacprof.cliffmap import CliffMap
from gacprof.core.errors import ReportError
from gacprof.core.formatting import dims
from gacprof.reporting.figures import View
from gacprof.reporting.page import sizes_asked, telling_curves, write_page
from gacprof.reporting.verdict import Contents, caption, cliffs, point_words, verdict
from gacprof.reporting.wording import diagnosed, worst

ROOT = Path(__file__).parents[2]

TIMING = {
    "workload": "prefill 256", "kind": "prefill", "tokens": 256, "low_us": 900.0,
    "latency_us": 1000.0, "high_us": 1100.0, "timings_us": [900.0, 1000.0, 1100.0],
}  # fmt: skip
BENCH = {
    "models": ["before", "after"], "parameters": [1000, 1010], "dtype": "float32", "batch": 1,
    "decode_steps": 4, "rounds": 3, "timer": "cpu-monotonic", "environment": {"name": "a device"},
    "notes": [],
    "replicates": [{"workload": "prefill 256", "ratio": [0.99, 1.0, 1.01], "spread": 0.01}],
    "timings": [
        TIMING | {"model": "before", "ratio": None, "verdict": "reference"},
        TIMING | {"model": "after", "ratio": [0.85, 0.9, 0.95], "verdict": "faster"},
    ],
}  # fmt: skip
CHECK = {
    "max_abs_error": 1e-6, "max_rel_error": 1e-7, "mean_kl": 1e-12, "tolerance": 1e-5,
    "argmax_agreement": 1.0, "passed": True, "inputs": "random", "dtype": "float32",
    "positions": 64,
}  # fmt: skip


def bench(verdict: str, ratio: list[float]) -> dict:
    changed = copy.deepcopy(BENCH)
    changed["timings"][1] |= {"ratio": ratio, "verdict": verdict}
    return changed


def headline(**parts) -> str:
    return verdict(Contents("t", **parts)).headline


BUSY = "90 of 1152 timings were preempted: the machine is busy, and so on"
CAPPED = "the time cap was reached after 3 rounds, a verdict takes 12"


@pytest.mark.parametrize(
    ("found", "ratio", "notes", "said"),
    [
        ("no difference shown", [0.95, 1.0, 1.05], [], "gains nothing that can be shown"),
        ("slower", [1.05, 1.1, 1.2], [], "after is slower"),
        ("identical", [0.95, 1.0, 1.05], [], "after is identical to before, byte for byte."),
        ("undecided", [0.85, 0.9, 0.95], [], "undecided (−15.0 % to −5.0 %)"),
        ("no difference shown", [0.95, 1.0, 1.05], [BUSY],
         "is not decided: machine busy, 3 rounds; prefill"),
        ("no difference shown", [0.95, 1.0, 1.05], [BUSY, CAPPED],
         "is not decided: machine busy, 3 of 12 rounds; prefill"),
        ("undecided", [0.95, 1.0, 1.05], [CAPPED], "is not decided: 3 of 12 rounds; prefill"),
    ],
)  # fmt: skip
def test_the_headline_says_what_the_timings_show(found, ratio, notes, said):
    timed = bench(found, ratio) | {"notes": notes}
    assert said in headline(bench=timed)


def test_a_bench_that_goes_both_ways_says_so_and_names_the_largest_spread():
    mixed, slower = bench("faster", [0.85, 0.9, 0.95]), bench("slower", [1.05, 1.1, 1.2])
    mixed["timings"] += [timing | {"workload": "decode"} for timing in slower["timings"]]
    mixed["replicates"] += [mixed["replicates"][0] | {"spread": 0.03}]
    found = verdict(Contents("t", bench=mixed))
    assert found.headline.startswith("after is faster than before somewhere, slower elsewhere: pre")
    assert "no difference below 3.0 %" in found.rest["How sure"][0]


def test_the_largest_loss_and_the_widest_bound_come_first(tmp_path):
    assert worst(DIAGNOSED)[0].startswith("Most is lost in layers 0–3 mlp:width 2816: pad to 2848;")
    page = write_page(Contents("t", diagnosis=DIAGNOSED), tmp_path).read_text()
    rows = dict.fromkeys(re.findall(r'<td class="(\w+)">\1</td>', page))
    assert list(rows)[:3] == ["misaligned", "undecided", "safe"]
    curves = CliffMap.load("cpu-example").curves
    unsure = next(curve for curve in curves if curve.undecided and not curve.misaligned)
    assert cliffs(View(unsure)).endswith("10 are undecided, off by at most 8.1 %.")
    words = point_words(CliffMap.load("a100-published").curve("attention", "head_dim"))
    assert words[107] == "2.15 ms: misaligned, 44.6 % more than 128"


def test_a_failed_comparison_is_told():
    failed = headline(verification=CHECK | {"passed": False})
    assert "does not compute the same function" in failed
    assert "could not be compared" in headline(verification=CHECK | {"max_rel_error": None})


def test_the_verdict_is_one_sentence_with_at_most_three_reasons_and_nothing_twice():
    cpu = CliffMap.load("cpu-example")
    views = [View(curve) for curve in telling_curves(cpu)]
    found = verdict(
        Contents("t", cliff_map=cpu, diagnosis=DIAGNOSED, bench=BENCH, verification=CHECK), views
    )
    message = [found.headline, *found.reasons, *(line for of in found.rest.values() for line in of)]
    assert len(found.reasons) == 3 and len(set(message)) == len(message)
    assert any("2.11 ms of 17.76 ms (11.9 %)" in line for line in found.reasons)
    assert headline(cliff_map=CliffMap.load("a100-published")).startswith("NVIDIA A100 80GB: 2,298")


def test_a_model_without_a_known_loss_is_not_said_to_lose_none():
    totals = DIAGNOSED["totals"] | {"misaligned": 0, "judged": 0, "unknown": 29}
    (said,) = diagnosed(DIAGNOSED | {"totals": totals})
    assert said.startswith("Not known: none of 29 weights")
    totals |= {"weights": 15, "judged": 7, "unknown": 8, "undecided": 0}
    totals |= {"fixed": 3, "fixed_by_engines": 2}
    said, rest = diagnosed(DIAGNOSED | {"totals": totals})
    assert said.startswith("4 of 15 weights judged, none known to lose time on ")
    assert said.endswith("; 8 not known.")
    assert rest.startswith("Of the rest 1 not judged (no dim") and "2 not judged (engines" in rest


def test_choices_that_read_the_same_are_one_row(tmp_path):
    plan = json.loads((ROOT / "reports/cpu-example/plan.json").read_text())
    first = plan["choices"][0]
    plan["choices"] = [
        first | {"dim": f"model.layers.{i}.mlp:width", "latency_before_us": 1000 + i % 3 / 1e9}
        for i in range(4)
    ]
    page = write_page(Contents("t", plan=plan), tmp_path).read_text()
    assert "layers 0–3 mlp" in page and "layers 0, 3" not in page


def test_what_gains_most_is_said_first_and_a_busy_machine_by_its_share():
    merge = {"tokens": 256, "weights": ["a", "b"], "pairs": 3, "low_us": 8e3, "saved_us": 9e3,
             "high_us": 1e4, "of_us": 19640.0}  # fmt: skip
    busy = "31.0% of the calls waited for a core"
    assert DIAGNOSED["totals"]["undecided"] and "256" in DIAGNOSED["tokens"]
    merging, padding, rest = diagnosed(DIAGNOSED | {"merges": [merge], "busy": busy})
    assert merging.startswith("Merging factor pairs into dense weights saves 45.8 % (40.7 % to")
    assert "at 256 tokens (2 of 3 pairs)" in merging and "padding recovers" in padding
    assert f"Machine busy during the sweep: {busy}." in rest
    less = merge | {"low_us": 80.0, "saved_us": 90.0, "high_us": 100.0}
    assert "padding recovers" in diagnosed(DIAGNOSED | {"merges": [less]})[0]


DIAGNOSED = json.loads((ROOT / "reports/cpu-example/diagnosis.json").read_text())


def test_the_curves_are_the_models_own_and_cut_to_its_sizes():
    cpu = CliffMap.load("cpu-example")
    for curve in telling_curves(cpu, DIAGNOSED)[:4]:
        asked = sizes_asked(curve, DIAGNOSED)
        first, last = View(curve, asked).shown
        assert len(asked) > 10 and asked[0] >= 82 and asked[-1] <= 113  # no width, no hidden size
        assert asked[0] - 16 < first <= asked[0] and asked[-1] < last <= 192
        assert f"Triangles mark the sizes of this model: {dims(asked)}." in caption(
            View(curve, asked)
        )
    wide = cpu.curve("linear", "N", K=1024, M=256)
    assert wide.points.d[-1] == 2816 and View(wide).shown == (72, 128)  # where most dims are
    a100 = CliffMap.load("a100-published").curve("attention", "head_dim")
    assert View(a100).shown == (64, 256)


def test_the_page_has_a_section_for_what_there_is_and_none_for_what_there_is_not(tmp_path):
    page = write_page(Contents("Only a bench", bench=BENCH, verification=CHECK), tmp_path / "p")
    text = page.read_text()
    assert "Measured before and after" in text and "Is it still the same function?" in text
    assert "A/A spread: prefill 256 1.0 % (−1.0 % to +1.0 %)" in text
    assert "Diagnosis" not in text and "The cliff map" not in text


def test_the_page_stands_alone_takes_names_literally_and_a_second_replaces_it(tmp_path, a100):
    """Of the curves that a page draws, one of attention and one of products."""
    kinds = {c.operator: c for c in telling_curves(a100) if c.operator != "row_sum"}
    few = CliffMap(a100.file.model_copy(update={"curves": list(kinds.values())}))
    hostile, figures = "<script>alert(1)</script>", tmp_path / "figures"
    text = write_page(Contents(hostile, cliff_map=few, notes=[hostile]), tmp_path).read_text()
    assert hostile not in text and "&lt;script&gt;" in text
    assert not re.search(
        r"(src|href)=[\"']https?://", re.sub(r"<svg.*?</svg>", "", text, flags=re.S)
    )
    drawn = sorted(p.name for p in figures.iterdir())
    assert len(drawn) == 2 * len(telling_curves(few)) == 4 and drawn[0].endswith(".png")
    assert any("linear" in name for name in drawn) and "10.1145/3805621.3807608" in text
    (figures / "mine.svg").write_text("mine")
    write_page(Contents("Two", bench=BENCH), tmp_path)
    drawn = [p.name for p in figures.iterdir()]
    assert "mine.svg" in drawn and not any("linear" in name for name in drawn)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ReportError, match="is a file's name"):
        write_page(Contents("t", bench=BENCH), tmp_path / "file")

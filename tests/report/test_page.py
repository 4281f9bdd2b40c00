"""The page says what was found, in words that follow the numbers, and stands alone."""

import copy
import re

import pytest

from gacprof.cliffmap import CliffMap
from gacprof.core.errors import ReportError
from gacprof.report.page import Contents, telling_curves, write_page
from gacprof.report.wording import between, error, headline, microseconds

TIMING = {
    "workload": "prefill 256",
    "kind": "prefill",
    "tokens": 256,
    "low_us": 900.0,
    "latency_us": 1000.0,
    "high_us": 1100.0,
    "timings_us": [900.0, 1000.0, 1100.0],
}
BENCH = {
    "models": ["before", "after"],
    "parameters": [1000, 1010],
    "dtype": "float32",
    "batch": 1,
    "decode_steps": 4,
    "rounds": 3,
    "timer": "cpu-monotonic",
    "environment": {"name": "a device"},
    "notes": [],
    "replicates": [{"workload": "prefill 256", "ratio": [0.99, 1.0, 1.01], "spread": 0.01}],
    "timings": [
        TIMING | {"model": "before", "ratio": None, "verdict": "reference"},
        TIMING | {"model": "after", "ratio": [0.85, 0.9, 0.95], "verdict": "faster"},
    ],
}
CHECK = {
    "max_abs_error": 1e-6,
    "max_rel_error": 1e-7,
    "mean_kl": 1e-12,
    "tolerance": 1e-5,
    "argmax_agreement": 1.0,
    "passed": True,
    "inputs": "random",
    "dtype": "float32",
    "positions": 64,
}


def bench(verdict: str, ratio: list[float]) -> dict:
    changed = copy.deepcopy(BENCH)
    changed["timings"][1] |= {"ratio": ratio, "verdict": verdict}
    return changed


def test_a_gain_is_told_with_its_interval():
    (sentence,) = headline(Contents("t", bench=BENCH))
    assert "after is faster against before" in sentence
    assert "−10.0 % (−15.0 % to −5.0 %)" in sentence


def test_no_gain_and_a_loss_are_told_as_such():
    (none,) = headline(Contents("t", bench=bench("no difference shown", [0.95, 1.0, 1.05])))
    assert "gained nothing that can be shown" in none
    (loss,) = headline(Contents("t", bench=bench("slower", [1.05, 1.1, 1.2])))
    assert "after is slower" in loss
    (same,) = headline(Contents("t", bench=bench("identical", [0.95, 1.0, 1.05])))
    assert same == "after is identical to before, byte for byte."
    (open_,) = headline(Contents("t", bench=bench("undecided", [0.85, 0.9, 0.95])))
    assert "undecided (−15.0 % to −5.0 %)" in open_


def test_a_failed_comparison_is_told():
    (failed,) = headline(Contents("t", verification=CHECK | {"passed": False}))
    assert "does not compute the same function" in failed
    (broken,) = headline(Contents("t", verification=CHECK | {"max_rel_error": None}))
    assert "could not be compared" in broken


def test_the_page_has_a_section_for_what_there_is_and_none_for_what_there_is_not(tmp_path):
    page = write_page(Contents("Only a bench", bench=BENCH, verification=CHECK), tmp_path / "p")
    text = page.read_text()
    assert "Measured before and after" in text and "Is it still the same function?" in text
    assert "A/A spread: prefill 256 1.0 % (−1.0 % to +1.0 %)" in text
    assert "Diagnosis" not in text and "The cliff map" not in text


def test_the_page_stands_alone_and_takes_names_literally(tmp_path):
    hostile = "<script>alert(1)</script>"
    a100 = CliffMap.load("a100-published")
    page = write_page(Contents(hostile, cliff_map=a100, notes=[hostile]), tmp_path / "p")
    text = page.read_text()
    assert "<script" not in text and "&lt;script&gt;" in text
    assert not re.search(
        r"(src|href)=[\"']https?://", re.sub(r"<svg.*?</svg>", "", text, flags=re.S)
    )
    figures = sorted(p.name for p in (tmp_path / "p" / "figures").iterdir())
    assert len(figures) == 2 * len(telling_curves(a100)) and figures[0].endswith(".png")
    assert "10.1145/3805621.3807608" in text


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ReportError, match="cannot write"):
        write_page(Contents("t", bench=BENCH), tmp_path / "file")


def test_durations_have_a_unit_that_suits_them():
    assert [microseconds(v) for v in (None, 1.25, 999.0, 1500.0, 2.5e6)] == [
        "unknown",
        "1.2 µs",
        "999.0 µs",
        "1.50 ms",
        "2.50 s",
    ]


def test_a_second_report_leaves_no_figure_of_the_first_and_every_other_file(tmp_path):
    figures = tmp_path / "figures"
    a100 = CliffMap.load("a100-published")
    write_page(Contents("One", cliff_map=a100), tmp_path)
    assert any(figures.iterdir())
    (figures / "mine.svg").write_text("mine")
    write_page(Contents("Two", bench=BENCH), tmp_path)
    drawn = {p.name for p in figures.iterdir()}
    assert "mine.svg" in drawn and not any("linear" in name for name in drawn)


def test_two_ends_that_read_the_same_are_one_and_no_error_is_none():
    assert between([0.0371, 0.0372]) == "3.7 %" and between([0.02, 0.037]) == "2.0 % to 3.7 %"
    assert (error(0.0), error(1.5e-7), error(None)) == ("0", "1.50e-07", "not finite")

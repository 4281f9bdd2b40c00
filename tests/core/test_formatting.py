"""Texts of options as people write them; numbers, lists and strangers' texts as they read them."""

import pytest

from gacprof.core.errors import PlanError, SuiteError
from gacprof.core.formatting import at_most, dims, duration, microseconds, percent, visible
from gacprof.core.texts import budget_seconds, byte_count


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("8m", 480), ("1.5h", 5400)]
)
def test_durations_are_written_as_people_do(text, seconds):
    assert budget_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-3s", "0m", "soon", "8 days", "1e3", "nan"])
def test_other_durations_are_refused(text):
    with pytest.raises(SuiteError, match="no time budget: give a time such as"):
        budget_seconds(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("6GB", 6 * 10**9), ("512MiB", 512 * 2**20), ("1.5 kB", 1500), ("1,000", 1000), ("7b", 7)],
)
def test_bytes_are_read_with_decimal_and_binary_units(text, count):
    assert byte_count(text) == count


@pytest.mark.parametrize(
    "text", ["", "GB", "nan", "-1GB", "0", "6XB", "1e400", "0x10", "1 2", "½GB"]
)
def test_what_is_no_number_of_bytes_is_refused(text):
    with pytest.raises(PlanError, match="--memory"):
        byte_count(text)


def test_numbers_as_people_read_them():
    assert [microseconds(us) for us in (None, 1.25, 999.0, 1500.0, 2.5e6)] == [
        None, "1.2 µs", "999.0 µs", "1.50 ms", "2.50 s",
    ]  # fmt: skip
    assert [percent(0.02), percent(0.02, signed=True), percent(0.5, decimals=0)] == [
        "2.0 %", "+2.0 %", "50 %",
    ]  # fmt: skip
    assert percent(None) is None and at_most(None) == "open" and at_most(0.02) == "2.0 %"
    assert duration(41.2) == "41 s" and duration(700) == "12 min"


def test_even_runs_of_dims_are_shortened():
    assert dims([96, 104, 112, 120, 128]) == "96 … 128 (by 8)"
    assert dims([1, 2, 3, 4, 8, 16]) == "1 … 4, 8, 16" and dims([]) == "none"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("model.layers.0", "model.layers.0"),
        (
            "‖W − u·v‖ 1\N{NARROW NO-BREAK SPACE}%\n\té",
            "‖W − u·v‖ 1\N{NARROW NO-BREAK SPACE}%\n\té",
        ),
        ("a\x1b[31mred", r"a\x1b[31mred"),
        ("a\x07\x08\x7f\x9b", r"a\x07\x08\x7f\x9b"),
        ("a\r\u202eb", r"a\r\u202eb"),
        ("a\ud83d", r"a\ud83d"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown

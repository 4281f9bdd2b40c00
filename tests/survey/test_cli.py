"""The verb: budgets as people write them, and faults as one line."""

import pytest
from typer.testing import CliRunner

from gacprof.cli.app import app
from gacprof.cli.options import budget_seconds
from gacprof.core.errors import GacprofError, SuiteError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("8m", 480), ("1.5h", 5400)]
)
def test_a_budget_has_a_unit(text, seconds):
    assert budget_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0m", "-1m", "soon", "8 minutes", "1e3", "nan"])
def test_what_is_no_budget_is_refused(text):
    with pytest.raises(SuiteError, match="no time budget"):
        budget_seconds(text)


def test_a_gpu_that_is_not_there_is_one_line(tmp_path):
    arguments = ["survey", "--device", "cuda:99", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, GacprofError)
    assert not (tmp_path / "out").exists()


def test_the_verb_is_listed():
    assert "survey" in CliRunner().invoke(app, ["--help"]).output

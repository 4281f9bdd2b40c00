"""The verb: it is listed, and faults are one line."""

from typer.testing import CliRunner

from gacprof.cli.app import app
from gacprof.core.errors import GacprofError


def test_a_gpu_that_is_not_there_is_one_line(tmp_path):
    arguments = ["survey", "--device", "cuda:99", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, GacprofError)
    assert not (tmp_path / "out").exists()


def test_the_verb_is_listed():
    assert "survey" in CliRunner().invoke(app, ["--help"]).output

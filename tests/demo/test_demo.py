"""The demo's model is what the page says of it, and its folder replaces only a demo's."""

import shutil
from types import SimpleNamespace

import pytest

from gacprof.checkpoint import scan
from gacprof.core.errors import GacprofError
from gacprof.demo.models import described, ranks, write_demo_checkpoint
from gacprof.demo.run import MARKER, _fresh, _too_small_to_see, commands, run_demo


def test_the_model_is_a_llama_with_the_published_ranks(tmp_path):
    inventory = scan(write_demo_checkpoint(tmp_path / "model"))
    assert inventory.layout == "asvd"
    found = {d.name.removesuffix(":rank"): d.size for d in inventory.dims if d.kind == "rank"}
    assert found == ranks() and len(found) == 28
    misaligned = sum(size % 8 != 0 for size in found.values())
    assert f"{misaligned} of 28 ranks" in described() and "random" in described()


def test_the_model_is_the_same_every_time(tmp_path):
    files = [
        (write_demo_checkpoint(tmp_path / name) / "model.safetensors").read_bytes()
        for name in ("a", "b")
    ]
    assert files[0] == files[1]


def test_only_a_demos_folder_is_replaced(tmp_path):
    folder = _fresh(tmp_path / "demo")
    (folder / "old").write_text("x")
    assert not (_fresh(tmp_path / "demo") / "old").exists()
    assert (tmp_path / "demo" / MARKER).exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("x")
    with pytest.raises(GacprofError, match="holds no demo"):
        _fresh(tmp_path / "mine")
    assert (tmp_path / "mine" / "precious").exists()


def test_the_commands_on_the_page_are_verbs_that_exist(tmp_path):
    from typer.main import get_command

    from gacprof.cli.app import app

    known = get_command(app)
    for command in commands():
        words = command.split()
        assert words[0] == "gacprof" and words[1] in known.commands, command


def test_calibration_and_evaluation_text_are_disjoint(tmp_path):
    from gacprof.demo.models import write_texts

    calibration, evaluation = (path.read_text() for path in write_texts(tmp_path))
    paragraphs = [{p.strip() for p in t.split("\n\n")} for t in (calibration, evaluation)]
    assert not paragraphs[0] & paragraphs[1]
    assert min(len(calibration), len(evaluation)) > 100_000


def test_a_trained_model_that_cannot_be_used_is_refused_with_the_reason(tmp_path, fixtures):
    shutil.copytree(fixtures / "checkpoints" / "asvd_mha_r1", tmp_path / "asvd")
    (tmp_path / "asvd" / "tokenizer.json").write_text("{}")
    for name, reason in (("nowhere", "no trained model"), ("asvd", "compressed already")):
        with pytest.raises(GacprofError, match=f"{reason}.*without --model"):
            run_demo(tmp_path / "demo", device="cpu", model=tmp_path / name)
    assert not (tmp_path / "demo").exists()


def test_a_gain_below_the_benchs_own_error_is_said_to_be_so():
    def told(before, after, verdict, spread=0.05):
        plan = SimpleNamespace(predicted_before_us=before, predicted_after_us=after)
        timings = [SimpleNamespace(model="planned", verdict=verdict)]
        return _too_small_to_see(plan, SimpleNamespace(timings=timings, spread=spread))

    assert "2.0% less time" in told(100.0, 98.0, "no difference shown")
    assert told(100.0, 98.0, "faster") is None
    assert told(100.0, 90.0, "undecided") is None, "a gain that it could have seen"
    assert told(100.0, 100.0, "undecided") is None and told(None, 90.0, "undecided") is None

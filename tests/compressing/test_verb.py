"""``gacprof compress`` at the command line: what it prints, and what it exits with."""

import json

import pytest

from gacprof.extras.compress import decomposing


def test_it_says_what_was_removed_and_where_the_model_is(run, dense, tmp_path):
    out = tmp_path / "out"
    asked = ("compress", dense, "--method", "svd", "--ratio", 0.3, "--out")
    code, said, _ = run(*asked, out)
    assert code == 0
    assert "are gone (30.0 % were asked for)" in said
    assert "no map was given" in said and f"checkpoint: {out}" in said
    assert len(json.loads(run(*asked, tmp_path / "json", "--json")[1])["sizes"]) == 21


def test_with_a_map_it_says_how_much_is_aligned_and_with_all_every_size_that_moved(
    run, dense, unaligned, map_of, tmp_path
):
    path = tmp_path / "map.json"
    map_of(unaligned("svd")).save(path)
    asked = ("compress", dense, "--method", "svd", "--ratio", 0.3, "--map", path, "--out")
    code, some, _ = run(*asked, tmp_path / "some")
    _, every, _ = run(*asked, tmp_path / "every", "--all")
    assert code == 0 and "21 of 21 dims are safe, 0 undecided, none misaligned" in some
    assert "predicted for 1 token: " in some and "predicted for 64 tokens: " in some
    assert "of 21 weights stay dense" in some and "uncompressed" in some
    assert "of which 12 are shown (--all" in some and "are shown" not in every
    assert len(every.splitlines()) > len(some.splitlines())


def test_an_interrupt_says_that_the_same_command_goes_on(run, dense, tmp_path, monkeypatch):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(decomposing, "_decompose", stop)
    asked = ("compress", dense, "--method", "svd", "--ratio", 0.3, "--out", tmp_path / "out")
    code, _, complaint = run(*asked)
    assert code == 130 and "interrupted: the same command goes on from" in complaint


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "svd", "--ratio", 2), "not between 0 and 1"),
        (("--method", "rar", "--ratio", 0.2), "unknown method 'rar'"),
        (("--method", "svd-llm", "--ratio", 0.2), "needs a calibration text"),
        (("--method", "svd", "--ratio", 0.2, "--alpha", 1), "svd does not take alpha"),
        (("--method", "llm-pruner", "--ratio", 0.2, "--scope", "x"), "must be local or global"),
        (("--method", "svd", "--ratio", 0.2, "--map", "nowhere.json"), "nowhere.json"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(run, dense, tmp_path, arguments, message):
    code, said, complaint = run("compress", dense, "--out", tmp_path / "o", *arguments)
    assert code == 2 and message in complaint and complaint.count("\n") == 1
    assert not said and not list(tmp_path.iterdir())

"""The verbs about maps as a user meets them, on the published map and on two made-up devices."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from planted_blocks import linear, numbered, planted

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.build import build_map
from gacprof.core.points import Block, Environment

UP = 1.5


def blocks(cliff: int, every: int, shift: int = 0, spread: float = 0.0) -> list[Block]:
    """K and N of a product, 50 % slower from ``cliff`` on and where K is no multiple of ``every``;
    thirteen dims of each axis have an A/A replicate."""

    def over(axis: str, other: str) -> list[Block]:
        def us(d: int) -> float:
            d -= shift
            return 20.0 * (UP if d >= cliff else 1) * (UP if axis == "K" and d % every else 1)

        dims = range(64 + shift, 193 + shift)
        points = linear(axis, dims, M=512, **{other: 1024})
        return planted(points, axis, us, count=12, spread=spread, replicates=dims[6::10])

    return numbered(over("K", "N"), over("N", "K"))


def made(folder: Path, name: str, cliff: int = 129, every: int = 8, spread: float = 0.0) -> Path:
    here = Environment("recorded", f"device {name}", "none", {}, {"torch": "2.13.0"})
    found = blocks(cliff, every, spread=spread)
    build_map(found, here, name=name).save(folder / f"{name}.json")
    return folder / f"{name}.json"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("maps")


@pytest.fixture(scope="module")
def a(folder) -> Path:
    return made(folder, "a")


@pytest.fixture(scope="module")
def b(folder) -> Path:
    """The same, but its cliff comes later and it wants multiples of 12."""
    return made(folder, "b", cliff=161, every=12)


def data(result):
    assert result.code in (0, 1), result
    assert result.err == ""
    return json.loads(result.out)


K = ("--op", "linear", "--axis", "K")
BOTH = ("--use", "linear:N:M=512,K=1024", "--use", "linear:K:M=512,N=1024")


# list, show, check


def test_list_tells_provenance_age_and_maps_of_ones_own(run, a):
    listed = {m["name"]: m for m in data(run("map", "list", a, "--json"))}
    published = listed["a100-published"]
    assert published["provenance"] == "published" and "2604.09595" in published["citation"]
    assert published["age_days"] > 0 == listed["a"]["age_days"]
    assert listed["a"]["stack"] == {"torch": "2.13.0"}
    read = run("map", "list", a)
    assert read.code == 0 and "device a" in read.out and "today" in read.out


def test_show_gives_curves_in_a_line_each_and_one_in_full(run, a):
    overview = run("map", "show", a)
    assert overview.code == 0 and "linear K" in overview.out and "A/A pairs" in overview.out
    full = run("map", "show", a, *K)
    assert "frontier: " in full.out and "K mod 8" not in full.out
    assert "period 8: d mod 8 in 0 (1.00×)" in full.out and "cliff 128 → 136: +50.0 %" in full.out
    assert "safe up to a penalty of 2.0 %; cliffs below 0.0 % would not show" in full.out
    only = data(run("map", "show", a, *K, "--json"))
    assert [curve["axis"] for curve in only["curves"]] == ["K"]


def test_show_tells_noise_and_checks_and_what_is_undecided(run, folder):
    noisy = made(folder, "noisy", spread=0.01)
    loaded = CliffMap.load(noisy)
    curve = loaded.curve("linear", "N")
    assert curve.undecided and 0.001 < loaded.floor < 0.02
    message = run("map", "show", noisy, "--op", "linear", "--axis", "N").out
    assert f"noise floor {100 * loaded.floor:.1f} % (26 A/A pairs, 2 processes)" in message
    assert f"cliffs below {100 * curve.floor:.1f} % would not show" in message
    whole = run("map", "show", noisy).out
    assert "check: contention: 0.0%" in whole and "check: drift: " in whole
    (line,) = (line for line in message.splitlines() if line.startswith("  undecided: "))
    assert f" {curve.undecided[0]}" in line and f"{curve.undecided[-1]} (penalties of" in line


def test_a_map_of_this_machine_fits_and_another_is_stale(run, tmp_path):
    from gacprof.devices.opening import open_device

    here = open_device("cpu").environment
    build_map(blocks(129, 8), here, name="here").save(tmp_path / "here.json")
    fits = run("map", "check", tmp_path / "here.json", "--json")
    assert fits.code == 0 and not json.loads(fits.out)["stale"]
    assert "it fits" in run("map", "check", tmp_path / "here.json").out
    older = replace(here, stack={**here.stack, "torch": "1.0.0"})
    build_map(blocks(129, 8), older, name="older").save(tmp_path / "older.json")
    stale = run("map", "check", tmp_path / "older.json")
    assert stale.code == 1 and "torch: the map is of 1.0.0, here is" in stale.out
    other = run("map", "check", "a100-published", "--device", "cpu", "--json")
    assert other.code == 1 and json.loads(other.out)["stale"]


# candidates, intersect, diff


@pytest.mark.parametrize(
    ("limits", "dims"),
    [
        ((), [88, 96, 104, 112, 120, 128]),
        (("--window", 12), [96, 104, 112]),
        (("--window", "100:130"), [104, 112, 120, 128]),
        (("--count", 2), [104, 112]),
        (("--below", 1, "--above", 0), [104]),
        (("--window", 2, "--unsafe"), [105, 106, 107, 108, 109]),
        (("--fixed", "M=512", "--fixed", "N=1024", "--dtype", "float16", "--count", 1), [104]),
        (("--flag", "bias=false", "--count", 1), [104]),
    ],
)
def test_candidates_by_window_count_side_and_settings(run, a, limits, dims):
    found = data(run("map", "candidates", a, *K, "--near", 107, *limits, "--json"))
    assert [c["d"] for c in found] == dims
    assert all(c["safe"] == (c["d"] % 8 == 0) for c in found)


def test_candidates_of_a_rank_or_of_several_maps_are_safe_for_all(run, a, b):
    def near_107(*asked):
        found = data(run("map", "candidates", *asked, "--near", 107, "--json"))
        return [candidate for candidate in found if candidate["safe"]]

    rank = near_107(a, *BOTH)
    assert [c["d"] for c in rank] == [88, 96, 104, 112, 120, 128]
    assert {c["latency_us"] for c in rank} == {40.0}  # of both products
    for found in (near_107(a, "--map", b, *K), near_107(a, b, *BOTH)):
        assert [c["d"] for c in found] == [72, 96, 120, 144, 160]
        assert all(set(c["latencies_us"]) == {"a", "b"} for c in found)
    read = run("map", "candidates", a, *K, "--near", 107)
    assert read.code == 0 and "a: linear K (M=512 N=1024)" in read.out and "104" in read.out
    assert "B, %" in run("map", "candidates", a, b, *K, "--near", 107).out
    none = run("map", "candidates", a, *K, "--near", 107, "--window", 1)
    assert none.code == 0 and "no safe K of linear" in none.out


def test_intersect_lists_what_is_safe_on_all(run, a, b):
    found = data(run("map", "intersect", a, b, *K, "--json"))
    assert 96 in found["safe"] and 104 not in found["safe"]
    near = data(run("map", "intersect", a, b, *K, "--near", 107, "--json"))
    assert [dim["d"] for dim in near["found"]] == [72, 96, 120, 144, 160]
    assert "safe on all" in run("map", "intersect", a, b, *K).out


def test_diff_exits_1_where_cliffs_differ_and_0_where_not(run, a, b, folder):
    same = run("map", "diff", a, made(folder, "again"), "--json")
    assert same.code == 0 and not json.loads(same.out)["differs"]
    other = run("map", "diff", a, b, "--json")
    assert other.code == 1 and json.loads(other.out)["differs"]
    verdicts = {c["verdict"] for curve in json.loads(other.out)["curves"] for c in curve["cliffs"]}
    assert "gone" in verdicts and "new" in verdicts
    read = run("map", "diff", a, b)
    assert read.code == 1 and "significant differences" in read.out and "128 → 129" in read.out
    assert "no longer safe" in read.out
    # curves without a common dim have no ratio
    here = Environment("recorded", "c", "none")
    build_map(blocks(129, 8, shift=1000), here, name="c").save(folder / "c.json")
    found = data(run("map", "diff", a, folder / "c.json", "--json"))
    assert [curve["ratio"] for curve in found["curves"]] == [None, None]
    assert run("map", "diff", a, folder / "c.json").code == 0


# what is refused

NEAR = ("map", "candidates", "A", *K, "--near", 107)
FIGURE, TABLE, EXPORT = (("map", verb, "A") for verb in ("figure", "table", "export"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("map", "list", "nonesuch"), "nonesuch"),
        (("map", "show", "A", "--op", "conv"), "no such curve; it has linear over K"),
        (("map", "check", "A", "--device", "tpu"), "tpu"),
        (("map", "diff", "A", "a100-published"), "no curve in common"),
        (("map", "diff", "A", "nonesuch"), "nonesuch"),
        (("map", "candidates", *K, "--near", 107), "gacprof map list"),
        (("map", "candidates", "A", "--near", 107), "--op linear --axis K"),
        (("map", "candidates", "A", *K, "--near", 1070), "holds K from 64 to 192"),
        (("map", "candidates", "A", *K, "--near", 0), "near"),
        (("map", "candidates", "A", "--near", 107, "--use", "linear"), "not 'linear'"),
        (("map", "candidates", "A", "--near", 107, "--use", "linear:M:N=1,K=1"), "over M"),
        ((*NEAR, "--fixed", "M"), "not 'M'"),
        ((*NEAR, "--fixed", "M=-4"), "M=-4"),
        ((*NEAR, "--fixed", "near=4"), "no dim 'near'"),
        ((*NEAR, "--fixed", "K=4"), "axis itself"),
        ((*NEAR, "--fixed", "M=512,M=513"), "M twice"),
        ((*NEAR, "--fixed", "M=3"), "no curve of linear over K"),
        ((*NEAR, "--dtype", "int8"), "gacprof sweep"),
        ((*NEAR, "--flag", "bias"), "not 'bias'"),
        ((*NEAR, "--window", "128:96"), "128:96"),
        ((*NEAR, *BOTH), "leave out"),
        ((*NEAR, "--map", "nonesuch"), "nonesuch"),
        ((*NEAR, "--map", "a100-published", "--fixed", "M=512,N=1024"), "M"),
        ((*TABLE, "--table", "B7"), "no table 'B7'"),
        ((*TABLE, "--op", "conv"), "no such curve"),
        ((*TABLE, "--format", "docx", "--out", "new"), "docx"),
        ((*TABLE, "--out", "file/t"), "cannot write"),
        ((*EXPORT, "--format", "xml"), "json, csv, settings"),
        ((*EXPORT, "--out", "file/t"), "cannot write"),
        ((*FIGURE, "--out", "new"), "--op linear --axis K"),
        ((*FIGURE, *K, "--fixed", "Q=3", "--out", "new"), "no dim 'Q'"),
        ((*FIGURE, *K, "--with", "nonesuch", "--out", "new"), "nonesuch"),
        ((*FIGURE, "--op", "attention", "--axis", "q_len", "--out", "new"), "attention over q_len"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_written(
    run, a, tmp_path, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    result = run(*(a if word == "A" else word for word in arguments))
    result.refused(message)
    assert result.out == "" and [path.name for path in tmp_path.iterdir()] == ["file"]


# table, export, figure


def test_a_table_of_the_constraints_and_one_of_the_classes(run, a):
    message = run("map", "table", a)
    assert message.code == 0 and message.out.startswith("**Constraints: device a")
    assert "| K % 8 = 0 |" in message.out and "| none found |" in message.out
    classes = data(run("map", "table", a, "--table", "classes", *K, "--json"))
    assert [row[1] for row in classes["rows"]] == ["K % 8 = 0", "K % 8 ≠ 0"]


@pytest.mark.parametrize(
    ("form", "begin"),
    [("markdown", "**Constr"), ("latex", "% "), ("csv", "curve,"), ("html", "<table")],
)
def test_a_table_in_each_format_on_the_terminal_and_in_a_file(run, tmp_path, form, begin):
    arguments = ("map", "table", "a100-published", "--format", form)
    printed = run(*arguments)
    assert printed.code == 0 and printed.out.startswith(begin)
    written = run(*arguments, "--out", tmp_path / "t")
    assert written.code == 0 and (tmp_path / "t").read_text() == printed.out


def test_notes_that_csv_has_no_place_for_go_to_stderr(run):
    message = run("map", "table", "a100-published", "--table", "classes", "--format", "csv")
    assert message.code == 0 and "no kernel names" in message.err
    assert "no kernel names" not in message.out


def test_export_as_json_holds_safe_dims_and_ready_settings(run, a):
    found = data(run("map", "export", a))
    assert found["schema"] == "gacprof.safedims/1" and found["map"] == "a"
    over_k = next(axis for axis in found["axes"] if axis["axis"] == "K")
    assert over_k["best_modulus"]["modulus"] == 8 and 104 in over_k["safe"]
    (scope,) = found["settings"]
    assert (scope["dtype"], scope["M"], scope["axes"]) == ("float16", 512, ["K", "N"])
    assert scope["sizes"] == {"K": [64, 192], "N": [64, 192]}
    asvd = next(tool for tool in scope["tools"] if tool["tool"] == "ASVD")
    assert len(scope["tools"]) == 6 and (asvd["option"], asvd["value"]) == ("rank_align", 8)
    assert asvd["loses"] < 0.05 < asvd["default_loses"]
    assert data(run("map", "export", a, "--json")) == found


def test_export_as_csv_has_a_row_a_dim_and_settings_a_row_a_tool(run, a, tmp_path):
    rows = list(csv.DictReader(io.StringIO(run("map", "export", a, "--format", "csv").out)))
    assert len(rows) == 2 * 129
    assert {r["d"] for r in rows if r["axis"] == "K" and r["safe"] == "True"} >= {"96", "104"}
    assert "rank_align" in run("map", "export", a, "--format", "settings").out
    out = tmp_path / "new" / "settings.csv"
    assert run("map", "export", a, "--format", "settings", "--out", out).code == 0
    tools = list(csv.DictReader(out.open()))
    assert len(tools) == 6 and {tool["value"] for tool in tools} == {"8"}


def drawn(result, stem: Path) -> None:
    assert result.code == 0, result
    assert sorted(p.name for p in stem.parent.iterdir()) == [f"{stem.name}.png", f"{stem.name}.svg"]
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in stem.with_suffix(".svg").read_bytes()[:1000]


def test_figures_of_one_device_and_of_two_are_written_as_svg_and_png(run, a, b, tmp_path):
    asked = (*K, "--fixed", "M=512", "--dtype", "float16", "--out", tmp_path / "f" / "fig")
    drawn(run("map", "figure", a, *asked), tmp_path / "f" / "fig")
    message = run("map", "figure", a, "--with", b, *K, "--out", tmp_path / "g/two.svg", "--json")
    assert [Path(path).name for path in data(message)["files"]] == ["two.svg", "two.png"]
    drawn(message, tmp_path / "g" / "two")

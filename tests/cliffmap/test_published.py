"""What the published A100 data alone must show (docs/cliff-map.md names the sources)."""

from __future__ import annotations

import filecmp
from importlib import resources
from pathlib import Path

import pytest
from published_map import H100, main, published_map

from gacprof.cliffmap import CliffMap
from gacprof.core.errors import MapError
from gacprof.sweeping import build_map_of


def jumps(curve, remainders=None):
    return [
        (c.before, c.after, "up" if c.jump > 0 else "down")
        for c in curve.cliffs
        if remainders is None or c.remainders == remainders
    ]


def tflops(curve, cls, first):
    """(lowest, highest) rate of a residue class from ``first`` on, from the latencies."""
    rates = [
        2 * 512 * 4096 * d / (latency * 1e6)
        for d, latency in curve.latencies.items()
        if d >= first and d % curve.period.modulus in cls.remainders
    ]
    return min(rates), max(rates)


def test_the_attention_frontier_is_exactly_the_flash_attention_templates(a100, h100):
    for published in (a100, h100):
        frontier = published.curve("attention", "head_dim").frontier
        assert frontier == [64, 96, 128, 160, 192, 256]


def test_the_template_edges_are_cliffs_in_both_residue_classes(a100):
    curve = a100.curve("attention", "head_dim")
    assert curve.period.modulus == 8
    up = {edge[:2] for edge in jumps(curve, [0]) if edge[2] == "up"}
    assert up == {(64, 72), (96, 104), (128, 136), (160, 168), (192, 200)}
    up = {edge[:2] for edge in jumps(curve, [1, 2, 3, 4, 5, 6, 7]) if edge[2] == "up"}
    assert up == {(95, 97), (127, 129), (159, 162), (190, 194)}


def test_the_tensor_core_k_axis_has_four_classes_at_the_published_levels(a100):
    curve = a100.curve("linear", "K", M=512, N=4096)
    assert curve.period.modulus == 16
    classes = {tuple(c.remainders): c for c in curve.period.classes}
    assert list(classes) == [(0,), (8,), (2, 4, 6, 10, 12, 14), (1, 3, 5, 7, 9, 11, 13, 15)]
    levels = [(164, 176), (145, 160), (104, 111), (55, 64)]
    for cls, (least, most) in zip(classes.values(), levels, strict=True):
        low, high = tflops(curve, cls, first=4008)
        assert least <= low and high <= most


def test_points_taken_while_the_clock_was_rising_are_out_and_said_so(a100):
    curve = a100.curve("linear", "K", M=512, N=4096)
    assert curve.points.d[0] == 4008
    assert sorted(curve.coverage.failed) == list(range(4000, 4008))
    assert "clock" in curve.coverage.failed[4000]


def test_the_n_axis_has_cliffs_among_multiples_of_eight(a100):
    curve = a100.curve("linear", "N", M=2048, K=128)
    assert curve.period.modulus == 8
    assert jumps(curve, [0]) == [(1256, 1264, "down"), (1664, 1672, "up")]
    assert 1672 not in curve.frontier and 1672 % 8 == 0
    assert 1256 not in curve.safe and 1264 in curve.safe and 1664 in curve.safe
    assert a100.penalty("linear", "N", 1256, M=2048, K=128) > 0.5


def test_the_m_axis_has_its_three_cliffs_and_the_lone_spike_and_nothing_else(a100):
    curve = a100.curve("linear", "M", N=2048, K=128)
    assert curve.period is None
    assert jumps(curve) == [
        (1088, 1089, "up"),
        (1153, 1154, "down"),
        (1159, 1160, "up"),
        (1160, 1161, "down"),
        (1728, 1729, "up"),
    ]


def test_the_row_sum_repeats_every_sixteen_and_gemv_every_eight(a100):
    period = a100.curve("row_sum", "K").period
    assert period.modulus == 16
    assert [c.remainders for c in period.classes] == [[0], list(range(1, 16))]
    gemv = a100.curve("linear", "K", M=1).period
    assert (gemv.modulus, gemv.classes[0].remainders) == (8, [0])


def test_nothing_beyond_the_last_dim_of_the_best_class_is_called_safe(a100):
    curve = a100.curve("linear", "K", M=512, N=4096)
    assert curve.points.d[-1] == 4100 and curve.coverage.last_comparable == 4096
    assert max(curve.safe) == max(curve.frontier) == 4096


def test_interpolated_points_are_dropped(a100, fixtures):
    text = (fixtures / "published" / "fig_gemm_alignment.csv").read_text().splitlines()
    dropped = [int(line.split(",")[3]) for line in text if ",M," in line and "interp" in line]
    assert dropped and not set(dropped) & set(a100.curve("linear", "M").points.d)


@pytest.fixture(scope="module")
def h100(fixtures):
    return published_map(fixtures / "published", H100)


@pytest.mark.parametrize("gpu", ["a100", "h100"])
def test_the_shipped_map_is_what_the_command_makes(fixtures, tmp_path, gpu):
    assert main([gpu, str(fixtures / "published"), str(tmp_path / "map.json")]) == 0
    with resources.as_file(resources.files("gacprof.maps") / f"{gpu}-published.json") as shipped:
        assert filecmp.cmp(shipped, tmp_path / "map.json", shallow=False)
    assert CliffMap.load(f"{gpu}-published").curve("attention", "head_dim").frontier[0] == 64


def test_the_h100_pays_for_an_even_k_and_more_for_an_odd_one(h100):
    period = h100.curve("linear", "K", M=512, N=4096).period
    assert period.modulus == 8
    classes = [(c.remainders, round(c.ratio, 1)) for c in period.classes]
    assert classes == [([0], 1.0), ([2, 4, 6], 2.1), ([1, 3, 5, 7], 3.3)]


def test_every_h100_point_is_the_published_one(h100, fixtures):
    rows = (fixtures / "published" / "h100" / "fig_tc_n_alignment_h100.csv").read_text().split()[1:]
    rates = {int(row.split(",")[3]): float(row.split(",")[4]) for row in rows}
    points = h100.curve("linear", "N", M=512, K=4096).points
    assert points.d == sorted(rates)
    for d, latency in zip(points.d, points.latency_us, strict=True):
        assert latency == pytest.approx(2 * 512 * 4096 * d / (rates[d] * 1e6), rel=1e-5)


def test_each_map_says_where_it_comes_from(a100, h100):
    p = a100.file.provenance
    assert p.kind == "published" and "2604.09595" in p.citation and "CC BY 4.0" in p.licence
    assert a100.file.noise.floor is None and a100.file.noise.reason
    assert any("median-filtered" in note for note in p.notes)
    assert "89.7 ms pruned" in h100.file.provenance.notes[-1]


def test_a_folder_without_the_data_is_refused(tmp_path, capsys):
    with pytest.raises(MapError, match="none of the A100 files"):
        published_map(tmp_path)
    assert main(["a100", str(tmp_path), str(tmp_path / "map.json")]) == 2
    assert main(["h100", str(tmp_path), str(tmp_path / "map.json")]) == 2
    assert main([str(tmp_path), str(tmp_path / "map.json")]) == 2  # of which GPU?
    assert not (tmp_path / "map.json").exists()


def test_a_damaged_row_is_refused_with_its_line(fixtures, tmp_path):
    good = (fixtures / "published" / "fig2_sdpa_latency.csv").read_text().splitlines()
    good[7] = good[7].replace(good[7].split(",")[4], "fast")
    (tmp_path / "fig2_sdpa_latency.csv").write_text("\n".join(good))
    with pytest.raises(MapError, match=r"fig2_sdpa_latency.csv, line 8"):
        published_map(Path(tmp_path))


def test_the_shipped_cpu_map_is_what_its_samples_make(pytestconfig):
    """From every call of a real sweep to the map: fits, errors, verdicts and cliffs."""
    folder = Path(pytestconfig.rootpath) / "reports" / "cpu-example"
    made, shipped = build_map_of(folder, "cpu-example").file, CliffMap.load("cpu-example").file
    assert made.noise == shipped.noise and len(made.curves) == 33
    for one, other in zip(made.curves, shipped.curves, strict=True):
        assert one == other, one.identity

"""A whole sweep on a simulated GPU, from the suite to the samples."""

from simulated_cuda import opened, simulated

from gacprof.sweeping import read_samples, run_sweep
from gacprof.sweeping.suite import parse_suite

SWEEP = {
    "operator": "linear",
    "axis": "K",
    "values": [{"from": 96, "to": 112}],
    "dims": {"M": 16, "N": 64},
    "dtype": "float16",
}


def test_a_sweep_keeps_what_the_gpu_does(monkeypatch, tmp_path):
    suite = parse_suite({"name": "t", "timing": {"processes": 1}, "sweep": [SWEEP]}, "t")
    with simulated(monkeypatch) as gpu:
        gpu.cost = lambda name, operands: 8_000 if operands[0].shape[-1] % 8 else 5_000
        device = opened()
        monkeypatch.setattr(device, "burn_in", lambda: None)
        summary = run_sweep(suite, device, tmp_path / "run")
    samples = {sample.point.dim["K"]: sample for sample in read_samples(tmp_path / "run")}
    assert (summary.failed, summary.points, len(samples)) == (0, 17, 17)
    for k, sample in samples.items():
        assert (sample.status, sample.timer) == ("ok", "cuda-graph")
        assert set(sample.kernels) == {"linear"}
        assert all(abs(us - (8.5 if k % 8 else 5.5)) < 0.1 for us in sample.timings_us)

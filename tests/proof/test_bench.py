"""Benching: models take turns, raw timings are kept, and only what was shown is claimed."""

from __future__ import annotations

import json

import pytest

from gacprof.errors import CheckpointError, MeasurementError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gacprof.measure.stats import median_interval  # noqa: E402
from gacprof.proof import bench, benchmark, distinct_names, together  # noqa: E402
from gacprof.proof.bench_result import Timing  # noqa: E402
from gacprof.proof.workloads import Clock, Runner, Workload  # noqa: E402


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        vocab_size=64,
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def test_all_is_measured_and_kept(tiny):
    result = bench([tiny, tiny], tokens=(16, 8), decode_steps=3, repeats=4)
    first, second = result.models
    assert first == f"{tiny.name} (1)" and second == f"{tiny.name} (2)"
    assert result.sources == (str(tiny), str(tiny))
    assert [t.workload for t in result.timings] == [
        name for name in ("prefill 8", "prefill 16", "decode 8") for _ in range(2)
    ]
    for timing in result.timings:
        assert len(timing.timings_us) == result.rounds == 4
        assert (timing.low_us, timing.median_us, timing.high_us) == median_interval(
            timing.timings_us
        )
        assert timing.low_us > 0
    a, b = result.of(first, "decode 8"), result.of(second, "decode 8")
    assert a.ratio is None and a.verdict == "reference"
    pairs = [y / x for x, y in zip(a.timings_us, b.timings_us, strict=True)]
    assert b.ratio == median_interval(pairs)
    json.dumps(result.as_dict(), allow_nan=False)
    assert result.environment.stack["transformers"] == transformers.__version__
    assert result.parameters[0] == sum(
        p.numel() for p in transformers.AutoModelForCausalLM.from_pretrained(tiny).parameters()
    )
    assert any("fewer than 6 rounds" in note for note in result.notes)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["demo/model", "demo/planned"], ("model", "planned")),
        (["a/out", "b/out"], ("a/out", "b/out")),
        (["x/a/out", "y/a/out", "y/b"], ("x/a/out", "y/a/out", "y/b")),
        (["demo/model", "demo/model"], ("model (1)", "model (2)")),
        (
            ["LlamaForCausalLM", "runs/LlamaForCausalLM"],
            ("LlamaForCausalLM", "runs/LlamaForCausalLM"),
        ),
    ],
)
def test_models_are_named_by_what_tells_them_apart(paths, names):
    assert distinct_names(paths) == names


def test_models_take_turns(tiny, monkeypatch):
    visits = []
    monkeypatch.setattr(
        benchmark, "_time", lambda runner, clock: visits.append(id(runner._model)) or 1.0
    )
    bench([tiny, tiny], tokens=(8,), decode_steps=0, repeats=3)
    first, second = visits[:2]
    assert first != second
    assert visits == [first, second] * (benchmark.WARM_UP_ROUNDS + 3)


def test_decoding_is_one_token_a_step_on_a_growing_cache(tiny):
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny)
    calls = []
    inner = model.forward

    def forward(input_ids, past_key_values=None, use_cache=None, logits_to_keep=0):
        held = 0 if past_key_values is None else past_key_values.get_seq_length()
        calls.append((tuple(input_ids.shape), held))
        return inner(
            input_ids=input_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
        )

    model.forward = forward
    runner = Runner(model, Workload("decode", 8, 2, 3), torch.ones(2, 8, dtype=torch.long))
    runner.time(Clock(torch.device("cpu")))
    assert calls == [((2, 8), 0), ((2, 1), 8), ((2, 1), 9), ((2, 1), 10)]


class Disturbed:
    """A runner whose calls are preempted so often, in turn."""

    def __init__(self, *preempted: int) -> None:
        self.preempted = list(preempted)

    def time(self, clock: Clock) -> float:
        clock.preempted = self.preempted.pop(0)
        return 100.0 + len(self.preempted)


@pytest.mark.parametrize(
    ("preempted", "left", "disturbed"),
    [
        ((0, 0, 0), 2, 0),  # the first call was undisturbed
        ((7, 0, 0), 1, 0),
        ((3, 1, 2), 1, 1),  # none was: the least disturbed, though the last was quicker
        ((2, 2, 2), 2, 1),
    ],
)
def test_a_disturbed_timing_is_taken_again_a_few_times(preempted, left, disturbed):
    clock = Clock(torch.device("cpu"))
    assert benchmark._time(Disturbed(*preempted), clock) == 100.0 + left
    assert clock.disturbed == disturbed


def test_a_busy_machine_is_noted():
    assert "5 timings were preempted" in benchmark._notes(12, 12, 5)[0]
    assert benchmark._notes(12, 12, 0) == ()


def test_the_time_cap_ends_it_after_three_rounds(tiny):
    result = bench([tiny], tokens=(8,), decode_steps=0, repeats=50, time_cap_s=0.0)
    assert result.rounds == 3
    assert any("time cap" in note for note in result.notes)


def test_progress_is_told_to_the_end(tiny):
    told = []
    bench(
        [tiny],
        tokens=(8,),
        decode_steps=1,
        repeats=3,
        progress=lambda done, total, what: told.append((done, total, what)),
    )
    assert told[0] == (0, 10, "prefill 8") and told[-1][:2] == (10, 10)
    assert [done for done, _, _ in told] == list(range(11))


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        ((0.8, 0.9, 0.99), "faster"),
        ((1.01, 1.1, 1.2), "slower"),
        ((0.9, 0.95, 1.0), "no difference shown"),
        (None, "reference"),
    ],
)
def test_a_difference_is_claimed_only_where_the_interval_excludes_one(ratio, verdict):
    assert Timing("b", "w", "prefill", 8, 1, 1, 1, (1.0,), ratio).verdict == verdict


def test_models_that_do_not_fit_together_are_refused(tiny, monkeypatch):
    monkeypatch.setattr(together, "_free_bytes", lambda device: 1000)
    with pytest.raises(MeasurementError, match="measure fewer at once"):
        bench([tiny, tiny])


def test_nonsense_is_refused(tiny):
    for wrong in ({"tokens": ()}, {"tokens": (0,)}, {"batch": 0}, {"repeats": 1}):
        with pytest.raises(MeasurementError):
            bench([tiny], **wrong)
    with pytest.raises(MeasurementError):
        bench([])
    with pytest.raises(CheckpointError):
        bench([tiny / "nowhere"])


@pytest.mark.parametrize(
    ("tokens", "steps", "told"), [((8, 2049), 0, "prefill 2049"), ((2040,), 9, "decode 2040")]
)
def test_more_tokens_than_the_model_has_positions_are_refused(tiny, tokens, steps, told):
    with pytest.raises(CheckpointError, match=f"2048 positions.*{told} would take 2049"):
        bench([tiny], tokens=tokens, decode_steps=steps, repeats=3, time_cap_s=0)

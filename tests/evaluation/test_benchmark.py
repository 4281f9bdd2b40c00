"""Benching whole models: what is timed, kept and claimed."""

import json
import shutil
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from gacprof.core.errors import GacprofError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gacprof.devices.kineto import Traced  # noqa: E402
from gacprof.evaluation import bench, models  # noqa: E402
from gacprof.evaluation.models import distinct_names, identical  # noqa: E402
from gacprof.evaluation.summary import BenchSummary, Rounds, WorkloadTimes  # noqa: E402
from gacprof.evaluation.workloads import (  # noqa: E402
    BenchWorkload,
    CallTime,
    CapturedStep,
    Clock,
    DecodeStep,
    Runner,
    busy_share,
)

CPU = torch.device("cpu")


def config(**changed):
    plain = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "vocab_size": 64}
    return transformers.LlamaConfig(num_hidden_layers=1, **plain | changed)


def model(seed=0, **changed):
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(config(**changed)).eval()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    model().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    model(seed=1).save_pretrained(folder)
    return folder


def test_all_is_measured_and_kept(tiny, other):
    result = bench([tiny, other], tokens=(16, 8), decode_steps=3, rounds=12)
    first, second = result.models
    assert result.sources == (str(tiny), str(other)) and result.rounds == 12
    names = ("prefill 8", "prefill 16", "decode 8")
    assert [t.workload for t in result.timings] == [name for name in names for _ in range(2)]
    assert [r.workload for r in result.replicates] == list(names)
    for timing in result.timings:
        assert len(timing.timings_us) == 12 * (3 if timing.kind == "decode" else 1)
        assert 0 < timing.low_us <= timing.latency_us <= timing.high_us
    a, b = result.of(first, "decode 8"), result.of(second, "decode 8")
    assert a.ratio is None and a.verdict == "reference"
    assert b.ratio[0] < b.ratio[1] < b.ratio[2]
    assert b.ratio[1] == pytest.approx(b.latency_us / a.latency_us)
    assert result.parameters[0] == sum(p.numel() for p in model().parameters())
    assert result.environment.stack["transformers"] == transformers.__version__
    plain = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert plain["replicates"][0]["spread"] > 0 and plain["timings"][0]["verdict"] == "reference"


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["demo/model", "demo/planned"], ("model", "planned")),
        (["x/a/out", "y/a/out", "y/b"], ("x/a/out", "y/a/out", "y/b")),
        (["demo/model", "demo/model"], ("model (1)", "model (2)")),
        (["Llama", "runs/Llama"], ("Llama", "runs/Llama")),
    ],
)
def test_models_are_named_by_what_tells_them_apart(paths, names):
    assert distinct_names(paths) == names


def test_what_makes_two_models_identical():
    assert identical(model(), model())
    assert not identical(model(), model(seed=1))
    assert not identical(model(), model(rope_theta=20000.0))
    assert not identical(model(), model().to(torch.bfloat16))
    negative = model()
    negative.model.norm.weight.data = torch.full((32,), -0.0)
    zero = model()
    zero.model.norm.weight.data = torch.zeros(32)
    assert not identical(negative, zero)


def test_byte_identical_copies_and_models_themselves_are_called_identical(tiny, tmp_path):
    one, hooked = model(), model()
    hooked.model.layers[0].register_forward_hook(lambda *_: None)
    asked = {"tokens": (8,), "decode_steps": 0, "rounds": 12}
    timed = bench([one, hooked, one], **asked)
    assert [t.verdict == "identical" for t in timed.timings] == [False, False, True]
    timed = bench([tiny, shutil.copytree(tiny, tmp_path / "copied")], **asked)
    assert [t.verdict for t in timed.timings] == ["reference", "identical"]


def watched(inner_model):
    """(tokens put in, tokens already in the cache) of every call of the model."""
    calls, inner = [], inner_model.forward

    def forward(input_ids, past_key_values=None, use_cache=None, logits_to_keep=0):
        held = 0 if past_key_values is None else int(past_key_values.get_seq_length())
        calls.append((tuple(input_ids.shape), held))
        return inner(
            input_ids=input_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            logits_to_keep=logits_to_keep,
        )

    inner_model.forward = forward
    return calls


def test_every_decode_step_sees_the_prompt_and_nothing_more():
    tiny_model = model()
    calls = watched(tiny_model)
    step = DecodeStep(tiny_model, torch.ones(2, 8, dtype=torch.long))
    for _ in range(3):
        assert step.time(Clock(CPU)).us > 0
    assert calls == [((2, 8), 0)] + 3 * [((2, 1), 8)]
    step.prepare()
    assert step._primed is None and step._cache.get_seq_length() == 8


@pytest.fixture
def graphs(monkeypatch):
    """CUDA graphs as far as a decode step needs them; a replay does nothing. Returns what the next
    capture raises, if anything is put into it."""
    raised = []

    @contextmanager
    def graph(made, stream):
        if raised:
            raise raised[0]
        yield

    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None)
    for name, made in {
        "Stream": lambda device: stream,
        "current_stream": lambda device: stream,
        "stream": lambda stream: nullcontext(),
        "graph": graph,
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None),
    }.items():
        monkeypatch.setattr(torch.cuda, name, made)
    return raised


def test_a_captured_decode_step_runs_the_model_no_more(graphs):
    tiny_model = model()
    calls = watched(tiny_model)
    ids = torch.ones(2, 8, dtype=torch.long)
    step, plain = CapturedStep(tiny_model, ids), DecodeStep(tiny_model, ids)
    with torch.inference_mode():
        step.prepare()
        held = len(calls)
        for _ in range(3):
            step.prepare()
            token = step.call()
        assert len(calls) == held and step.why_not == ""
        plain.prepare()
        assert torch.equal(token, plain.call())


def test_a_step_that_no_graph_can_hold_is_launched_and_says_why(graphs):
    graphs.append(RuntimeError("operation not permitted when stream is capturing\nmore"))
    step = CapturedStep(model(), torch.ones(2, 8, dtype=torch.long))
    assert step.time(Clock(CPU)).us > 0
    assert step.why_not == "operation not permitted when stream is capturing"
    with torch.inference_mode():
        step.prepare()
    assert step._cache.get_seq_length() == 8


def test_a_cache_that_cannot_be_cropped_is_copied():
    """Mistral's sliding window forgets what falls out of it."""
    torch.manual_seed(0)
    plain = config().to_dict() | {"sliding_window": 4, "model_type": "mistral"}
    plain.pop("architectures", None)
    sliding = transformers.MistralForCausalLM(
        transformers.MistralConfig(**plain | {"num_key_value_heads": 2})
    ).eval()
    step = DecodeStep(sliding, torch.ones(1, 8, dtype=torch.long))
    with torch.inference_mode():
        outputs = []
        for _ in range(3):
            step.prepare()
            held = [layer.keys.clone() for layer in step._cache.layers]
            outputs.append((held, step.call()))
    assert step._primed is not None
    for held, token in outputs[1:]:
        assert torch.equal(token, outputs[0][1])
        assert all(torch.equal(a, b) for a, b in zip(held, outputs[0][0], strict=True))


def summary(times, same=(True, False), kind="prefill", **more):
    """A bench with one workload whose times are known, the replicate in the last column."""
    workload = BenchWorkload(kind, 8, 1)
    rounds = Rounds([workload], [[]], Clock(CPU), 96)
    rounds.tables = [
        WorkloadTimes(
            [[CallTime(float(us)) for us in row] for row in times], list(range(len(times)))
        )
    ]
    rounds.count = len(times)
    names = [f"m{i}" for i in range(times.shape[1] - 1)]
    return BenchSummary(names, [workload], same, rounds, **more)


def times(rounds, *levels):
    draw = np.random.default_rng(0)
    return 100 * np.exp(draw.normal(0, 0.005, (rounds, len(levels)))) * np.array(levels)


def test_a_difference_is_claimed_beyond_the_replicate_only():
    (_, found) = summary(times(24, 1.0, 0.9, 1.0)).timings()
    assert found.verdict == "faster"
    (_, found) = summary(times(24, 1.0, 0.9, 0.85)).timings()
    assert found.verdict == "no difference shown"
    assert summary(times(24, 1.0, 0.9, 1.0)).decided()
    assert not summary(times(12, 1.0, 1.02, 1.03)).decided()


def test_few_rounds_and_idle_gpus_leave_it_undecided():
    few = summary(times(8, 1.0, 0.5, 1.0))
    assert few.timings()[1].verdict == "undecided" and "8 rounds" in " ".join(few.notes())
    idle = summary(times(24, 1.0, 0.5, 1.0), kind="decode", busy={"m0": 0.4, "m1": 0.95})
    assert idle.timings()[1].verdict == "undecided" and "m0 40%" in " ".join(idle.notes())
    busy = summary(times(24, 1.0, 0.5, 1.0), kind="decode", busy={"m0": 0.97, "m1": 0.95})
    assert busy.timings()[1].verdict == "faster"


def test_a_contended_machine_shows_no_absence_of_differences():
    """Where a scheduler's slices set the times, all models look alike: the spread is superb."""
    found = summary(times(48, 1.0, 1.0, 1.0))
    assert found.decided() and found.timings()[1].verdict == "no difference shown"
    rows = found.rounds.tables[0].rows
    rows[:] = [[CallTime(call.us, waited_us=call.us / 2) for call in row] for row in rows]
    assert not found.decided() and found.timings()[1].verdict == "undecided"


def test_which_timings_are_disturbed_does_not_depend_on_how_long_they_took():
    """All models of a block wait 5 µs: 5 % of the usual time, 1 % of a slow model's."""
    found = summary(times(48, 1.0, 5.0, 1.0))
    table = found.rounds.tables[0]
    table.rows[:] = [[CallTime(call.us, waited_us=5.0) for call in row] for row in table.rows]
    assert table.disturbed == sum(map(len, table.rows))


def test_the_time_cap_ends_it_early(tiny):
    result = bench([tiny], tokens=(8,), decode_steps=0, time_cap_s=0.0)
    assert result.rounds == 4 and any("time cap" in note for note in result.notes)


def test_the_reference_is_held_twice_where_there_is_room(tiny, monkeypatch):
    loaded = models.load_models([tiny], torch.float32, CPU)
    weights = [m.lm_head.weight.data_ptr() for m in (*loaded.models, loaded.replicate)]
    assert len(set(weights)) == 2 and not loaded.shared
    monkeypatch.setattr(models, "free_bytes", lambda device: 1000)
    timed = bench([model()], tokens=(8,), decode_steps=0, time_cap_s=0)
    assert any("same object" in note for note in timed.notes)


@pytest.mark.parametrize(
    ("models", "asked", "message"),
    [
        (["M"], {"tokens": ()}, "token"), (["M"], {"tokens": (0,)}, "token"),
        (["M"], {"batch": 0}, "batch"), (["M"], {"rounds": 11}, "rounds"), ([], {}, None),
        (["nowhere"], {}, "nowhere"),
        (["M"], {"device": "simulated:h100"}, "models do not run on 'simulated:h100'"),
        (["M"], {"tokens": (8, 2049), "decode_steps": 0}, "2048 positions.*2049 would take 2049"),
        (["M"], {"tokens": (2048,), "decode_steps": 9}, "2048 positions.*2048 would take 2049"),
        (["M", "M"], {"free": 1000}, "measure fewer at once"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(tiny, monkeypatch, models, asked, message):
    if "free" in asked:
        monkeypatch.setattr("gacprof.evaluation.models.free_bytes", lambda device: 1000)
    asked = {name: value for name, value in asked.items() if name != "free"}
    with pytest.raises(GacprofError, match=message):
        bench([tiny if name == "M" else name for name in models], time_cap_s=0, **asked)


def test_the_busy_share_is_kernel_time_over_the_steps_own():
    class Gpu(Clock):
        def time(self, call):
            return CallTime(100.0)

    class Nothing(Runner):
        def call(self):
            raise AssertionError("only the tracer calls it")

    def tracer(run):
        return [Traced("kernel", 0, 40_000)]

    assert busy_share(Nothing(None, None), Gpu(torch.device("cuda")), tracer) == pytest.approx(0.4)
    assert busy_share(Nothing(None, None), Clock(CPU), tracer) is None

"""Benching in real engines: what is asked of their processes, and what becomes of the answers."""

import json
import os
from pathlib import Path

import pytest
from decoders import write_decoder
from tiny_models import write_llama

from gacprof.core.errors import CheckpointError, MeasurementError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from gacprof.extras.serve.engines import bench as engines_bench  # noqa: E402
from gacprof.extras.serve.engines import engine  # noqa: E402
from gacprof.extras.serve.engines.bench import bench_engine  # noqa: E402
from gacprof.extras.serve.engines.engine import BenchEngine, EngineProcess, engine_of  # noqa: E402
from gacprof.extras.serve.engines.in_transformers import TransformersModel  # noqa: E402

FAKE = BenchEngine(
    "fake", str(Path(__file__).parent / "fake_engine.py"), ("1.0",), "folder", "nowhere"
)


@pytest.fixture(autouse=True)
def with_fake(monkeypatch, tmp_path):
    monkeypatch.setenv("ASKED", str(tmp_path))
    monkeypatch.setattr(engine, "ENGINES", {**engine.ENGINES, "fake": FAKE})


@pytest.fixture
def model(tmp_path):
    plain = {"model_type": "llama", "speed": 1.0}

    def make(name, **config):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(
            json.dumps(plain | {"number": len(list(tmp_path.iterdir()))} | config)
        )
        return folder

    return make


def asked_of(folder):
    """What each process was asked, by process."""
    files = sorted(folder.glob("asked-*.jsonl"))
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def test_models_are_timed_side_by_side_each_in_a_process_of_its_own(model, tmp_path):
    slow, quick = model("slow"), model("quick", speed=0.8)
    found = bench_engine([slow, quick], "fake", tokens=(8, 4), decode_steps=3, rounds=12, threads=1)
    assert found.models == ("slow", "quick") and found.engine == "fake 1.0"
    names = ("prefill 4", "prefill 8", "decode 4")
    assert [t.workload for t in found.timings] == [name for name in names for _ in range(2)]
    for name in names:
        timing = found.of("quick", name)
        assert timing.verdict == "faster" and timing.ratio[1] == pytest.approx(0.8, rel=0.01)
        assert found.of("slow", name).verdict == "reference"
    assert len(asked_of(tmp_path)) == 3  # two models and the hidden replicate of the first
    assert len(found.replicates) == 3 and found.spread < 0.02


def test_every_prompt_is_new_and_all_models_get_the_same(model, tmp_path):
    bench_engine([model("a"), model("b")], "fake", tokens=(4,), decode_steps=2, rounds=12)
    prompts = []
    for calls in asked_of(tmp_path):
        prompts.append([ids for kind, *rest in calls if kind == "prefill" for ids in rest[:1]])
        assert {steps for kind, *rest in calls if kind == "decode" for steps in rest[1:]} == {2}
    shortest = min(map(len, prompts))
    assert shortest >= 12
    assert all(row[:shortest] == prompts[0][:shortest] for row in prompts)
    assert len({tuple(ids) for ids in prompts[0]}) == len(prompts[0])
    assert all(len(ids) == 4 and max(ids) < 50 for ids in prompts[0])


def test_a_second_copy_that_has_no_room_is_the_same_process(model, tmp_path, monkeypatch):
    monkeypatch.setattr(engines_bench, "free_bytes", lambda device: 0)
    asked = {"decode_steps": 2, "rounds": 12, "threads": 1, "dtype": "bfloat16"}
    found = bench_engine([model("a")], "fake", tokens=(4, 16), **asked)
    assert any("the reference's own process" in note for note in found.notes)
    ((opened, *_),) = asked_of(tmp_path)
    assert opened == ["open", 1, 26, "bfloat16", False]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"refuses": 1}, r"fake: cannot load this layout$"),
        ({"absent": 1}, r"fake is not in .* \(No module named 'a_module_that_is_not_there'\): now"),
        ({"dies": 1}, r"fake's process ended \(RuntimeError: no more memory\)"),
        ({"auto_map": {"AutoModel": "x.Y"}}, r"--trust-remote-code"),
        ({"positions": 10}, r"has 10 positions: .* of \d+ tokens together do not fit"),
    ],
)
def test_what_goes_wrong_in_an_engine_is_one_line(model, config, message):
    with pytest.raises(MeasurementError, match=message) as failed:
        bench_engine([model("a", **config)], "fake", tokens=(4,), rounds=12)
    assert "\n" not in str(failed.value)


def test_an_engine_is_not_shown_what_a_foreign_config_names(model, tmp_path):
    """transformers fetches the kernel that ``attn_implementation`` names, and runs it."""
    foreign = {"attn_implementation": "org/kernel", "_name_or_path": "org/model",
               "kernel_config": {"a": "org/kernel:B"}, "hidden_act": "silu"}  # fmt: skip
    bench_engine([model("a", **foreign)], "fake", tokens=(4,), decode_steps=0, rounds=12)
    (shown,) = {file.read_text() for file in tmp_path.glob("config-*.json")}
    assert json.loads(shown) == {
        "model_type": "llama", "speed": 1.0, "number": 1, "hidden_act": "silu"
    }  # fmt: skip


def test_an_engine_that_hangs_is_ended(model, monkeypatch):
    monkeypatch.setattr(engine.EngineProcess.ask, "__defaults__", (0.5,))
    with pytest.raises(MeasurementError, match=r"gave no answer within 0\.5 s"):
        bench_engine([model("a", hangs=1)], "fake", tokens=(4,), rounds=12)


def test_engines_and_models_that_are_not_there_are_named(tmp_path, model):
    with pytest.raises(MeasurementError, match=r"no engine is called 'vlm': there are transformer"):
        bench_engine([model("a")], "vlm")
    with pytest.raises(MeasurementError, match=r"vllm runs in a Python of its own: .*vllm_cpu_env"):
        bench_engine([model("b")], "vllm")
    with pytest.raises(MeasurementError, match=r"no interpreter .*nowhere for vllm"):
        bench_engine([model("c")], "vllm", python=tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"is no GGUF file, which is what llama\.cpp loads"):
        bench_engine([model("d")], "llama.cpp")
    with pytest.raises(CheckpointError, match=r"no checkpoint's folder with a config\.json"):
        bench_engine([tmp_path / "nothing"], "fake")
    (tmp_path / "a.gguf").touch()
    with pytest.raises(MeasurementError, match="leave out the dtype"):
        bench_engine([tmp_path / "a.gguf"], "llama.cpp", dtype="float32")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_llama(
        tmp_path_factory.mktemp("tiny"), hidden_size=32, intermediate_size=48,
        num_attention_heads=2, vocab_size=64, max_position_embeddings=2048,
        initializer_range=0.02,
    )  # fmt: skip


def test_transformers_writes_what_generate_writes(tiny):
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    try:
        served = TransformersModel()
        message = served.open(str(tiny), threads, 64, None, False)
        ids = list(range(1, 20))
        plain = transformers.LlamaForCausalLM.from_pretrained(tiny).generate(
            torch.tensor([ids]), max_new_tokens=12, min_new_tokens=12, do_sample=False,
            pad_token_id=0,
        )  # fmt: skip
        assert served.greedy(ids, 12) == plain[0, len(ids) :].tolist()
        assert served.prefill(ids) > 0 and served.decode(ids, 3) > 0
        assert message["version"] == transformers.__version__ and message["vocabulary"] == 64
    finally:
        torch.set_grad_enabled(grad)
        transformers.logging.enable_progress_bar()


def test_the_verb_benches_in_an_engine(model, run):
    asked = ("--engine", "fake", "--tokens", 8, "--decode-steps", 2)
    ended = run("bench", model("a"), model("b", speed=0.5), *asked)
    assert ended.code == 0 and "fake 1.0 on" in ended.out and "faster" in ended.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--threads", "2"], "go with --engine"),
        (["--engine", "fake", "--batch", "2"], "with --engine the batch is 1"),
        (["--engine", "fake", "--device", "cpu"], "the device is the engine's own"),
    ],
)
def test_options_that_do_not_go_together_are_refused(tiny, run, words, message):
    ended = run("bench", tiny, *words)
    assert ended.code == 2 and message in ended.err


def test_llama_cpp_serves_ragged_widths_and_reads_every_prompt_whole(tmp_path):
    pytest.importorskip("xllamacpp")
    import gacprof
    from gacprof.extras.serve.checking import reference
    from gacprof.extras.serve.engines.in_llamacpp import LlamaCppModel as Llama

    folder = write_decoder(tmp_path / "model", widths=(70, 96), tokenizer="bytes")
    gacprof.export(folder, "gguf", tmp_path / "gguf", type="f32", check="tensors")
    ids = list(range(2, 30))
    served = Llama()
    found = served.open(str(engine_of("llama.cpp").model(tmp_path / "gguf")), 1, 64, None, False)
    assert found["vocabulary"] == 288 and found["parameters"] == gacprof.scan(folder).parameters
    assert served.greedy(ids, 8)[0] == reference(str(folder), ids).tokens[0]
    for _ in range(2):  # the same prompt again: no cache may shorten it
        assert served.prefill(ids) > 0 and served.decode(ids, 3) > 0


PYTHON = os.environ.get("GACPROF_VLLM_PYTHON")
"""``make test-vllm`` makes vLLM's environment and names its Python."""


def in_vllm(test):
    skip = pytest.mark.skipif(not PYTHON, reason="vLLM's Python is not named: make test-vllm")
    return pytest.mark.vllm(skip(test))


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    return write_llama(
        tmp_path_factory.mktemp("tiny"), hidden_size=128, intermediate_size=160, vocab_size=512,
        max_position_embeddings=256, initializer_range=0.1,
    )  # fmt: skip


@in_vllm
def test_vllm_writes_the_same_tokens_as_transformers(served):
    written = []
    for name in ("transformers", "vllm"):
        engine = engine_of(name)
        python = engine.python(PYTHON if engine.own_python else None)
        with EngineProcess(engine, python, 1) as process:
            process.open(served, 80, "float32", False)
            written.append(process.ask("greedy", ids=list(range(3, 40)), count=32))
    assert written[0] == written[1]


@in_vllm
def test_vllm_is_benched(served):
    found = bench_engine(
        [served], "vllm", python=PYTHON, tokens=(16,), decode_steps=4, rounds=12, dtype="float32"
    )
    assert found.engine.startswith("vllm ") and found.dtype == "float32"
    assert {t.workload for t in found.timings} == {"prefill 16", "decode 16"}
    assert all(t.latency_us > 0 for t in found.timings)

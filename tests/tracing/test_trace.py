"""Traces: a launch is joined to its operator, a misaligned kernel to its cause."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

import gacprof
from gacprof.cli.app import main
from gacprof.core.errors import ConfigError, MeasurementError
from gacprof.tracing.trace import TraceReport, trace

ASVD = Path(__file__).parents[1] / "fixtures" / "checkpoints" / "asvd_mha_r1"
H100 = "NVIDIA H100 80GB HBM3"
ALIGNED = "nvjet_tst_192x8_64x8_4x1_v_bz_TNT"
ALIGN1 = (
    "void cutlass::Kernel2<cutlass_75_tensorop_bf16_s1688gemm_bf16_128x128_{}_align1>(int, Params)"
)
ALIGN2 = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_64x3_tn_align2>"
)
GEMV = (
    "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, __nv_bfloat16, float, 128, 16, "
    "4, 4, false, false, cublasGemvParamsEx<int>>"
)
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>, false>(P)"
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>(int)"


class TraceFile:
    """A trace in the making: a call an operator, each with a launch and its kernel."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.time = 1000.0

    def call(
        self,
        operator: str,
        shapes: list[list[int]],
        kernel: str,
        us: float,
        *,
        strides: list[list[int]] | None = None,
        module: str = "",
    ) -> None:
        """Add an operator within a module, its launch, and the kernel that runs later."""
        self.time += 100
        number = len(self.events)
        inputs = {"Input Dims": shapes, "Input type": ["c10::BFloat16"] * len(shapes)}
        if strides is not None:
            inputs["Input Strides"] = strides
        if module:
            self.add("python_function", f"nn.Module: {module}", self.time, 50)
        self.add("cpu_op", operator, self.time + 1, 20, **inputs)
        self.add("cuda_runtime", "cudaLaunchKernel", self.time + 5, 2, correlation=number)
        self.add("kernel", kernel, self.time + 5000, us, tid=7, correlation=number)

    def add(
        self, kind: str, name: str, start: float, length: float, tid: int = 1, **args: object
    ) -> None:
        """Add one event."""
        event = {"ph": "X", "cat": kind, "name": name, "ts": start, "dur": length, "tid": tid}
        self.events.append({**event, "args": args})

    def write(self, path: Path, device: str = H100) -> Path:
        """Write the trace, packed where the name says so."""
        devices = [{"id": 0, "name": device}] if device else []
        text = json.dumps({"deviceProperties": devices, "traceEvents": self.events})
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(text.encode()))
        else:
            path.write_text(text, encoding="utf-8")
        return path


def linear(m: int, n: int, k: int) -> list[list[int]]:
    """Shapes of bias, x and Wᵀ, as addmm takes them."""
    return [[n], [m, k], [k, n]]


@pytest.fixture
def every_cause() -> TraceFile:
    """One call of every kind: 1,000 µs of kernels."""
    file = TraceFile()
    file.call("aten::addmm", linear(512, 1433, 4096), ALIGN1.format("tn"), 100, module="MLP_0")
    file.call("aten::addmm", linear(512, 50257, 768), ALIGN1.format("tn"), 90)
    file.call("aten::bmm", [[16, 577, 64], [16, 64, 577]], ALIGN1.format("tn"), 80)
    file.call("aten::mm", [[512, 4096], [4096, 4096]], ALIGN1.format("tn"), 70)
    file.call("aten::addmm", linear(2 * 577, 4096, 4096), ALIGNED, 60)
    file.call("aten::addmm", linear(1, 1433, 4096), GEMV, 50)
    file.call("aten::_flash_attention_forward", [[1, 512, 16, 64]], FLASH, 50)
    file.call("aten::copy_", [[512, 512]], COPY, 100)
    file.call("vllm::moe", [[512, 512]], "a_kernel_that_nobody_knows", 300)
    file.add("cuda_runtime", "cudaGraphLaunch", 9000, 5, correlation=99)
    file.add("kernel", ALIGN2, 9500, 100, tid=7, correlation=99)
    return file


def by_cause(report: TraceReport) -> dict[str, Any]:
    """The first finding of each cause."""
    return {product.cause: product for product in reversed(report.products)}


def test_every_cause_is_told(every_cause: TraceFile, tmp_path: Path) -> None:
    report = trace(every_cause.write(tmp_path / "trace.json"))
    causes = by_cause(report)
    assert causes["weight"].at_fault == {"N": 1433}
    assert causes["weight"].layer == "MLP_0"
    assert causes["vocabulary"].at_fault == {"N": 50257}
    assert causes["tokens"].at_fault == {"N": 577}
    assert causes["memory"].at_fault == {}
    assert causes["no shape"].us == 100
    assert report.us == 1000
    assert sum(report.shares.values()) == pytest.approx(1)
    assert report.shares["misaligned"] == pytest.approx(0.44)
    assert report.shares["gemv"] == pytest.approx(0.05)
    assert report.shares["unknown"] == pytest.approx(0.3)
    assert report.in_graphs == pytest.approx(0.1)


@pytest.mark.parametrize(
    "operator, shapes, kind",
    [
        ("aten::addmm", linear(1, 4096, 4096), "no tiers"),
        ("aten::addmm", linear(1, 1, 4096), "no tiers"),  # a score: nobody pads it
        ("aten::addmm", linear(1, 4096, 4095), "gemv"),
        ("vllm::linear", linear(1, 4096, 4096), "gemv"),  # no shape
    ],
)
def test_gemv_is_undecided_where_sides_are_no_multiple(
    operator: str, shapes: list[list[int]], kind: str, tmp_path: Path
) -> None:
    file = TraceFile()
    file.call(operator, shapes, GEMV, 9)
    assert trace(file.write(tmp_path / "trace.json")).shares == {kind: 1.0}


@pytest.mark.parametrize("head_dim, kind", [(60, "misaligned"), (64, "attention")])
def test_heads_that_are_padded_are_misaligned(head_dim: int, kind: str, tmp_path: Path) -> None:
    file = TraceFile()
    shapes = [[1, 16, 512, head_dim]] * 3
    kernel = FLASH.replace("128, 128, 4", "128, 128, 4, false, false, cutlass::bfloat16_t")
    file.call("aten::scaled_dot_product_attention", shapes, kernel, 9)
    assert trace(file.write(tmp_path / "trace.json")).shares == {kind: 1.0}


def test_gains_are_times_beyond_the_floor(tmp_path: Path) -> None:
    file = TraceFile()
    floor = 2 * 4096 * 4096 * 4096 / 989.4e6  # µs at the H100's rate in bfloat16
    file.call("aten::addmm", linear(4096, 4096, 4096), ALIGNED, 2 * floor)
    file.call("aten::addmm", linear(4096, 4096, 4094), ALIGN2, 6 * floor)
    report = trace(file.write(tmp_path / "trace.json"))
    assert report.gain_at_most == pytest.approx(5 / 8, rel=0.01)
    assert report.gain_like_aligned == pytest.approx(4 / 8, rel=0.01)
    assert not report.ok


def test_rows_of_a_part_are_told_from_pointers(tmp_path: Path) -> None:
    file = TraceFile()
    shapes = [[512, 4096], [4096, 4096]]
    file.call("aten::mm", shapes, ALIGN1.format("tn"), 9, strides=[[4097, 1], [1, 4096]])
    [product] = trace(file.write(tmp_path / "trace.json")).products
    assert product.cause == "memory"
    assert "rows" in product.product


def test_weight_gradients_have_their_own_sides(tmp_path: Path) -> None:
    """In dW = dyᵀ·x the rows of the result, and those of dyᵀ, lie contiguous: N and M."""
    file = TraceFile()
    file.call("aten::mm", [[1433, 4095], [4095, 4096]], ALIGN1.format("nt"), 9)
    [product] = trace(file.write(tmp_path / "trace.json")).products
    assert product.at_fault == {"M": 1433}
    assert product.cause == "weight"


@pytest.mark.parametrize(
    "shapes, flat, cause",
    [
        ([[16, 4096, 64], [16, 64, 77]], (2 * 77, 1024, 768), "tokens"),  # an image's text
        ([[16, 4096, 77], [16, 77, 64]], (2 * 77, 1024, 768), "tokens"),
        ([[64, 49, 32], [64, 32, 49]], (64 * 49, 96, 96), "tokens"),  # of windows
        ([[32, 512, 107], [32, 107, 512]], (512, 32 * 107, 4096), "weight"),  # a head_dim
        ([[32, 4, 107], [32, 107, 304]], (4, 32 * 107, 4096), "weight"),
        ([[32, 4, 128], [32, 128, 301]], (4, 4096, 4096), "tokens or weight"),  # of a cache
        ([[8, 37, 4096], [8, 4096, 1405]], (37, 4096, 4096), "tokens or weight"),  # of experts
    ],
)
def test_sides_of_stacked_matrices(
    shapes: list[list[int]], flat: tuple[int, int, int], cause: str, tmp_path: Path
) -> None:
    """Flat products tell: those of weights have whole sequences as rows, and heads as sides."""
    file = TraceFile()
    file.call("aten::addmm", linear(*flat), ALIGNED, 9)
    file.call("aten::bmm", shapes, ALIGN1.format("tn"), 9)
    [product] = trace(file.write(tmp_path / "trace.json")).products
    assert product.cause == cause


def test_every_side_at_fault_counts(tmp_path: Path) -> None:
    """Padding the tokens alone leaves a head_dim of 27 where it is."""
    file = TraceFile()
    file.call("aten::addmm", linear(2 * 77, 3 * 27, 4096), ALIGN1.format("tn"), 9)
    file.call("aten::bmm", [[6, 77, 27], [6, 27, 77]], ALIGN1.format("tn"), 9)
    file.call("aten::addmm", linear(2 * 77, 50257, 81), ALIGN1.format("tn"), 9)
    report = trace(file.write(tmp_path / "trace.json"))
    assert [product.cause for product in report.products] == ["weight", "mixed", "mixed"]


def test_gradients_of_a_head_are_of_the_vocabulary(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=107)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    file = TraceFile()
    file.call("aten::mm", [[64, 32], [32, 107]], ALIGN1.format("tn"), 9)
    file.call("aten::mm", [[64, 107], [107, 32]], ALIGN1.format("nn"), 9)
    file.call("aten::mm", [[107, 64], [64, 32]], ALIGN1.format("nt"), 9)
    report = trace(file.write(tmp_path / "trace.json"), checkpoint=tmp_path / "model")
    assert [product.cause for product in report.products] == ["vocabulary"] * 3


def test_a_kernel_below_what_its_sizes_allow_is_a_matter_of_memory(tmp_path: Path) -> None:
    file = TraceFile()
    file.call("aten::addmm", linear(512, 4096, 4098), ALIGN1.format("tn"), 9)
    [product] = trace(file.write(tmp_path / "trace.json")).products
    assert product.cause == "memory"
    assert product.at_fault == {"K": 4098}


def test_an_id_of_two_processes_has_no_shape(tmp_path: Path) -> None:
    file = TraceFile()
    for n in (1433, 107):
        file.events += [{**event, "pid": n} for event in of_one_call(n)]
    report = trace(file.write(tmp_path / "trace.json"))
    assert [product.cause for product in report.products] == ["no shape"]


def of_one_call(n: int) -> list[dict[str, Any]]:
    """The events of one product, of a process of its own."""
    file = TraceFile()
    file.call("aten::addmm", linear(512, n, 4096), ALIGN1.format("tn"), 9)
    return file.events


def test_gpus_of_several_kinds_have_no_common_floor(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    devices = [{"name": "NVIDIA GeForce RTX 4090"}, {"name": H100}]
    path.write_text(json.dumps({"deviceProperties": devices, "traceEvents": of_one_call(1433)}))
    report = trace(path)
    assert report.gpu == ""
    assert [product.floor_us for product in report.products] == [None]
    assert trace(path, gpu="h100").products[0].floor_us is not None


def test_the_sum_of_split_k_is_a_part_of_its_product(tmp_path: Path) -> None:
    file = TraceFile()
    file.call("aten::mm", [[512, 4096], [4096, 107]], ALIGN1.format("tn"), 40)
    number = file.events[-1]["args"]["correlation"] + 1
    reduction = "void cublasLt::splitKreduce_kernel<32, 16, int, float>"
    file.add("cuda_runtime", "cudaLaunchKernel", file.time + 8, 1, correlation=number)
    file.add("kernel", reduction, file.time + 6000, 10, tid=7, correlation=number)
    report = trace(file.write(tmp_path / "trace.json"))
    assert report.kernels == 2
    assert report.shares == {"misaligned": 1.0}
    assert [(product.count, product.us) for product in report.products] == [(1, 50)]


def test_few_like_products_speak_for_none(tmp_path: Path) -> None:
    file = TraceFile()
    file.call("aten::addmm", linear(512, 512, 512), ALIGNED, 9)
    file.call("aten::addmm", linear(512, 511, 512), ALIGN1.format("tn"), 10)
    file.call("aten::addmm", linear(8192, 8191, 8192), ALIGN1.format("tn"), 9000)
    report = trace(file.write(tmp_path / "trace.json"))
    assert report.gain_like_aligned is None
    assert report.gain_at_most > 0.8


@pytest.mark.parametrize(
    "change",
    [
        {"dur": 0},
        {"dur": -5},
        {"dur": "inf"},
        {"args": [1]},
        {"args": {"Input Dims": [[512, 0], [0, 107]]}},
        {"args": {"Input Dims": [["9" * 400, 8], [8, 8]]}},
        {"args": {"Input Dims": 5}},
    ],
)
def test_events_of_nonsense_are_passed_by(change: dict[str, Any], tmp_path: Path) -> None:
    file = TraceFile()
    for kernel in (ALIGNED, ALIGN1.format("tn")):
        file.call("aten::mm", [[512, 4096], [4096, 107]], kernel, 10)
    file.events = [{**event, **change} for event in file.events] + file.events
    report = trace(file.write(tmp_path / "trace.json"))
    assert report.us >= 20
    assert 0 <= report.gain_at_most <= 1


def test_gradients_name_no_weights(tmp_path: Path) -> None:
    """A gradient of gate (N and K exchanged) has the lengths of down."""
    file = TraceFile()
    for layout in ("tn", "nn", "nt"):
        file.call("aten::mm", [[512, 76], [76, 160]], ALIGN1.format(layout), 9)
    report = trace(file.write(tmp_path / "trace.json"), checkpoint=ASVD)
    assert report.weight_products == 1


def test_order_and_packing_of_a_file_do_not_matter(every_cause: TraceFile, tmp_path: Path) -> None:
    report = trace(every_cause.write(tmp_path / "trace.json"))
    random.Random(0).shuffle(every_cause.events)
    packed = trace(every_cause.write(tmp_path / "trace.json.gz"))
    (tmp_path / "list.json").write_text(json.dumps(every_cause.events))
    bare = trace(tmp_path / "list.json", gpu="h100")
    for other in (packed, bare):
        assert by_cause(other) == by_cause(report)
        assert other.gain_at_most == pytest.approx(report.gain_at_most)


def test_a_slice_of_a_gpu_has_the_floor_that_the_user_names(tmp_path: Path) -> None:
    file = TraceFile()
    file.call("aten::mm", [[512, 4096], [4096, 107]], ALIGN1.format("tn"), 10)
    path = file.write(tmp_path / "trace.json", device=f"{H100} MIG 1g.10gb")
    assert trace(path).products[0].floor_us is None
    assert trace(path, gpu="h100").products[0].floor_us is not None
    with pytest.raises(ConfigError):
        trace(path, gpu="rtx4090")


def test_an_aligned_product_out_of_a_cache_is_no_faster_than_the_floor(tmp_path: Path) -> None:
    file = TraceFile()
    file.call("aten::mm", [[512, 512], [512, 512]], ALIGNED, 0.1)
    file.call("aten::mm", [[512, 512], [512, 511]], ALIGN1.format("tn"), 10)
    report = trace(file.write(tmp_path / "trace.json"))
    assert report.gain_like_aligned == pytest.approx(report.gain_at_most)


def test_a_gpu_without_a_data_sheet_has_no_floor(every_cause: TraceFile, tmp_path: Path) -> None:
    report = trace(every_cause.write(tmp_path / "trace.json", device="A GPU of tomorrow"))
    assert all(product.floor_us is None for product in report.products)
    assert report.gain_at_most == pytest.approx(report.shares["misaligned"])


def test_another_gpu_than_the_recorded_one_is_refused(
    every_cause: TraceFile, tmp_path: Path
) -> None:
    path = every_cause.write(tmp_path / "trace.json")
    assert trace(path, gpu="h100").gpu == H100
    with pytest.raises(ConfigError, match="H100"):
        trace(path, gpu="a100")


def test_a_checkpoint_names_the_dims(tmp_path: Path) -> None:
    inventory = gacprof.scan(ASVD)
    file = TraceFile()
    gemms = [gemm for module in inventory.modules for gemm in module.gemms]
    for gemm in gemms:
        is_aligned = gemm.N % 8 == gemm.K % 8 == 0
        kernel = ALIGNED if is_aligned else ALIGN1.format("tn")
        file.call("aten::addmm", linear(512, gemm.N, gemm.K), kernel, 10)
    report = trace(file.write(tmp_path / "trace.json"), checkpoint=ASVD)
    assert report.matched == report.weight_products == len(gemms)
    named = {name for product in report.products for name in product.dims}
    assert named == {dim.name for dim in inventory.dims if dim.size % 8}


def test_a_summary_of_nsight_systems_has_names_alone(tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    columns = '"Time (%)","Total Time (ns)","Instances","Avg (ns)","Name"'
    rows = [f'75.0,3000000,3,1000000.0,"{ALIGN2}"', f'25.0,1000000,2,500000.0,"{ALIGNED}"']
    path.write_text("\n".join(["Processing [own.sqlite] …", "", columns, *rows, ""]))
    report = trace(path, gpu="h100")
    assert report.kernels == 5
    assert report.us == 4000
    assert [product.cause for product in report.products] == ["no shape"]
    assert report.gain_at_most == pytest.approx(0.75)


@pytest.mark.parametrize("total", ["nan", "inf", "-3", "", "9 ms"])
def test_a_summary_without_times_is_refused(total: str, tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    path.write_text(f'"Total Time (ns)","Instances","Name"\n{total},1,"{ALIGN2}"\n')
    with pytest.raises(MeasurementError, match=r"kernels\.csv"):
        trace(path)


def test_a_report_of_nsight_compute_has_names_and_ranges(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pandas = pytest.importorskip("pandas")
    rows = {"kernel": [ALIGN2, COPY], "duration_ns": [3000.0, 1000.0], "ranges": ["layer", ""]}
    monkeypatch.setattr("gacprof.kernels.ncu.read_ncu", lambda path: pandas.DataFrame(rows))
    (tmp_path / "own.ncu-rep").touch()
    report = trace(tmp_path / "own.ncu-rep")
    assert report.us == 4
    assert [product.layer for product in report.products] == ["layer"]
    rows["duration_ns"][0] = float("nan")
    with pytest.raises(MeasurementError, match="gpu__time_duration"):
        trace(tmp_path / "own.ncu-rep")


def test_a_trace_of_a_cpu_says_that_it_has_no_tiers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(record_shapes=True) as profiler:
        torch.nn.Linear(107, 64)(torch.ones(3, 107))
    path = tmp_path / "cpu.json"
    profiler.export_chrome_trace(str(path))
    report = trace(path)
    assert report.kernels == 0
    assert report.operators > 0
    with pytest.raises(SystemExit) as leaving:
        main(["trace", str(path)])
    assert leaving.value.code == 0
    assert "CPU" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["", "{", '{"traceEvents": [{"ph": "X"', "no JSON", "\x1f\x8b", "{}"]
)
def test_a_file_that_is_no_trace_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(MeasurementError, match=r"trace\.json") as error:
        trace(path)
    assert "\n" not in str(error.value)


def test_a_label_with_quotes_is_pointed_at(every_cause: TraceFile, tmp_path: Path) -> None:
    """PyTorch 2.11 writes names of record_function into its JSON as they are."""
    every_cause.add("user_annotation", "LABEL", 1, 1)
    path = every_cause.write(tmp_path / "trace.json")
    path.write_text(path.read_text().replace("LABEL", '{"batch": 7}'))
    with pytest.raises(MeasurementError, match=r"batch.*record_function"):
        trace(path)


@pytest.mark.parametrize("name, code", [("trace.json", 1), ("none.json", 2)])
def test_the_verb_exits_by_what_can_be_won(
    name: str, code: int, every_cause: TraceFile, tmp_path: Path
) -> None:
    every_cause.write(tmp_path / "trace.json")
    with pytest.raises(SystemExit) as leaving:
        main(["trace", str(tmp_path / name)])
    assert leaving.value.code == code

"""Kernel names become identities, in every spelling; what is not understood stays unknown."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from golden_answers import name_answer, read_golden
from hypothesis import given
from hypothesis import strategies as st

from gacprof.kernels.names import Kernel, attach, parse

NAMES = Path(__file__).parents[1] / "fixtures" / "kernel_names"
GOLDENS = read_golden("kernel_names")
FILES = [name for name in GOLDENS if not name.startswith("templates")]

NO_LONGER_READ = {"tile", "stages", "cluster", "warps"}
"""Fields that 0.2.0 read too, and nothing but its tests used."""

ENGINES = json.loads((NAMES / "engines.json").read_text(encoding="utf-8"))
UNKNOWN_SHARE = 0.05
"""Of a GPU's time: kernels that no row claims, and those that ``traces.csv`` leaves out."""

FOREIGN = (NAMES / "foreign.txt").read_text(encoding="utf-8").split()

FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)"
COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>(int)"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>, false>(P)"


@pytest.mark.parametrize("file", FILES)
def test_names_say_what_they_said_before(file: str) -> None:
    for name, fields in GOLDENS[file].items():
        assert name_answer(name) == {k: v for k, v in fields.items() if k not in NO_LONGER_READ}
        assert parse(name).name == name


@pytest.mark.parametrize("name", ENGINES)
def test_kernels_of_engines_say_what_they_do_and_no_alignment(name: str) -> None:
    answer = name_answer(name)
    assert ENGINES[name].items() <= answer.items()
    assert answer.get("alignment") == ENGINES[name].get("alignment")


def test_most_of_the_time_of_public_traces_has_a_name() -> None:
    time: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    with (NAMES / "traces.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            time[row["gpu"]] += int(row["us"])
            if parse(row["name"]).provider == "unknown":
                unknown[row["gpu"]] += int(row["us"])
    assert len(time) == 7
    for gpu, us in time.items():
        assert unknown[gpu] < UNKNOWN_SHARE * us, gpu


@pytest.mark.parametrize("name", FOREIGN)
def test_a_name_that_others_may_use_stays_unknown(name: str) -> None:
    assert parse(name) == Kernel(name)


@pytest.mark.parametrize("count, even_k_at", [(5, 3), (6, 4), (7, 5), (8, 5)])
def test_even_k_is_read_in_every_version_of_flash_attention_2(count: int, even_k_at: int) -> None:
    switches = ", ".join("true" if i == even_k_at else "false" for i in range(count))
    name = f"void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>, {switches}>(P)"
    assert parse(name).even_k is True


def test_launchers_and_adapters_nest() -> None:
    for inner in (name for name in GOLDENS["cublas"] if name.startswith("cutlass3x_")):
        adapter = f"cutlass::gemm::device::GemmUniversalAdapter<{inner}, void>"
        for outer in (f"void cutlass::device_kernel<{adapter}>(Params)", f"{adapter}::run"):
            assert replace(parse(outer), name=inner) == parse(inner)


def test_a_split_k_reduction_joins_its_product() -> None:
    gemm = "nvjet_sm90_hss_64x8_64x16_1x1_h_bz_NNT"
    reduction = "void cublasLt::splitKreduce_kernel<32, 16, int, float>"
    product, other = attach([gemm, reduction, COPY])
    assert product == replace(parse(gemm), split_k=True)
    assert other.name == COPY


@pytest.mark.parametrize(
    "names, padded, number",
    [([FILL, COPY, FLASH], True, 1), ([COPY, FLASH], False, 2), ([FLASH], False, 1)],
)
def test_fills_and_copies_before_attention_are_its_padding(
    names: list[str], padded: bool, number: int
) -> None:
    kernels = attach(names)
    assert len(kernels) == number
    assert kernels[-1] == replace(parse(FLASH), padded=padded)


@given(st.text(max_size=300))
def test_any_text_is_a_name(text: str) -> None:
    assert isinstance(parse(text), Kernel)
    assert parse(text).name == text

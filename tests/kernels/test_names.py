"""Kernel names become identities; what is not understood stays unknown."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_names import COPY, FILL, flash

from gacprof.kernels.names import Kernel, attach, parse

FILES = ("gemm_and_attention", "cublas", "cutlass3", "flash2", "mem_efficient", "aten")


def names(fixtures: Path, file: str) -> list[str]:
    return (fixtures / "kernel_names" / f"{file}.txt").read_text().splitlines()


@pytest.mark.parametrize("file", FILES)
def test_every_real_name_is_known(fixtures: Path, file: str) -> None:
    assert [name for name in names(fixtures, file) if not parse(name).known] == []


def test_providers_are_never_mixed_up(fixtures: Path) -> None:
    expected = {
        "cublas": {"cublas", "cutlass"},  # cuBLAS ships CUTLASS kernels under CUTLASS's names
        "flash2": {"flash_attention"},
        "cutlass3": {"cutlass"},
        "mem_efficient": {"mem_efficient"},
        "aten": {"aten"},
    }
    for file, providers in expected.items():
        assert {parse(name).provider for name in names(fixtures, file)} == providers


def test_every_gemm_of_a_named_family_tells_its_tile_and_types(fixtures: Path) -> None:
    for name in names(fixtures, "cublas"):
        kernel = parse(name)
        if kernel.family in ("native", "nvjet") and kernel.role == "gemm":
            assert kernel.tile and kernel.dtype, name


FIELDS: dict[str, dict[str, object]] = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "kernel_names" / "fields.json").read_text()
)
"""Names with what each says of its kernel: of every family, in every spelling, and what carries the
name of another."""


@pytest.mark.parametrize("name", FIELDS)
def test_fields(name: str) -> None:
    kernel = parse(name)
    found = {field: getattr(kernel, field) for field in FIELDS[name]}
    assert json.loads(json.dumps(found)) == FIELDS[name]


def test_launchers_and_adapters_nest(fixtures: Path) -> None:
    for inner in names(fixtures, "cublas"):
        if not inner.startswith("cutlass3x_"):
            continue
        alone = parse(inner)
        adapter = f"cutlass::gemm::device::GemmUniversalAdapter<{inner}, void>"
        for outer in (f"void cutlass::device_kernel<{adapter}>(Params)", f"{adapter}::run"):
            assert replace(parse(outer), name=inner) == alone


@pytest.mark.parametrize("count, even_k_at", [(5, 3), (6, 4), (7, 5), (8, 5)])
def test_even_k_is_found_in_every_version_of_flash_attention_2(count: int, even_k_at: int) -> None:
    switches = ", ".join("true" if i == even_k_at else "false" for i in range(count))
    name = f"void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>, {switches}>(P)"
    assert parse(name).even_k is True
    others = ", ".join("false" if i == even_k_at else "true" for i in range(count))
    assert parse(name.replace(switches, others)).even_k is False


@pytest.mark.parametrize(
    "name", ["some_future_kernel_42", "", "kernel", "_Z3fooi", "my_nvjet_like"]
)
def test_an_unknown_name_is_unknown_and_kept(name: str) -> None:
    assert parse(name) == Kernel(name)
    assert not parse(name).known


@given(st.text(max_size=120))
def test_no_text_makes_it_fail_and_all_of_it_can_be_shown(name: str) -> None:
    shown = parse(name).name
    assert not any(unicodedata.category(letter).startswith("C") for letter in shown)
    assert shown == name or not name.isprintable()


@pytest.mark.parametrize("name", ["nvjet_hsh\x1b[2J_TNN", "my_kernel\x9b31m", "a\u202eb\nc\td"])
def test_control_characters_of_a_name_are_escaped_where_it_enters(name: str) -> None:
    kernel = parse(name)
    assert all(text.isprintable() for text in (kernel.name, kernel.mechanism, str(kernel)))


@given(st.data())
def test_no_mutilated_name_makes_it_fail(fixtures: Path, data: st.DataObject) -> None:
    listed = [name for file in FILES for name in names(fixtures, file)]
    name = data.draw(st.sampled_from(listed))
    start = data.draw(st.integers(0, len(name)))
    end = data.draw(st.integers(start, len(name)))
    other = data.draw(st.sampled_from(listed))
    assert parse(name[:start] + name[end:]).name == name[:start] + name[end:]
    assert parse(name[start:end] + other).name == name[start:end] + other


@pytest.mark.parametrize("name", ["nvjet_" + "x" * 50_000, f"nvjet_hsh_{'9' * 5_000}x8_64x4"])
def test_a_name_beyond_all_measure_is_kept_and_not_read(name: str) -> None:
    assert parse(name) == Kernel(name)


REDUCE = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __half, float, __half>(x)"


def test_a_split_k_reduction_belongs_to_its_gemm() -> None:
    gemm = "nvjet_hsh_64x8_64x16_1x1_h_bz_TNN"
    groups = attach([gemm, REDUCE, gemm])
    assert [(g.main.name, [k.name for k in g.after], g.main.split_k) for g in groups] == [
        (gemm, [REDUCE], True),
        (gemm, [], False),
    ]
    assert [g.main.name for g in attach([REDUCE])] == [REDUCE]


def test_three_pads_before_attention_are_its_padding() -> None:
    attention = flash(128, False)
    groups = attach([FILL, COPY] * 3 + [attention])
    assert len(groups) == 1
    assert [kernel.role for kernel in groups[0].before] == ["fill", "copy"] * 3
    assert groups[0].main.name == attention
    alone = attach([COPY, attention])  # a copy alone is no padding
    assert [len(group.before) for group in alone] == [0, 0]


def test_a_combining_kernel_belongs_to_its_attention() -> None:
    split = next(n for n in FIELDS if "splitkv" in n)
    combine = (
        "void flash::flash_fwd_splitkv_combine_kernel"
        "<Flash_fwd_kernel_traits<128, 64, 128, 4>, 4, 2, true>(P)"
    )
    (group,) = attach([split, combine])
    assert [kernel.role for kernel in group.after] == ["attention_combine"]

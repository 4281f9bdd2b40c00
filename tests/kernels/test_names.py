"""Kernel names become identities; what is not understood stays unknown."""

from __future__ import annotations

import json
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
"""Names with what each says of its kernel."""


@pytest.mark.parametrize("name", FIELDS)
def test_fields(name: str) -> None:
    kernel = parse(name)
    found = {field: getattr(kernel, field) for field in FIELDS[name]}
    assert json.loads(json.dumps(found)) == FIELDS[name]


NAMED_WITHIN = {
    "family": "cutlass3",
    "role": "gemm",
    "arch": "sm100",
    "tile": (64, 128, 64),
    "cluster": (1, 1, 1),
    "mma": (64, 128, 16),
    "alignment": 8,
}
WITHIN = (  # in the order of cutlass3.txt
    NAMED_WITHIN,
    NAMED_WITHIN,
    NAMED_WITHIN | {"role": "convolution"},
    {"arch": "sm100", "tile": (64, 64, 128), "cluster": (1, 4, 1), "stages": 13, "alignment": 16},
    {"family": "cutlass3", "tile": (64, 128, 128), "cluster": (2, 1, 1), "alignment": 16},
    {"family": "cutlass3", "role": "gemm", "arch": "sm90", "stages": 12, "tile": None},
)


def test_a_carrier_tells_what_the_kernel_within_it_tells(fixtures: Path) -> None:
    listed = names(fixtures, "cutlass3")
    for name, expected in zip(listed, WITHIN, strict=True):
        kernel = parse(name)
        assert {key: getattr(kernel, key) for key in expected} == expected, name
    assert [parse(name).dtype for name in listed] == [
        *["float16"] * 3, "float8_e4m3", "int8", None,
    ]  # fmt: skip


INNER = "cutlass3x_sm90_tensorop_s64x128x16gemm_f16_f16_f32_f16_f16_128x128x64_2x1x1_0_tnn_align8"


def test_launchers_and_adapters_nest(fixtures: Path) -> None:
    for inner in names(fixtures, "cublas"):
        if not inner.startswith("cutlass3x_"):
            continue
        alone = parse(inner)
        adapter = f"cutlass::gemm::device::GemmUniversalAdapter<{inner}, void>"
        for outer in (f"void cutlass::device_kernel<{adapter}>(Params)", f"{adapter}::run"):
            assert replace(parse(outer), name=inner) == alone
    mangled = (
        "_ZN7cutlass13device_kernelINS_4gemm6device20GemmUniversalAdapterI{}{}EEEEvNT_6ParamsE"
    )
    kernel = parse(mangled.format(len(INNER), INNER))
    assert (kernel.tile, kernel.alignment) == ((128, 128, 64), 8)


SHADER = "CutlassGemmBiasShaderCutlass3x"
CARRIED = f"I N7cutlass4gemm6device20GemmUniversalAdapterI {len(INNER)}{INNER} vEEE".replace(
    " ", ""
)


@pytest.mark.parametrize(
    "mangled",
    [
        f"{len(SHADER)}{SHADER}{CARRIED}",  # as libraries keep the names of their launchers' types
        f"N5cask6{len(SHADER)}{SHADER}{CARRIED}E",
        f"_ZTS{len(SHADER)}{SHADER}{CARRIED}",
        f"_ZTSN5cask6{len(SHADER)}{SHADER}{CARRIED}E",
    ],
)
def test_the_mangled_name_of_a_type_needs_no_prefix(mangled: str) -> None:
    kernel = parse(mangled)
    assert (kernel.family, kernel.tile, kernel.alignment) == ("cutlass3", (128, 128, 64), 8)


def test_a_carried_kernel_is_found_in_a_name_that_cannot_be_demangled() -> None:
    kernel = parse(f"_ZN7cutlass13device_kernelIXsr3fooEI{len(INNER)}{INNER}EEvT_")
    assert (kernel.family, kernel.tile, kernel.alignment) == ("cutlass3", (128, 128, 64), 8)


@pytest.mark.parametrize("copy, alignment", [("uint128_t", 8), ("uint32_t", 2)])
def test_without_tma_the_width_of_the_copy_is_the_alignment(copy: str, alignment: int) -> None:
    """cp.async moves 16 or 4 bytes (PTX ISA); the mainloop is CUTLASS 3's without TMA."""
    kernel = parse(
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, "
        "int>, cutlass::gemm::collective::CollectiveMma<cutlass::gemm::"
        "MainloopSm90CpAsyncGmmaWarpSpecialized<4, cute::tuple<cute::C<1>, cute::C<1>, "
        "cute::C<1> > >, cute::tuple<cute::C<128>, cute::C<64>, cute::C<32> >, "
        "cutlass::bfloat16_t, long, cutlass::bfloat16_t, long, cute::TiledMMA<cute::MMA_Atom<"
        "cute::SM90_64x64x16_F32BF16BF16_SS> >, "
        f"cute::SM80_CP_ASYNC_CACHEALWAYS<cutlass::{copy}> > > >(Params)"
    )
    assert (kernel.alignment, kernel.mma, kernel.tile) == (alignment, (64, 64, 16), (128, 64, 32))
    assert kernel.dtype == "bfloat16"


FLASH = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, "
    "cutlass::half_t, Flash_kernel_traits<128, 128, 64, 4, cutlass::half_t> >, "
    "false, true, false, false, true, false, false, false>(pytorch_flash::Flash_fwd_params)"
)
FLASH_CASTS = (
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64, "
    "(int)4, (bool)0, (bool)0, cutlass::half_t, Flash_kernel_traits<(int)128, (int)128, (int)64, "
    "(int)4, cutlass::half_t>>, (bool)0, (bool)1, (bool)0, (bool)0, (bool)1, (bool)0, (bool)0, "
    "(bool)0>(pytorch_flash::Flash_fwd_params)"
)
FLASH_MANGLED = (
    "_ZN13pytorch_flash16flash_fwd_kernelI23Flash_fwd_kernel_traitsILi128ELi128ELi64ELi4ELb0ELb0E"
    "N7cutlass6half_tE19Flash_kernel_traitsILi128ELi128ELi64ELi4ES3_EELb0ELb1ELb0ELb0ELb1ELb0ELb0E"
    "Lb0EEEvNS_16Flash_fwd_paramsE"
)


@pytest.mark.parametrize("spelling", [FLASH, FLASH_CASTS, FLASH_MANGLED])
def test_one_kernel_in_three_spellings(spelling: str) -> None:
    kernel = parse(spelling)
    assert (kernel.template, kernel.tile, kernel.warps) == (128, (128, 64), 4)
    assert kernel.dtype == "float16"
    assert kernel.mechanism == "flash2 d128 even_k=false"


@pytest.mark.parametrize(
    "count, even_k_at",
    [(5, 3), (6, 4), (7, 5), (8, 5)],
)
def test_even_k_is_found_in_every_version_of_flash_attention_2(count: int, even_k_at: int) -> None:
    switches = ", ".join("true" if i == even_k_at else "false" for i in range(count))
    name = f"void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>, {switches}>(P)"
    assert parse(name).even_k is True
    others = ", ".join("false" if i == even_k_at else "true" for i in range(count))
    assert parse(name.replace(switches, others)).even_k is False


def test_a_name_cut_short_keeps_what_it_still_tells() -> None:
    kernel = parse("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kern...")
    assert (kernel.provider, kernel.role, kernel.template) == ("flash_attention", "attention", None)


@pytest.mark.parametrize(
    "name", ["some_future_kernel_42", "", "kernel", "_Z3fooi", "my_nvjet_like"]
)
def test_an_unknown_name_is_unknown_and_kept(name: str) -> None:
    assert parse(name) == Kernel(name)
    assert not parse(name).known


@given(st.text(max_size=120))
@settings(max_examples=40)
def test_no_text_makes_it_fail_and_all_of_it_can_be_shown(name: str) -> None:
    shown = parse(name).name
    assert not any(unicodedata.category(letter).startswith("C") for letter in shown)
    assert shown == name or not name.isprintable()


@pytest.mark.parametrize("name", ["nvjet_hsh\x1b[2J_TNN", "my_kernel\x9b31m", "a\u202eb\nc\td"])
def test_control_characters_of_a_name_are_escaped_where_it_enters(name: str) -> None:
    kernel = parse(name)
    assert all(text.isprintable() for text in (kernel.name, kernel.mechanism, str(kernel)))


@given(st.data())
@settings(max_examples=40)
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


def test_a_reduction_without_a_gemm_stands_alone() -> None:
    assert [g.main.name for g in attach([REDUCE])] == [REDUCE]


FILL = next(n for n in FIELDS if "FillFunctor" in n)
COPY = next(n for n in FIELDS if "direct_copy" in n)


def test_three_pads_before_attention_are_its_padding() -> None:
    groups = attach([FILL, COPY] * 3 + [FLASH])
    assert len(groups) == 1
    assert [kernel.role for kernel in groups[0].before] == ["fill", "copy"] * 3
    assert groups[0].main.name == FLASH


def test_a_copy_alone_is_not_taken_for_padding() -> None:
    assert [len(group.before) for group in attach([COPY, FLASH])] == [0, 0]


def test_a_combining_kernel_belongs_to_its_attention() -> None:
    split = next(n for n in FIELDS if "splitkv" in n)
    combine = (
        "void flash::flash_fwd_splitkv_combine_kernel"
        "<Flash_fwd_kernel_traits<128, 64, 128, 4>, 4, 2, true>(P)"
    )
    (group,) = attach([split, combine])
    assert [kernel.role for kernel in group.after] == ["attention_combine"]


def test_as_dict_is_plain_and_leaves_out_what_the_name_does_not_say() -> None:
    assert parse("nvjet_hsh").as_dict() == {
        "name": "nvjet_hsh",
        "provider": "cublas",
        "family": "nvjet",
        "role": "gemm",
        "dtype": "float16",
        "math": "float16",
        "mechanism": "nvjet float16",
    }


@pytest.mark.parametrize("element", ["float", "c10::Half"])
def test_the_softmax_of_the_math_path_is_pytorchs(element: str) -> None:
    name = (
        f"void (anonymous namespace)::softmax_warp_forward<{element}, {element}, float, 10, "
        f"false, false>({element}*, {element} const*, int, int, int, bool const*, int, bool)"
    )
    assert (parse(name).family, parse(name).role) == ("aten", "softmax")

"""Mangled names read as c++filt reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gacprof.kernels.names import parse
from gacprof.kernels.spelling import demangle, identifiers, readable

CASES = {  # mangled → c++filt's answer without return type and parameters
    "_ZN8cublasLt19splitKreduce_kernelILi32ELi16Ei6__halfS1_fS1_Lb0ES1_S1_S1_Lb1ELb1ELb0ELb0EEEv"
    "NS_18cublasSplitKParamsIT4_EEPKT2_PKT8_PT7_PT3_PKS3_SG_PKT9_S7_PSH_PvlPS3_PiSM_SM_SG_SG_SG_"
    "SG_SG_": "cublasLt::splitKreduce_kernel<32, 16, int, __half, __half, float, __half, false, "
    "__half, __half, __half, true, true, false, false>",
    "_Z12dgemm_largekILb0ELb0ELi5ELi5EEvPdPKdS2_i": "dgemm_largek<false, false, 5, 5>",
    "_Z35nvjet_imma_gemm_set_device_ptrs_kerIL19emu_internal_pack_t0EEvPvm": (
        "nvjet_imma_gemm_set_device_ptrs_ker<(emu_internal_pack_t)0>"
    ),
    "_Z18offsetPointerArrayI6float2EvPPT_PKS2_i": "offsetPointerArray<float2>",
    "_ZN13pytorch_flashL24flash_fwd_splitkv_kernelI23Flash_fwd_kernel_traitsILi64ELi64ELi256ELi4E"
    "Lb0ELb0EN7cutlass10bfloat16_tE19Flash_kernel_traitsILi64ELi64ELi256ELi4ES3_EELb0EEEvNS_16"
    "Flash_fwd_paramsE.cold": "pytorch_flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<64,"
    " 64, 256, 4, false, false, cutlass::bfloat16_t, Flash_kernel_traits<64, 64, 256, 4, "
    "cutlass::bfloat16_t> >, false>",
}


@pytest.mark.parametrize("mangled", CASES)
def test_against_c_plus_plus_filt(mangled: str) -> None:
    assert _spelt(readable(mangled)) == _spelt(CASES[mangled])


def _spelt(name: str) -> str:
    """However the angle brackets are spaced."""
    return name.replace("> >", ">>")


def test_all_mangled_fixture_names_are_understood(fixtures: Path) -> None:
    listed = (fixtures / "kernel_names" / "flash2.txt").read_text().splitlines()
    mangled = [name for name in listed if name.startswith("_Z")]
    assert len(mangled) > 30
    assert all((demangle(name) or "").startswith("pytorch_flash::flash_") for name in mangled)


@pytest.mark.parametrize("name", ["", "flash_fwd_kernel", "N_kernel", "_Z", "_Z99x", "_ZNS9_E"])
def test_what_is_not_understood_is_none_and_stays_as_it_is(name: str) -> None:
    assert demangle(name) is None and readable(name) == name
    assert readable("3x3_conv_kernel") == "3x3_conv_kernel"


@given(st.text("_ZNISTLEJXPKRvifdb0123456789abcxyz", max_size=60))
def test_never_fails(tail: str) -> None:
    demangle("_Z" + tail)
    identifiers("_Z" + tail)


def test_identifiers_of_a_name_that_is_not_understood() -> None:
    mangled = "_ZN2at6native29vectorized_elementwise_kernelILi4EXsr3fooE11FillFunctorEE"
    assert "vectorized_elementwise_kernel" in identifiers(mangled)
    assert "FillFunctor" in identifiers(mangled)


def test_a_deeply_nested_name_is_refused_not_a_stack_overflow() -> None:
    assert demangle("_Z1fI" + "P" * 9000 + "iEvv") is None  # deeper than the stack
    assert demangle("_Z1fI" + "i" * 90_000 + "Evv") is None  # longer than any real name
    assert demangle("_Z1fIPPPiEvv") == "f<int***>"


def doubled(levels: int) -> str:
    """``f<a<int, int>, a<a<int, int>, a<int, int>>, …>``: each argument holds the last twice."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    again = "".join(f"S0_IS{digits[1 + level]}_S{digits[1 + level]}_E" for level in range(levels))
    return f"_Z1fI1aIiiE{again}Evv"


def test_a_short_name_that_doubles_its_text_is_refused() -> None:
    assert demangle(doubled(1)) == "f<a<int, int>, a<a<int, int>, a<int, int>>>"
    assert len(doubled(29)) < 340  # and its text has some 8 thousand million characters
    assert demangle(doubled(29)) is None
    assert parse(doubled(29)).name == doubled(29)

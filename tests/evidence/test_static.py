"""The static table: our probes compiled for GPUs that are not here. Skips without Triton."""

from __future__ import annotations

import importlib.util

import pytest

from gacprof.core.errors import MeasurementError
from gacprof.extras.evidence import static

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed")

COPY = {  # divisible by → PTX, SASS, bytes
    16: ("ld.global.v4.b32", "LDG.E.128", 16),
    8: ("ld.global.v4.b32", "LDG.E.128", 16),
    4: ("ld.global.v2.b32", "LDG.E.64", 8),
    2: ("ld.global.b32", "LDG.E", 4),
    1: ("ld.global.b16", "LDG.E.U16", 2),
}


MMA = (("sm80", "mma.sync", "HMMA"), ("sm90", "wgmma", "HGMMA"), ("sm100", "tcgen05", "UTCHMMA"))


@needs_triton
def test_the_load_width_of_a_row_copy_by_divisibility() -> None:
    rows = static.table(["row_copy"], ["sm80"])
    assert len(rows) == 5
    others = [static.table(["row_copy"], [arch], [d]) for arch, d in (("sm90", 16), ("sm100", 1))]
    for row in (*rows, *others[0], *others[1]):
        assert (row.ptx_load, row.sass_load, row.load_bytes) == COPY[row.divisible_by]
        assert (row.asynchronous, row.ptx_mma, row.reason) == (False, None, "")


@needs_triton
@pytest.mark.slow
def test_a_gemm_loses_its_asynchronous_loads_but_keeps_its_mma() -> None:
    for arch, ptx, sass in MMA:
        divisors = static.DIVISORS if arch == "sm80" else (16, 1)
        rows = static.table(["gemm"], [arch], divisors)
        width = {16: 16, 8: 16, 4: 8, 2: 4, 1: 2}
        assert [row.load_bytes for row in rows] == [width[divisor] for divisor in divisors]
        assert [row.asynchronous for row in rows] == [divisor > 1 for divisor in divisors]
        assert rows[-1].ptx_load == "ld.global.b16"
        assert len({row.ptx_mma for row in rows}) == 1
        assert all((row.ptx_mma or "").startswith(ptx) for row in rows)
        assert all((row.sass_mma or "").startswith(sass) for row in rows)


@needs_triton
def test_an_architecture_that_does_not_exist_is_a_clear_message() -> None:
    with pytest.raises(MeasurementError, match="cannot compile gacprof_row_copy for sm42"):
        static.table(["row_copy"], ["sm42"], [16])


@needs_triton
def test_a_missing_disassembler_leaves_ptx_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_NVDISASM_PATH", "/nowhere/nvdisasm")
    (row,) = static.table(["row_copy"], ["sm80"], [16])
    assert (row.ptx_load, row.sass_load) == ("ld.global.v4.b32", None)
    assert "/nowhere/nvdisasm" in row.reason


@needs_triton
def test_interpreting_instead_of_compiling_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(MeasurementError, match="unset it"):
        static.table()


@pytest.mark.skipif(HAS_TRITON, reason="Triton is installed")
def test_without_triton_it_says_what_to_install() -> None:
    with pytest.raises(MeasurementError, match=r"pip install 'gacprof\[triton\]'"):
        static.table()


def test_load_instructions_are_read_from_ptx() -> None:
    ptx = """
    @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
    ld.global.nc.v2.u64 {%rd1, %rd2}, [%rd3];
    cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;
    cp.async.ca.shared.global [%r1], [%rd1], 4;
    st.global.b16 [%rd1], %rs1;
    """
    assert static._loads(ptx) == [
        ("ld.global.v4.b32", 16),
        ("ld.global.nc.v2.u64", 16),
        ("cp.async.cg.shared.global", 16),
        ("cp.async.ca.shared.global", 4),
    ]

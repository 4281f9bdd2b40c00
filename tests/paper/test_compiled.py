"""The table of loads and MMA by divisibility in docs/kernels.md, compiled anew."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

from compiled import compiled, loads

MMA = {80: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


def table(root: Path) -> dict[int, tuple[str, str]]:
    """The instruction of a row copy and the words for a GEMM's loads, by divisor."""
    text = (root / "docs" / "kernels.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d, ]+) \| `(LDG[.\w]*)` \| (.*?) \| .* \|$", text, flags=re.M)
    return {int(d): (copy, gemm) for listed, copy, gemm in rows for d in listed.split(", ")}


@pytest.mark.slow
def test_the_table_of_the_document_is_what_triton_compiles(pytestconfig):
    rows = table(pytestconfig.rootpath)
    assert rows.keys() == {16, 8, 4, 2, 1}
    for arch, mma in MMA.items():
        for divisor in rows if arch == 80 else (16, 1):
            copied, gemm = compiled("row_copy", arch, divisor), compiled("gemm", arch, divisor)
            load, words = rows[divisor]
            assert set(re.findall(r"\bLDG\.[.\w]*", copied["sass"])) == {load}
            width, text = min(loads(gemm["ptx"]))
            through = f"cp.async of {width} bytes" if "async" in text else f"{width} bytes through"
            assert words.startswith(through)
            assert re.search(rf"\b{mma}\b", gemm["sass"])


def test_load_instructions_are_read_from_ptx():
    ptx = """
    @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
    ld.global.nc.v2.u64 {%rd1, %rd2}, [%rd3];
    cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;
    cp.async.ca.shared.global [%r1], [%rd1], 4;
    st.global.b16 [%rd1], %rs1;
    """
    assert loads(ptx) == [
        (16, "ld.global.v4.b32"),
        (16, "ld.global.nc.v2.u64"),
        (16, "cp.async.cg.shared.global"),
        (4, "cp.async.ca.shared.global"),
    ]

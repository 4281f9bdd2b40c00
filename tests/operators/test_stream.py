"""The Triton streams against plain sums and copies, by Triton's interpreter."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from gacprof import operators
from gacprof.core.errors import MeasurementError
from gacprof.devices.datasheet import sheets

INTERPRETED = """
import json, torch
from gacprof import operators
found = []
for name in ("row_sum", "row_copy"):
    for K in (1, 1000, 1024, 1031, 2500):
        for specialise in (True, False):
            flags = {"specialise": specialise}
            point = operators.point(name, {"rows": 3, "K": K}, "float16", flags)
            work = operators.get(name).prepare(point, torch.device("cpu"))
            source, out = work.operands[0], work()
            wanted = source if name == "row_copy" else source.float().sum(1)
            found.append([name, K, specialise, torch.allclose(out, wanted, atol=1e-2)])
print(json.dumps(found))
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_interpreted_kernels_give_what_torch_gives():
    """In a process of its own: TRITON_INTERPRET is read when Triton is imported."""
    message = subprocess.run(
        [sys.executable, "-c", INTERPRETED],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert message.returncode == 0, message.stderr
    found = json.loads(message.stdout)
    assert len(found) == 2 * 5 * 2
    assert [case for case in found if not case[-1]] == []


def test_a_cpu_says_why_it_cannot(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(MeasurementError, match="needs a CUDA device"):
        point = operators.point("row_sum", {"rows": 2, "K": 4}, "float16")
        operators.get("row_sum").prepare(point, torch.device("cpu"))


# --- as compiled for GPUs that are not here -------------------------------------------------------

ARCHITECTURES = sorted({int(sheet.arch.removeprefix("sm")) for sheet in sheets().values()})
"""Of every data sheet: a rule says this of all of them."""
TIMED = [("row_copy", "fp16", arch) for arch in ARCHITECTURES]
TIMED += [("row_sum", "fp16", 80), ("row_sum", "fp32", 90)]
NARROW = {"fp16": "b16", "fp32": "b32"}
"""Of a load where Triton knows of no divisor of K, as with ``specialise`` = False."""


def compiled(name, kind, arch, divisor):
    """PTX and SASS of the kernel that is timed, K divisible by ``divisor`` or by who knows what."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    from gacprof.operators.stream_triton import BLOCK, KERNELS

    function = triton.jit(KERNELS[name])
    target = kind if name == "row_copy" else "fp32"
    kinds = (f"*{kind}", f"*{target}", "i32", "constexpr")
    known = [0, 1, 2] if divisor == 16 else [0, 1]  # arenas are aligned further than that
    source = ASTSource(
        function,
        dict(zip(function.arg_names, kinds, strict=True)),
        {(3,): BLOCK},
        {(place,): [["tt.divisibility", 16]] for place in known},
    )
    asm = compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 4}).asm
    return asm["ptx"], asm["sass"]


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize(("name", "kind", "arch"), TIMED)
def test_the_timed_kernels_load_16_bytes_at_once_where_k_is_known_to_allow_it(
    name, kind, arch, monkeypatch, tmp_path
):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    wide, narrow = (compiled(name, kind, arch, divisor) for divisor in (16, 1))
    for (ptx, sass), width in ((wide, "v4.b32"), (narrow, NARROW[kind])):
        loads = re.findall(r"ld\.global\.((?:v\d\.)?b\d+)", ptx)
        assert loads and set(loads) == {width}
        if name == "row_copy":
            assert set(re.findall(r"st\.global\.((?:v\d\.)?b\d+)", ptx)) == {width}
        assert sass and not re.search(r"\b(STL|LDL)\b", sass), "registers are spilled"

"""What the documents show is what happens."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from gacprof.cliffmap import CliffMap
from gacprof.cliffmap.export import best_modulus, moduli


@pytest.fixture
def docs(pytestconfig) -> Path:
    return Path(pytestconfig.rootpath) / "docs"


@pytest.mark.parametrize("page", ["cliff-map.md", "write-a-compressor.md"])
def test_the_python_of_the_page_runs_and_prints_what_its_comments_say(docs, page):
    text = (docs / page).read_text()
    # Of a sweep that was not made; tests/chain/test_safe_ranks.py makes one.
    text = re.sub(r"## Inside the loop\n.*?(?=\n## )", "", text, flags=re.S)
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    names: dict = {}
    for block in blocks:
        if "my-gpu.json" in block:
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(block, names)
        promised = re.findall(r"^# (.+)$", block, flags=re.M)
        printed = [re.sub(r"\s+", " ", line) for line in out.getvalue().splitlines()]
        if printed:
            assert printed == [re.sub(r"\s+", " ", line) for line in promised]


def test_the_table_of_moduli_is_the_maps(docs):
    m = CliffMap.load("a100-published")
    curves = {
        "attention head_dim": m.curve("attention", "head_dim"),
        "tensor-core GEMM, K near 4096": m.curve("linear", "K", M=512),
        "tensor-core GEMM, N near 4096": m.curve("linear", "N", M=512),
        "GEMM K in 64–128": m.curve("linear", "K", M=2048),
        "GEMM N in 1024–2048": m.curve("linear", "N", M=2048),
        "GEMV K near 4096": m.curve("linear", "K", M=1, N=4096),
    }
    rows = re.findall(r"^\| (.+?) \| (\d+) \| ([\d.]+) % \| (\d+) % \|$",
                      (docs / "write-a-compressor.md").read_text(), flags=re.M)  # fmt: skip
    assert {name for name, *_ in rows} == set(curves)
    for name, modulus, loses, without in rows:
        best = best_modulus(moduli(curves[name]))
        assert best.modulus == int(modulus)
        assert best.loses == pytest.approx(float(loses) / 100, abs=0.0006)
        assert moduli(curves[name])[1].loses == pytest.approx(int(without) / 100, abs=0.006)

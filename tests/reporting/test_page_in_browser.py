"""The page as a reader's browser sets it: at a desk and on a phone, in light and in dark."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from planted import TOKENS, planted_map_of

import gacprof
from gacprof.core.files import write_record
from gacprof.reporting.page import report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FIXTURES = Path(__file__).parents[1] / "fixtures"
ASVD = FIXTURES / "checkpoints" / "asvd_mha_r1"
LOOK = Path(__file__).with_name("look_at_page.js")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of every kind of artefact, on a real GPU's maps and a real bench."""
    folder = tmp_path_factory.mktemp("page")
    results = {
        "diagnosis": gacprof.diagnose(ASVD, "h100"),
        "plan": gacprof.plan(ASVD, "h100"),
        "explanation": gacprof.explain(107, "h100"),
        "lint": gacprof.lint(FIXTURES / "configs" / "gpt-oss-20b.json", gpu="h200", tp=4),
        "trace": gacprof.trace(FIXTURES / "h200" / "ragged.json.gz"),
    }
    for name, result in results.items():
        write_record(folder / f"{name}.json", result)
    planted = planted_map_of(ASVD, dtype="float32")
    plans = gacprof.pareto(ASVD, planted, budgets=(0.9, 1.0), tokens=TOKENS)
    (folder / "pareto.json").write_text(plans.to_json(orient="records"))
    artefacts = [*sorted(folder.glob("*.json")), FIXTURES / "h200" / "bench.json"]
    maps = ("h200-measured", "h200-paper", "a100-published", "cpu-example")
    return report([*maps, *artefacts], folder / "page").read_text(encoding="utf-8")


def faults_of(page: str, width: int, options: list[str], folder: Path) -> list[str]:
    """What the script finds, in a frame of this width: Chromium's windows are no narrower than
    500 pixels."""
    frame = f'<iframe width={width} height=900 srcdoc="{html.escape(page)}"></iframe>'
    look = "onload = () => { document.title = JSON.stringify(faultsOf(frames[0].frameElement)); };"
    script = LOOK.read_text(encoding="utf-8") + look
    (folder / "frame.html").write_text(
        f"<!doctype html><title></title>{frame}<script>{script}</script>", encoding="utf-8"
    )
    command = [str(CHROMIUM), "--headless", "--no-sandbox", *options, "--window-size=1400,1000"]
    command += [f"--user-data-dir={folder}", "--dump-dom", f"file://{folder}/frame.html"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    title = re.search("<title>(.*?)</title>", shown.stdout)
    assert title and title[1], shown.stdout[:500]
    return [str(fault) for fault in json.loads(html.unescape(title[1]))]


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_nothing_is_clipped_broken_or_faint(
    page: str, width: int, mode: str, tmp_path: Path
) -> None:
    options = ["--force-dark-mode"] if mode == "dark" else []
    *faults, seen = faults_of(page, width, options, tmp_path)
    assert seen.startswith(f"paper {mode}")
    assert faults == []


def test_a_fault_is_seen(page: str, tmp_path: Path) -> None:
    broken = page.replace("overflow-wrap: break-word", "overflow-wrap: anywhere; width: 300px")
    *faults, _ = faults_of(broken, 400, [], tmp_path)
    assert any(fault.startswith("broken") for fault in faults)

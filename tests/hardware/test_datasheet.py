"""Published facts of GPUs, each by any of its names and with a source."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain

import pytest

from gacprof.core.errors import ConfigError
from gacprof.devices.at_hand import gpus
from gacprof.hardware.architectures import ARCHITECTURE_TABLES, Architecture, architecture_named
from gacprof.hardware.datasheet import GPU_TABLES, GPUS, find_gpu, gpu_facts
from gacprof.kernels.rules import Rules

TEXTS = ("like", "name", "arch", "drivers")
"""Words of a GPU that are no numbers."""


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("h100", "h100"),
        ("H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("RTX 4090", "rtx4090"),
        ("gb300", "gb300"),
        ("NVIDIA A100-PG509-200", "a100-40gb"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA GB10", "gb10"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100"),
        ("Tesla V100-PCIE-32GB", "v100"),
        ("NVIDIA GeForce RTX 2080 Ti", "rtx2080ti"),
    ],
)
def test_a_gpu_has_many_names(name: str, key: str) -> None:
    assert gpu_facts(name).key == key


@pytest.mark.parametrize("name", ["voodoo2", "NVIDIA A100X", "a100 of a friend", "NVIDIA H100 MIG"])
def test_another_gpu_is_not_taken_for_one_of_the_sheet(name: str) -> None:
    with pytest.raises(ConfigError):
        gpu_facts(name)


def test_a_gpu_without_a_sheet_has_the_rules_of_its_architecture_if_it_has_tiers() -> None:
    assert Rules("NVIDIA A10G").arch == "sm86"
    with pytest.raises(ConfigError, match="sm75"):
        Rules("Tesla T4")


def test_what_is_not_known_is_missing() -> None:
    assert gpu_facts("l4").sms is None and gpu_facts("l4").l2_mib == 48
    assert gpu_facts("h200").sms == 132 and gpu_facts("h200").gb_s == 4800
    assert gpu_facts("gb300").arch == gpu_facts("b300").arch == "sm103"


def test_every_value_has_a_source_and_every_source_a_value() -> None:
    cited = {"unsourced"}
    for row in GPU_TABLES["gpus"].values():
        words = {**row, **row.get("virtual", {})}
        cited |= {words[word][1] for word in words.keys() - {*TEXTS, "virtual"}}
    assert cited == {*GPU_TABLES["sources"], "unsourced"}


def test_gpus_are_those_at_hand_and_those_of_the_sheet() -> None:
    assert [facts for facts in gpus() if not facts.key.startswith("cuda")] == list(GPUS.values())


def test_facts_need_no_torch() -> None:
    code = "import sys, gacprof.devices.at_hand; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("sm90", Architecture("nvidia", "sm90", 90)),
        ("sm120a", Architecture("nvidia", "sm120", 120)),
        ("gfx90a", Architecture("amd", "gfx90a")),
        ("cpu-amx", Architecture("cpu", "cpu-amx")),
        ("any", Architecture("any", "any")),
    ],
)
def test_an_architecture_has_a_vendor_and_nvidias_a_capability(
    name: str, architecture: Architecture
) -> None:
    assert architecture_named(name) == architecture


@pytest.mark.parametrize(
    ("text", "key", "arch"),
    [
        ("NVIDIA A100-SXM4-80GB", "a100", "sm80"),
        ("NVIDIA A100-PCIE-40GB", "a100", "sm80"),
        ("4090", "rtx4090", "sm89"),
        ("a T4 of the cloud", "t4", "sm75"),
        ("MI300X", "mi300x", "gfx942"),
        ("sm100", "sm100", "sm100"),
        ("any", "any", "any"),
    ],
)
def test_a_gpu_is_found_within_a_text(text: str, key: str, arch: str) -> None:
    gpu = find_gpu(text)
    assert (gpu.key, gpu.arch) == (key, arch)


def test_a_text_without_a_gpu_is_refused() -> None:
    with pytest.raises(ConfigError):
        find_gpu("voodoo2")


def test_every_tier_has_a_source_and_an_architecture() -> None:
    tables = ARCHITECTURE_TABLES
    assert {row["source"] for row in tables["tiers"].values()} <= set(tables["sources"])
    served: set[str] = set()
    for row in tables["architectures"].values():
        served.update(chain.from_iterable(row.get("tiers", {}).values()))
    assert served == set(tables["tiers"])

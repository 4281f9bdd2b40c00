"""The data sheets: every number has a source, what has none is missing."""

import tomllib
from importlib import resources

import pytest

from gacprof.core.errors import MapError
from gacprof.core.points import DTYPES
from gacprof.devices.datasheet import sheet, sheets


def test_every_value_of_every_gpu_names_a_source_that_is_listed():
    text = (resources.files("gacprof.devices") / "datasheet.toml").read_text()
    data = tomllib.loads(text)
    sources = data.pop("sources")
    used = set()
    for gpu, table in data.items():
        if gpu == "no-sheet":
            continue
        for key, pair in table.items():
            if key in ("name", "arch", "drivers", "like"):
                continue
            value, source = pair
            assert value > 0 and source in sources, (gpu, key)
            assert key in {"sms", "l2_mib", "gb_s", "memory_gib", *DTYPES}, (gpu, key)
            used.add(source)
    assert used == set(sources)


def test_values_on_which_sources_disagree_are_missing():
    assert sheet("l4").sms is None
    assert sheet("gb200").sms is None
    assert sheet("h100").sms == 132 and sheet("h100-pcie").sms == 114


def test_a_gpu_answers_to_its_drivers_name_and_inherits_from_its_kin():
    assert sheet("NVIDIA H100 80GB HBM3").key == "h100"
    assert sheet("H100 PCIe").key == "h100-pcie"
    assert sheet("A100 40GB").rates == sheet("a100").rates
    for found in sheets().values():
        assert sheet(found.name) is found


def test_an_unknown_gpu_is_refused_with_those_that_there_are():
    with pytest.raises(MapError, match=r"no GPU 'v100' is known: there are a100, .*gb200"):
        sheet("v100")

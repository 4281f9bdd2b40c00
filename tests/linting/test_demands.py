"""The tables of demands: every entry has a source and versions, and is read as it says."""

import pytest

from gacprof.core.errors import LintError
from gacprof.demands.table import SHIPPED, engine, parse_engine
from gacprof.demands.targets import NumberRange, gpu, version
from gacprof.linting import lint

OWN = """
name = "vllm"

[[demand]]
id = "house-rule"
quant = ["none"]
role = ["down"]
K = 4096
outcome = "falls_back"
kernel = "the slow one"
source = "our own server"
version = "all"
"""


@pytest.mark.parametrize("name", SHIPPED)
def test_every_demand_has_a_source_a_version_and_a_name_of_its_own(name):
    demands = engine(name).demands
    assert demands
    assert [d.id for d in demands if not d.source or not d.version] == []
    assert len({d.id for d in demands}) == len(demands)
    refused = [d for d in demands if d.outcome in ("refused", "wrong")]
    assert [d.id for d in refused if not d.says] == []
    assert [d.id for d in demands if d.outcome == "falls_back" and not d.kernel] == []


def test_a_file_of_own_demands_is_added(tmp_path, llama):
    own = tmp_path / "own.toml"
    own.write_text(OWN, encoding="utf-8")
    assert lint(llama).outcome == "ok"
    found = lint(llama, demands=(own,))
    assert found.outcome == "falls_back"
    assert [(row.name, row.size, row.multiple) for row in found.findings] == [("down", 14336, 4096)]
    assert "the slow one" in found.findings[0].why


def test_a_file_may_hold_an_engine_of_its_own(tmp_path, llama):
    own = tmp_path / "own.toml"
    own.write_text(
        OWN.replace("vllm", "ours") + '\n[[demand]]\nid="h"\nrole=["heads"]\nwhole="tp"\n'
        'outcome="refused"\nsays="no"\nsource="s"\nversion="all"\n',
        encoding="utf-8",
    )
    found = lint(llama, engine="ours", demands=(own,), tp=3)
    assert ("attention heads", "refused") in {(r.name, r.outcome) for r in found.products}


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (('source = "our own server"\n', ""), "has no source"),
        (('version = "all"\n', ""), "has no version"),
        (("K = 4096\n", ""), "asks for nothing"),
        (('"falls_back"', '"explodes"'), "outcomes are"),
        (("K = 4096", "Q = 4096"), "nothing is called Q"),
        (("K = 4096", "K = -1"), "K is -1"),
        (("K = 4096", 'K = "grup"'), "give a positive number or group"),
        (("K = 4096", "K = 8\nvalues = 3"), "values are a list"),
        (('role = ["down"]', 'kind = ["dens"]'), "kind is one of"),
        (('"all"', '"~0.3"'), "is no range"),
        (('["none"]', '["int3"]'), "quant is one of"),
        (("[[demand]]", "[[demand"), "not valid TOML"),
        (("the slow one", "{who}"), "in braces"),
    ],
)
def test_an_entry_that_is_not_understood_is_refused_by_name(changed, named):
    with pytest.raises(LintError, match=named):
        parse_engine(OWN.replace(*changed), "own.toml")


@pytest.mark.parametrize(
    ("text", "number", "holds"),
    [
        (">=0.23,<0.29", "0.23", True), (">=0.23,<0.29", "0.28.9", True),
        (">=0.23,<0.29", "0.29.0", False), ("<0.7.3", "0.7", True), ("<0.7.3", "0.7.3", False),
        ("all", "0.1", True), ("==0.8", "0.8.0", True), (">=10000", "b10000+", True),
    ],
)  # fmt: skip
def test_versions_are_compared_as_numbers(text, number, holds):
    assert NumberRange(text).holds(version(number)) is holds


SMS = {
    "A800": 80, "l40s": 89, "NVIDIA H100 80GB HBM3": 90, "b300": 103, "gb200": 100, "rtx5090": 120,
    "RTX 4090": 89, "RTX PRO 6000": 120, "mi300x": None, "any": None, "sm89": 89,
    "NVIDIA A100-SXM4-80GB": 80,
}  # fmt: skip


def test_gpus_are_known_by_name_and_cards_of_one_chip_differ_by_their_memory():
    for name, sm in SMS.items():
        found = gpu(name)
        assert found.sm == sm, name
        assert found.memory_gib or found.is_open or name.startswith("sm")
    assert gpu("a100").memory_gib == 80
    for name in ("a100-40gb", "NVIDIA A100-PCIE-40GB"):
        assert (gpu(name).sm, gpu(name).memory_gib) == (80, 40)


def test_what_is_not_known_names_what_there_is(llama):
    for asked, there in (
        ({"gpu": "h1000"}, "h100"),
        ({"engine": "vlm"}, "sglang"),
        ({"quant": "int3"}, "nvfp4"),
        ({"version": "new"}, "0.32.0"),
    ):
        with pytest.raises(LintError, match=there):
            lint(llama, **asked)

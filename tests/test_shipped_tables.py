"""Every TOML file that comes with gacprof holds what its model says, and no other word."""

from __future__ import annotations

from pathlib import Path
from typing import NotRequired

import pytest
from family_tables import FamilyTables
from gpu_tables import ArchitectureTables, GpuTables, LibraryRow
from kernel_tables import (
    AttentionTables,
    EngineTable,
    FormatTables,
    NameTables,
    PenaltyTables,
)
from typing_extensions import TypedDict

import gacprof
from gacprof.checkpoint.coverage import NEUTRAL_FILE
from gacprof.checkpoint.from_config import FAMILIES
from gacprof.checkpoint.layouts.factors import TABLE as FACTORS_FILE
from gacprof.checkpoint.layouts.factors import Factors
from gacprof.checkpoint.layouts.names import TABLE
from gacprof.checkpoint.layouts.quantised import TABLE as QUANTISED_FILE
from gacprof.checkpoint.layouts.quantised import Rows as QuantisedRows
from gacprof.cli.verbs import VERBS_FILE
from gacprof.core.dtypes import TABLE as DTYPES_FILE
from gacprof.core.dtypes import ElementType
from gacprof.core.errors import ConfigError
from gacprof.core.files import read_table, shipped_table
from gacprof.hardware.architectures import ARCHITECTURES
from gacprof.hardware.datasheet import SHEET
from gacprof.kernels.attention import ATTENTION
from gacprof.kernels.names import NAMES
from gacprof.kernels.ncu import METRICS_FILE
from gacprof.kernels.penalties import TABLE as PENALTIES
from gacprof.kernels.requirements import DEMANDS
from gacprof.lint.products import COUNTS_FILE
from gacprof.reporting.sections import WORDS_FILE
from gacprof.virtual.build import LIBRARIES_FILE
from gacprof.workload.memory import LAYERS_FILE
from gacprof.workload.roles import ROLES_FILE, Rows


class ClassTable(TypedDict):
    """``classes-ENGINE.toml``: names, one a line; ``demands/README.md`` explains the words."""

    read: str
    fallback: str
    native: str
    by_transformers: NotRequired[str]
    unplanned: NotRequired[str]
    dropped: NotRequired[str]
    closed: NotRequired[str]
    without_head_dim: NotRequired[str]
    silu: NotRequired[str]
    oldest: NotRequired[str]
    since: NotRequired[str]


PACKAGE = Path(gacprof.__file__).parent
MODELS: dict[Path, type] = {
    ARCHITECTURES: ArchitectureTables,
    ATTENTION: AttentionTables,
    DEMANDS / "engines.toml": dict[str, list[str]],
    DEMANDS / "formats.toml": FormatTables,
    DTYPES_FILE: dict[str, list[ElementType]],
    FACTORS_FILE: dict[str, list[Factors]],
    FAMILIES: FamilyTables,
    LIBRARIES_FILE: dict[str, LibraryRow],
    METRICS_FILE: dict[str, str],
    NAMES: NameTables,
    NEUTRAL_FILE: dict[str, list[str]],
    PENALTIES: PenaltyTables,
    QUANTISED_FILE: dict[str, QuantisedRows],
    SHEET: GpuTables,
    TABLE: dict[str, dict[str, list[str]]],
    VERBS_FILE: dict[str, dict[str, str]],
    WORDS_FILE: dict[str, dict[str, str]],
    ROLES_FILE: Rows,
    COUNTS_FILE: dict[str, dict[str, list[str]]],
    LAYERS_FILE: dict[str, dict[str, list[str]]],
}
for engine in shipped_table(DEMANDS / "engines.toml", dict[str, list[str]]):
    MODELS[DEMANDS / f"{engine}.toml"] = EngineTable
    MODELS[DEMANDS / f"classes-{engine}.toml"] = ClassTable


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_shipped_tables_hold_what_their_models_say(path: Path) -> None:
    assert read_table(path, MODELS[path])


def test_an_unknown_word_is_refused_with_its_place(tmp_path: Path) -> None:
    text = FAMILIES.read_text(encoding="utf-8")
    broken = tmp_path / "families.toml"
    broken.write_text(
        text.replace("experts_only = true", "expert_only = true", 1), encoding="utf-8"
    )
    with pytest.raises(ConfigError) as refusal:
        read_table(broken, FamilyTables)
    assert str(broken) in str(refusal.value) and "expert_only" in str(refusal.value)


def test_a_condition_that_no_fact_could_meet_is_refused(tmp_path: Path) -> None:
    text = (DEMANDS / "vllm.toml").read_text(encoding="utf-8")
    broken = tmp_path / "vllm.toml"
    broken.write_text(text.replace("{ form = [", "{ froms = [", 1), encoding="utf-8")
    with pytest.raises(ConfigError):
        read_table(broken, EngineTable)


def test_every_shipped_table_has_a_model() -> None:
    shipped = {path for path in PACKAGE.rglob("*.toml") if path.parent.name != "suites"}
    assert {path.name for path in shipped - set(MODELS)} <= {"roles.toml"}

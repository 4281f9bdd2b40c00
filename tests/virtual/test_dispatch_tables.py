"""Shipped dispatch tables: what they hold, how they are read, and answers recorded before."""

from __future__ import annotations

import csv
import math
import random
import re
from itertools import product
from pathlib import Path

import pytest

from gacprof.core.errors import GacprofError
from gacprof.kernels.dispatch import (
    DispatchTable,
    Section,
    load_table,
    parse_table,
    sdpa_shape,
    shipped_tables,
)
from gacprof.reporting.sections import section_of
from gacprof.virtual.ask import DispatchChanges, dispatch, to_runs
from gacprof.virtual.profiles import gpus, profile

RECORDS = Path(__file__).parent.parent / "fixtures" / "dispatch"
RECORDED_RELEASE = "2.14.1"
BACKENDS = {"flash", "efficient", "cudnn", "math"}


def records(name: str, gpu: str | None = None) -> list[dict[str, str]]:
    with (RECORDS / name).open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if gpu in (None, row["gpu"])]


def recorded_gpus(name: str) -> list[str]:
    return sorted({row["gpu"] for row in records(name)})


def spelled(kernel: str) -> tuple[str, list[str]]:
    """A kernel's function and the numbers among its template arguments."""
    function = re.match(r"\w+", kernel)
    assert function is not None
    return function[0], re.findall(r"(?<![\w])-?\d+(?!\w)", kernel)


def table_of(gpu: str, release: str | None = RECORDED_RELEASE) -> DispatchTable:
    table = load_table(gpu, release)
    assert table is not None
    return table


def test_every_profiled_gpu_has_a_table_of_the_newest_release() -> None:
    releases = dict(shipped_tables())  # the newest comes last
    assert set(releases) == set(gpus())
    assert len(set(releases.values())) == 1


@pytest.mark.parametrize(("gpu", "release"), shipped_tables())
def test_a_table_says_what_it_is(gpu: str, release: str) -> None:
    table = table_of(gpu, release)
    assert (table.gpu, table.release) == (gpu, release)
    assert table.provenance.startswith(f"by PyTorch {release}'s dispatcher on a virtual ")
    assert table.provenance.endswith("no kernel was run")
    assert table.versions["torch"].startswith(release)
    assert table.device == profile(gpu).name


@pytest.mark.parametrize(("gpu", "release"), shipped_tables())
def test_every_key_answers_at_every_size_of_its_range_and_at_no_other(
    gpu: str, release: str
) -> None:
    step = 1 if gpu == "h100" else 13  # all sizes of one GPU, which takes seconds
    for section in table_of(gpu, release).sections.values():
        first, last = section.range
        for key in section.keys:
            assert all(section.lookup(s, *key) is not None for s in range(first, last + 1, step))
            assert section.lookup(last, *key) is not None
            assert section.lookup(first - 1, *key) is None
            assert section.lookup(last + 1, *key) is None


@pytest.mark.parametrize(("gpu", "release"), shipped_tables())
def test_attention_names_a_backend_and_where_known_its_kernel(gpu: str, release: str) -> None:
    table = table_of(gpu, release)
    for head_dim in range(1, 513):
        for q_len in (1, 7, 512):
            answer = table.sdpa(head_dim, "bfloat16", q_len, 512, causal=True)
            assert answer is not None
            assert answer.backend in BACKENDS
            assert (answer.kernel is not None) == (answer.backend in ("flash", "efficient"))


def test_what_was_not_asked_has_no_answer() -> None:
    table = table_of("h100")
    assert table.sdpa(513) is None
    assert table.sdpa(64, "float64") is None
    assert table.fa2(257) is None
    assert table.rows("gelu", 64) is None
    assert table.rows("softmax", 64, tokens=65) is None
    assert load_table("gtx1080") is None
    assert load_table("h100", "1.13") is None


@pytest.mark.parametrize(("gpu", "release"), shipped_tables())
def test_triton_loads_sixteen_bytes_of_rows_that_are_multiples_of_sixteen(
    gpu: str, release: str
) -> None:
    table = table_of(gpu, release)
    for dtype, bytes_each in (("bfloat16", 2), ("float32", 4)):
        for size in range(2, 257):
            load = 16 if size % 16 == 0 else bytes_each
            assert table.stream("row_sum", size, dtype).startswith(f"loads of {load} bytes, ")


def test_a_release_is_named_as_torch_names_it() -> None:
    assert table_of("h100", "2.14").release == RECORDED_RELEASE
    assert table_of("h100", "2.14.1+cu130").release == RECORDED_RELEASE
    assert table_of("h100", None).release == shipped_tables()[-1][1]


def test_a_table_of_another_schema_is_refused() -> None:
    with pytest.raises(GacprofError, match="dispatch table"):
        parse_table('{"schema": "gacprof.dispatch/2"}')


@pytest.mark.parametrize(
    ("lengths", "shape"),
    [
        ((1, 1), "q = kv = 1"),
        ((1, 9), "q = 1 < kv"),
        ((9, 1), "q > kv = 1"),
        ((9, 9), "q = kv > 1"),
        ((2, 9), "1 < q < kv"),
        ((9, 2), "q > kv > 1"),
    ],
)
def test_lengths_have_one_kind(lengths: tuple[int, int], shape: str) -> None:
    assert sdpa_shape(*lengths) == shape


@pytest.mark.parametrize("seed", range(40))
def test_runs_hold_every_answer(seed: int) -> None:
    draw = random.Random(seed)
    first = draw.randint(1, 9)
    answers: list[int] = []
    for _ in range(draw.randint(1, 8)):
        pattern = [draw.randint(0, 2) for _ in range(draw.choice((1, 2, 8, 5)))]
        answers += (pattern * 40)[: draw.randint(1, 40)]
    runs = to_runs(first, answers)
    data = {"by": [], "range": [], "answers": [0, 1, 2], "runs": [runs], "rows": [[0]]}
    section = Section(**data)
    assert [section.lookup(first + i) for i in range(len(answers))] == answers


@pytest.mark.parametrize("gpu", recorded_gpus("fa2.csv"))
def test_flash_attention_is_as_recorded(gpu: str) -> None:
    for row in records("fa2.csv", gpu):
        shape = "decode" if row["q_len"] == "1" else "prefill"
        causal = row["causal"] == "True"
        answer = table_of(gpu).fa2(int(row["head_dim"]), shape=shape, causal=causal)
        assert answer is not None
        assert answer["template"] == int(row["template"])
        assert answer["tile"] == [int(row["block_m"]), int(row["block_n"])]
        assert answer["warps"] == int(row["warps"])


@pytest.mark.parametrize("gpu", recorded_gpus("rows.csv"))
def test_rows_are_as_recorded(gpu: str) -> None:
    recorded: dict[tuple[str, int], list[str]] = {}
    for row in records("rows.csv", gpu):
        key = (row["operator"], int(row["size"]))
        recorded.setdefault(key, []).append(spelled(row["kernel"]))
    for (operator, size), names in recorded.items():
        kernels = table_of(gpu).rows(operator, size)
        assert kernels is not None
        assert [spelled(kernel) for kernel in kernels.split(" + ")] == names


@pytest.mark.parametrize("gpu", recorded_gpus("refusals.csv"))
def test_refusals_are_as_recorded(gpu: str) -> None:
    for row in records("refusals.csv", gpu):
        accepted = []
        for size in range(1, 129):
            answer = table_of(gpu).product(row["operator"], row["axis"], size)
            assert answer is not None
            if not answer.startswith("refused"):
                accepted.append(size)
        assert str(min(accepted, default="")) == row["first"]
        assert str(math.gcd(*accepted) or "") == row["multiple"]


def changes(gpu: str, before: str, after: str) -> DispatchChanges:
    result = dispatch(gpu, release=(before, after))
    assert isinstance(result, DispatchChanges)
    return result


@pytest.mark.parametrize(
    ("gpu", "before", "after"), [("b200", "2.14", "2.15"), ("h100", "2.13", "2.15")]
)
def test_changes_between_releases_are_all_and_only_those(gpu: str, before: str, after: str) -> None:
    old, new = table_of(gpu, before), table_of(gpu, after)
    truth, said = set(), set()
    for name, section in new.sections.items():
        for key in section.keys:
            for size in range(1, section.range[1] + 1):
                answers = old.sections[name].lookup(size, *key), section.lookup(size, *key)
                if answers[0] != answers[1]:
                    truth.add((name, key, size, *map(str, answers)))
    for change in changes(gpu, before, after).changes:
        section = new.sections[change.section]
        values = []
        for part, column in zip(section.by, zip(*section.keys, strict=True), strict=True):
            values.append(change.questions.get(part, set(column)))
        answers = str(change.before), str(change.after)
        for key, size in product(product(*values), change.sizes):
            if key in section.keys:
                said.add((change.section, key, size, *answers))
    assert truth and said == truth


def test_the_same_release_changes_nothing() -> None:
    result = changes("a100", "2.15", "2.15.0")
    assert result.changes == ()
    assert not section_of(result).rows


def test_three_releases_or_a_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GacprofError):
        dispatch("a100", release=("2.13", "2.14", "2.15"))
    with pytest.raises(GacprofError):
        dispatch("a100", release=("2.13", "2.15"), out=tmp_path / "table.json")
    with pytest.raises(GacprofError):
        dispatch("a100", release=("2.1", "2.15"))

"""Run folders and suites that are damaged, forged, unfinished or absurd."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from planted import write_run
from recorded_device import RecordedDevice

from gacprof.core.errors import MeasurementError, SuiteError
from gacprof.diagnosing import diagnose
from gacprof.sweeping import build_map_of, read_blocks, run_sweep
from gacprof.sweeping.store import JOURNAL, PARQUET, RunFolder, read_notes
from gacprof.sweeping.suite import load_suite, parse_suite


def suite(curves: int = 2):
    tables = [
        {
            "operator": "linear", "axis": "K", "values": [{"from": 64, "to": 72}],
            "dims": {"M": 4, "N": 32 * (n + 1)}, "dtype": "float32", "flags": {"bias": False},
        }
        for n in range(curves)
    ]  # fmt: skip
    timing = {"blocks": 6, "most_blocks": 6}
    return parse_suite({"name": "small", "timing": timing, "sweep": tables}, "a test")


def swept(folder: Path, curves: int = 2) -> Path:
    run_sweep(suite(curves), RecordedDevice(lambda point: 10.0 + point.dim["K"]), folder)
    return folder


def without_the_last_curve(folder: Path) -> None:
    """As an interrupt before its first block leaves it."""
    header = json.loads((folder / "run.json").read_text())
    blocks = [b for b in read_blocks(folder) if b.calls[0].point.dim["N"] == 32]
    write_run(folder, header, blocks, read_notes(folder))


def test_a_map_of_an_unfinished_sweep_says_so_everywhere(run, tmp_path):
    folder = swept(tmp_path / "run")
    assert run("map", "build", folder).code == 0
    without_the_last_curve(folder)
    message = run("map", "build", folder)
    assert message.code == 1 and "1 curve of the suite not measured" in message.err
    assert "N=64" in message.err and f"gacprof sweep --resume --out {folder}" in message.err
    loaded = build_map_of(folder)
    assert len(loaded.file.unmeasured) == 1
    assert "incomplete" in run("map", "show", folder / "cliffmap.json").out


def test_a_diagnosis_by_an_unfinished_map_says_so(tmp_path):
    from gacprof.demo.models import write_demo_checkpoint

    folder = swept(tmp_path / "run")
    without_the_last_curve(folder)
    found = diagnose(write_demo_checkpoint(tmp_path / "model"), build_map_of(folder))
    assert any("the map is incomplete: 1 curves" in note for note in found.notes)


@pytest.mark.slow
def test_every_flipped_byte_of_the_samples_is_found_or_harmless(tmp_path):
    folder = swept(tmp_path / "run", curves=1)
    file, good = folder / PARQUET, (folder / PARQUET).read_bytes()
    before = [[call.us for call in block.calls] for block in read_blocks(folder)]
    draw, refused = random.Random(0), 0
    for _ in range(300):
        at = draw.randrange(len(good))
        bad = bytearray(good)
        bad[at] ^= 1 << draw.randrange(8)
        file.write_bytes(bytes(bad))
        try:
            after = [[call.us for call in block.calls] for block in read_blocks(folder)]
        except MeasurementError as error:
            assert str(file) in str(error) or "samples" in str(error)
            refused += 1
        else:
            assert after == before, at
    assert refused > 100


def test_a_sample_filed_under_another_points_id_is_refused(tmp_path):
    import pandas as pd

    folder = swept(tmp_path / "run", curves=1)
    frame = pd.read_parquet(folder / PARQUET)
    frame["dims"] = frame["dims"].cat.rename_categories(
        lambda text: text.replace('"K": 64', '"K": 96')
    )
    frame.to_parquet(folder / PARQUET)
    with pytest.raises(MeasurementError, match="filed as another point"):
        read_blocks(folder)


def test_a_time_of_centuries_is_no_time(tmp_path):
    folder = swept(tmp_path / "run", curves=1)
    store = RunFolder(folder)
    block = read_blocks(folder)[-1]
    row = {"number": block.number + 1, "process": 0, "axis": "K", "timer": "recorded",
           "taken_at": 0.0, "calls": [[block.calls[0].point.id, 0, 1e300, 0]]}  # fmt: skip
    (store.path / JOURNAL).write_text(json.dumps({"block": row}) + "\n")
    with pytest.raises(MeasurementError, match="no duration"):
        read_blocks(folder)


@pytest.mark.parametrize("where", ["timer", "kernels"])
def test_text_that_cannot_be_written_again_is_garbled(tmp_path, where):
    """Half a surrogate pair in a journal would end in a traceback when a map is saved."""
    folder = swept(tmp_path / "run", curves=1)
    block = read_blocks(folder)[-1]
    row = {"number": block.number + 1, "process": 0, "axis": "K", "timer": "a\ud800",
           "taken_at": 0.0, "calls": [[block.calls[0].point.id, 0, 1.0, 0]]}  # fmt: skip
    point = block.calls[0].point
    note = {"operator": point.operator, "dims": point.dim, "dtype": point.dtype,
            "flags": point.flag, "kernels": ["a\ud800"], "failed": ""}  # fmt: skip
    entry = {"block": row} if where == "timer" else {"points": [note]}
    (folder / JOURNAL).write_text(json.dumps(entry) + "\n")
    with pytest.raises(MeasurementError, match="garbled"):
        read_blocks(folder)


def test_a_reader_sees_every_block_while_the_journal_is_folded(tmp_path, monkeypatch):
    """The fold happens between the reader's two files, whichever it reads first."""
    folder = swept(tmp_path / "run", curves=1)
    blocks, notes = read_blocks(folder), read_notes(folder)
    header = json.loads((folder / "run.json").read_text())
    write_run(folder, header, blocks[:3], notes)
    store = RunFolder(folder)
    for block in blocks[3:]:
        store.append(block)
    import gacprof.sweeping.store as module

    read = module._parquet_blocks

    def folding_first(file):
        monkeypatch.setattr(module, "_parquet_blocks", read)
        store.fold()
        return read(file)

    monkeypatch.setattr(module, "_parquet_blocks", folding_first)
    assert [block.number for block in read_blocks(folder)] == [b.number for b in blocks]


ABSURD = {
    "combinations": "dims = {{ M = {many}, N = {many} }}",
    "digits": "dims = {{ M = 1, N = {digits} }}",
    "nested": "dims = {{ M = 1, N = {nested} }}",
}


@pytest.mark.parametrize("kind", ABSURD)
def test_an_absurd_suite_is_refused_at_once(kind, tmp_path):
    line = ABSURD[kind].format(
        many=list(range(1, 4001)), digits="9" * 5000, nested="[" * 3000 + "1" + "]" * 3000
    )
    file = tmp_path / "absurd.toml"
    file.write_text(
        f'name = "absurd"\n[[sweep]]\noperator = "linear"\naxis = "K"\nvalues = [64]\n{line}\n'
    )
    with pytest.raises(SuiteError) as refused:
        load_suite(file).curves("cpu")
    assert str(file) in str(refused.value) and "\n" not in str(refused.value)


def test_a_huge_suite_file_is_not_parsed(tmp_path):
    file = tmp_path / "huge.toml"
    file.write_text("a" + ".a" * 3_000_000 + " = 1\n")
    with pytest.raises(SuiteError, match="more than 4,000,000 characters"):
        load_suite(file)


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "none", "--map", "a100-published", "--pin", "*=" + "9" * 5000),
        ("map", "candidates", "a100-published", "--op", "linear", "--axis", "K", "--near", "64",
         "--fixed", "M=" + "9" * 5000),
        ("map", "candidates", "a100-published", "--op", "linear", "--axis", "K", "--near", "64",
         "--window", "9" * 5000),
        ("sweep", "quick", "--budget", "9" * 400),
    ],
    ids=["pin", "fixed", "window", "budget"],
)  # fmt: skip
def test_numbers_of_thousands_of_digits_are_refused_in_a_line(run, arguments):
    message = run(*arguments)
    assert message.code == 2 and message.err.count("\n") == 1 and "Traceback" not in message.err


def test_no_verb_replaces_a_file_that_is_not_its_own(run, tmp_path):
    folder = swept(tmp_path / "run")
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    assert run("map", "build", folder, "--out", notes).code == 2
    assert run("map", "export", "a100-published", "--out", notes).code == 2
    assert run("map", "table", "a100-published", "--table", "A2", "--out", notes).code == 2
    assert notes.read_text() == "mine"
    out = tmp_path / "export.json"
    for _ in range(2):  # its own it may
        assert run("map", "build", folder).code == 0
        assert run("map", "export", "a100-published", "--out", out).code == 0


@pytest.mark.parametrize(
    "damage",
    [
        {"environment": {}},
        {"environment": {"kind": "cpu\ncpu", "name": "a", "arch": "b"}},
        {"suite": []},
        {"suite_hash": 7},
        {"timer": None},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_a_resume_by_a_garbled_header_is_refused_in_a_line(run, tmp_path, damage):
    folder = swept(tmp_path / "run")
    header = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(header | damage))
    for message in (
        run("sweep", "--resume", "--device", "cpu", "--no-isolate", "--out", folder),
        run("evidence", "static", folder),
        run("explain", "a100-published", "--samples", folder),
    ):
        assert message.code == 2 and message.err.count("\n") == 1, message


@pytest.mark.parametrize(
    "damage",
    [
        {"number": float("inf")},
        {"number": 2**70},
        {"taken_at": float("nan")},
        {"power_w": "much"},
        {"sm_clock_mhz": 10**30},
    ],
    ids=lambda damage: next(iter(damage)),
)
def test_a_garbled_block_is_refused_before_it_is_folded(tmp_path, damage):
    folder = swept(tmp_path / "run", curves=1)
    blocks, notes = read_blocks(folder), read_notes(folder)
    header = json.loads((folder / "run.json").read_text())
    write_run(folder, header, blocks[:-1], notes)
    store = RunFolder(folder)
    store.append(blocks[-1])
    store.close()
    entry = json.loads((folder / JOURNAL).read_text())
    (folder / JOURNAL).write_text(json.dumps({"block": entry["block"] | damage}) + "\n")
    with pytest.raises(MeasurementError, match="garbles a field"):
        run_sweep(suite(1), RecordedDevice(lambda point: 10.0), folder, resume=True)

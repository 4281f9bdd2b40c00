"""A run's folder: what is kept in it, what damage to it is told, and whose it is not."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from planted import write_run
from test_run import FEWEST, device, suite

from gacprof.core.errors import MeasurementError
from gacprof.core.points import Environment
from gacprof.sweeping import build_map_of, read_blocks, store
from gacprof.sweeping.results import environment_of, read_samples, suite_of
from gacprof.sweeping.run import run_sweep
from gacprof.sweeping.store import JOURNAL, PARQUET, RunFolder, read_notes


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """A folder of a finished sweep."""
    folder = tmp_path_factory.mktemp("measured") / "run"
    run_sweep(suite(), device(), folder)
    return folder


@pytest.fixture
def finished(measured, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(measured, tmp_path / "run"))


@pytest.fixture
def stopped(tmp_path):
    """A folder whose journal was not folded: its process ended after 6 blocks."""
    with pytest.raises(ZeroDivisionError):
        run_sweep(suite(), device(), tmp_path / "run", progress=lambda done, *_: 1 / (6 - done))
    return tmp_path / "run"


# what is kept


def test_header_suite_and_device_are_kept_with_the_run(tmp_path):
    run_sweep(suite(), device(environment=CPU), tmp_path / "run")
    assert environment_of(tmp_path / "run") == CPU
    assert suite_of(tmp_path / "run").hash == suite().hash
    header = json.loads((tmp_path / "run" / "run.json").read_text())
    assert header["schema"] == "gacprof.run/2" and header["suite"]["name"] == "t"


def test_calls_read_as_a_table_with_position_and_predecessor(finished):
    frame = pd.read_parquet(finished / PARQUET)
    first = frame[frame["block"] == 0]
    assert first["position"].tolist() == list(range(len(first)))
    assert first["predecessor"].isna().tolist() == [True] + [False] * (len(first) - 1)
    assert first["predecessor"].tolist()[1:] == first["point"].tolist()[:-1]


def test_a_torn_last_line_is_dropped_and_its_block_measured_again(stopped):
    assert len(read_blocks(stopped)) == 6
    os.truncate(stopped / JOURNAL, (stopped / JOURNAL).stat().st_size - 40)
    assert len(read_blocks(stopped)) == 5
    assert run_sweep(suite(), device(), stopped, resume=True).unfinished == 0
    assert [b.number for b in read_blocks(stopped)] == list(range(len(read_blocks(stopped))))


def test_a_reader_sees_every_block_while_the_journal_is_folded(finished, monkeypatch):
    """The fold happens between the reader's two files, whichever it reads first."""
    blocks, notes = read_blocks(finished), read_notes(finished)
    write_run(finished, json.loads((finished / "run.json").read_text()), blocks[:3], notes)
    folder = RunFolder(finished)
    folder.append(*blocks[3:])
    read = store._parquet_blocks

    def folding_first(file):
        monkeypatch.setattr(store, "_parquet_blocks", read)
        folder.fold()
        return read(file)

    monkeypatch.setattr(store, "_parquet_blocks", folding_first)
    assert [block.number for block in read_blocks(finished)] == [b.number for b in blocks]


def test_a_sweep_killed_before_its_header_was_written_can_begin_again(tmp_path):
    (tmp_path / ".lock").touch()
    (tmp_path / ".run.json.x1y2").touch()
    assert run_sweep(suite(), device(), tmp_path).blocks == FEWEST


# damage


def field(name, value):
    """A block's line with another value."""

    def changed(line):
        entry = json.loads(line)
        entry["block"][name] = value(entry["block"]) if callable(value) else value
        return json.dumps(entry)

    return changed


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda line: line[:-9], r"line \d is garbled: delete that line"),
        (field("timer", "a\ud800"), "is garbled"),  # a traceback when a map is saved
        (lambda line: line.replace('"process"', '"protest"'), "lacks or garbles a field"),
        (lambda line: line.replace('[["', '[["0'), "lacks or garbles a field"),
        (field("calls", lambda b: [[b["calls"][0][0], 0, 1e300, 0]]), "no duration"),
        (field("number", float("inf")), "lacks or garbles a field"),
        (field("number", 2**70), "lacks or garbles a field"),
        (field("taken_at", float("nan")), "lacks or garbles a field"),
        (field("power_w", "much"), "lacks or garbles a field"),
        (field("sm_clock_mhz", 10**30), "lacks or garbles a field"),
    ],
)
def test_a_damaged_journal_is_refused_before_it_is_folded(stopped, damage, message):
    *lines, last = (stopped / JOURNAL).read_text().splitlines()
    (stopped / JOURNAL).write_text("\n".join([*lines, damage(last)]) + "\n")
    for read in (read_blocks, lambda path: run_sweep(suite(), device(), path, resume=True)):
        with pytest.raises(MeasurementError, match=message):
            read(stopped)


def cut_short(file):
    os.truncate(file, file.stat().st_size - 20)


def filed_as_another(file):
    frame = pd.read_parquet(file)
    frame["dims"] = frame["dims"].cat.rename_categories(
        lambda text: text.replace('"K": 96', '"K": 97')
    )
    frame.to_parquet(file)


def of_endless_rows(file):
    """A few kilobytes that stand for hundreds of thousands of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    many = pq.read_table(file).slice(0, 1).take(pa.array([0] * 700_000, pa.int32()))
    pq.write_table(many, file, compression="zstd")
    assert file.stat().st_size < 300_000


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_short, "not readable as samples"),
        (filed_as_another, "filed as another point"),
        (of_endless_rows, "would unfold to 700,000 rows"),
    ],
)
def test_damaged_samples_are_refused(finished, damage, message):
    damage(finished / PARQUET)
    with pytest.raises(MeasurementError, match=message):
        read_samples(finished)


@pytest.mark.parametrize("name", [store.RUN, store.POINTS, JOURNAL, PARQUET])
def test_what_is_no_regular_file_is_told_and_not_waited_for(finished, name):
    (finished / name).unlink(missing_ok=True)
    os.mkfifo(finished / name)
    with pytest.raises(MeasurementError, match="no regular file"):
        build_map_of(finished)


def test_a_folder_of_an_earlier_gacprof_names_the_command(finished):
    header = finished / "run.json"
    header.write_text(header.read_text().replace("gacprof.run/2", "gacprof.run/1"))
    for ask in (environment_of, build_map_of):
        with pytest.raises(MeasurementError, match=r"sweep again into another folder \(gacprof"):
            ask(finished)


# whose it is


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (suite((96, 104, 107, 120)), "sweep[0].values lost 112 and gained 120."),
        (suite(budget_s=9), "timing.budget_s was unset, now 9.0."),
        (suite(blocks=8, seed=3), "timing.blocks was 12, now 8; timing.seed was 0, now 3."),
        (suite(range(1, 99)), "gained 1, 2, 3, 4, 5 and "),
    ],
)
def test_a_changed_suite_is_refused_key_by_key(finished, new, message):
    with pytest.raises(MeasurementError) as error:
        run_sweep(new, device(), finished, resume=True)
    assert message in str(error.value)


CPU = Environment("cpu", "a CPU", "x86_64", {"threads": 2, "cores_allowed": 2}, {"torch": "2.13.0"})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "another"}, "name was 'a CPU', here it is 'another'"),
        ({"arch": "aarch64"}, "arch was 'x86_64', here it is 'aarch64'"),
        ({"stack": {"torch": "2.14.0"}}, "stack was .*2.13.0.*, here it is .*2.14.0"),
        ({"facts": {"threads": 1, "cores_allowed": 2}}, "with 2 threads, here there are 1"),
        ({"facts": {"threads": 2, "cores_allowed": 1}}, "2 cores that it may use, here there are"),
        ({}, "timed by 'recorded', here it would be by cuda-events"),
    ],
)
def test_resuming_elsewhere_or_under_other_conditions_is_refused(tmp_path, changed, message):
    run_sweep(suite(), device(environment=CPU), tmp_path / "run")
    here = device(environment=replace(CPU, **changed))
    here.timer = here.timer if changed else "cuda-events"
    with pytest.raises(MeasurementError, match=message):
        run_sweep(suite(), here, tmp_path / "run", resume=True)


def test_two_sweeps_do_not_share_a_folder(tmp_path):
    held = RunFolder(tmp_path / "run")
    held.lock()
    with pytest.raises(MeasurementError, match="another sweep is writing"):
        run_sweep(suite(), device(), tmp_path / "run")
    held.close()
    run_sweep(suite(), device(), tmp_path / "run")


def test_a_lock_is_not_written_through_a_link(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / store.LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic links"):
        RunFolder(tmp_path / "run").lock()
    assert (tmp_path / "mine").read_text() == "mine"


def test_what_is_there_is_neither_overwritten_nor_added_to(finished, tmp_path):
    before = {path: path.read_bytes() for path in finished.iterdir()}
    with pytest.raises(MeasurementError, match="--resume"):
        run_sweep(suite(), device(), finished)
    (finished / "run.json").unlink()
    for resume in (False, True):
        with pytest.raises(MeasurementError, match=r"samples without their run\.json"):
            run_sweep(suite((1, 2)), device(), finished, resume=resume)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(MeasurementError, match="is a file"):
        run_sweep(suite(), device(), tmp_path / "file")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(MeasurementError, match=r"holds no sweep, but config\.json"):
        run_sweep(suite(), device(), tmp_path / "model")
    assert (finished / PARQUET).read_bytes() == before[finished / PARQUET]
    assert (tmp_path / "file").read_text() == "mine"
    assert [entry.name for entry in (tmp_path / "model").iterdir()] == ["config.json"]

"""The first hour on a GPU (N5 of the review): its commands are ones that exist, no limit loses what
was measured, and its archive comes back whole."""

import io
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import first_gpu_hour as hour
import pytest
import typer
from first_gpu_hour import Step
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gacprof.cli.app import app
from gacprof.sweeping import load_suite

ROOT = Path(__file__).resolve().parents[1]
STEPS = [step for part in (1, 2, 3) for step in hour.steps(part, "cuda", ROOT)]


def parsed(arguments):
    """The names of the command that takes these arguments; raises a usage error if none does."""
    command, names = typer.main.get_command(app), []
    context = command.make_context("gacprof", list(arguments))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
        names.append(name)
    return names


OURS = [step for step in STEPS if step.command[:3] == hour.GACPROF]


def test_n5_every_command_of_ours_takes_its_arguments():
    assert len({step.name for step in STEPS}) == len(STEPS) > len(OURS) > 0
    for step in OURS:
        names = parsed(step.command[3:])
        assert names and names == list(step.command[3 : 3 + len(names)]), step.name
    for wrong in (["sweep", "--devise", "cuda"], ["mapp"], ["map", "built", "x"]):
        with pytest.raises(Exception, match="No such"):
            parsed(wrong)


def test_n5_every_script_and_test_exists_and_scripts_know_their_options():
    options = {}
    for step in STEPS:
        if "pytest" in step.command:
            assert Path(step.command[-1]).is_dir() and "gpu" in step.command
        elif step.command[0] == sys.executable and step.command[1].endswith(".py"):
            asked = {word for word in step.command if word.startswith("--")}
            options.setdefault(step.command[1], set()).update(asked)
    assert options
    for script, asked in options.items():
        shown = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True,
                              cwd=ROOT)  # fmt: skip
        assert shown.returncode == 0 and all(option in shown.stdout for option in asked), script


def test_n5_what_the_package_imports_is_in_the_image_or_carried():
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = table["optional-dependencies"]
    wanted = [*table["dependencies"], *extras["measure"], *extras["models"]]
    names = {canonicalize_name(Requirement(one).name) for one in wanted}
    assert names <= {"gacprof", *hour.IMAGE, *hour.CARRIED}


def test_n5_full_is_swept_by_one_process_in_its_short_time(tmp_path):
    (step,) = (step for step in STEPS if step.name == "suite")
    subprocess.run(step.command, cwd=tmp_path, check=True)
    made, whole = load_suite(str(tmp_path / "full.toml")), load_suite("full")
    assert made.timing.processes == 1 and made.points("cuda") == whole.points("cuda")


# --- a part --------------------------------------------------------------------------------------


def shell(name, script, limit_s=60, **more):
    return Step(name, limit_s, ("bash", "-c", script), **more)


@pytest.fixture
def part(tmp_path, monkeypatch):
    """Runs the steps given as part 1; returns what its archive holds."""
    monkeypatch.setattr(hour.signal, "signal", lambda *_: None)

    def run(*steps, seconds=60.0, **more):
        monkeypatch.setattr(hour, "steps", lambda *_: list(steps))
        hour.run_part(1, "cuda", tmp_path / "part", tmp_path / "out", seconds, 1.0)
        return contents(tmp_path / "out", tmp_path / "back")

    return run


def contents(archives, back):
    back.mkdir(exist_ok=True)
    hour.unpack(list(archives.iterdir()), back)
    return {p.relative_to(back).as_posix(): p.read_bytes() for p in back.rglob("*") if p.is_file()}


def ends(found):
    return [line.split("\t")[1:3] for line in found["steps-1.tsv"].decode().splitlines()]


def test_n5_every_step_leaves_a_log_and_its_exit_code_and_the_next_one_runs(part):
    found = part(
        shell("one", "mkdir run; echo 7 > run/samples; echo said"),
        shell("two", "echo no >&2; exit 3"),
        Step("three", 9, ("no-such-program",)),
    )
    assert ends(found)[:2] == [["one", "0"], ["two", "3"]] and "No such file" in ends(found)[2][1]
    assert found["run/samples"] == b"7\n" and found["one.log"] == b"said\n"
    assert found["two.log"] == b"no\n"
    late = part(shell("one", "true"), seconds=hour.ENDING_S + 1.0)
    assert ends(late)[-1] == ["one", "no time left"]


def test_n5_a_step_that_outlasts_its_limit_is_cut_with_all_that_it_started(part, monkeypatch):
    monkeypatch.setattr(hour, "ENDING_S", 5)
    found = part(
        shell("long", "echo begun; trap 'echo ended' INT; sleep 100 & wait", limit_s=1),
        shell("next", "true"),
    )
    assert ends(found) == [["long", "cut after 1 s"], ["next", "0"]]
    assert found["long.log"].startswith(b"begun")


def test_n5_what_a_part_made_before_is_not_made_again(part, tmp_path):
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "kept").write_text("before")
    found = part(shell("one", "echo anew > kept", made="kept"), shell("two", "true"))
    assert found["kept"] == b"before" and ends(found) == [["two", "0"]]


def test_n5_a_part_that_is_killed_has_left_the_archive_of_its_last_step(
    part, tmp_path, monkeypatch
):
    def killed(step, *_):
        raise SystemExit(143)

    run = hour.run
    monkeypatch.setattr(
        hour, "run", lambda step, *a: (killed if step.name == "b" else run)(step, *a)
    )
    with pytest.raises(SystemExit):
        part(shell("a", "echo 1 > made"), shell("b", "true"))
    assert contents(tmp_path / "out", tmp_path / "back")["made"] == b"1\n"


def test_n5_a_large_archive_comes_back_from_its_pieces(part, tmp_path, monkeypatch):
    monkeypatch.setattr(hour, "CHUNK_BYTES", 1000)
    found = part(shell("one", "head -c 5000 /dev/urandom > noise; cp noise weights.safetensors"))
    assert len(found["noise"]) == 5000 and "weights.safetensors" not in found
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names[0] == "part1.tar.gz.00" and len(names) > 4


def test_n5_an_archive_writes_nothing_outside_its_folder(tmp_path):
    with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as packed:
        member = tarfile.TarInfo("../outside")
        member.size = 3
        packed.addfile(member, io.BytesIO(b"bad"))
    (tmp_path / "in").mkdir()
    with pytest.raises(tarfile.OutsideDestinationError):
        hour.unpack([tmp_path / "bad.tar.gz"], tmp_path / "in")
    assert not (tmp_path / "outside").exists()


def test_n5_a_run_that_makes_no_map_is_a_row_of_its_own(part, tmp_path):
    part(shell("swept", "mkdir broken && echo '{}' > broken/run.json"))
    hour.read(list((tmp_path / "out").iterdir()), tmp_path / "read")
    text = (tmp_path / "read" / "rows.md").read_text()
    assert "| broken | no map: exit code 2 |" in text and "- part 1, swept: 0 after" in text

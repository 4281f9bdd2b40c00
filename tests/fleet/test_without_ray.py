"""What is said where Ray is not installed, and what needs none."""

import sys

import pytest

from gacprof.core.errors import MeasurementError
from gacprof.core.tasks import Tasks
from gacprof.extras.fleet.on_ray import connected, tasks_on


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(MeasurementError, match=r"pip install 'gacprof\[fleet\]'"),
        connected("auto"),
    ):
        pass


def test_tasks_run_here_unless_an_address_is_given():
    with tasks_on(None, "cpu") as tasks:
        assert type(tasks) is Tasks and tasks.submit(max, 1, 2)() == 2

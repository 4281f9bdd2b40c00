"""How threads wait while something is timed."""

import os

import pytest

from gacprof.devices import threads


@pytest.fixture
def unset(monkeypatch):
    for name in threads.WAITING:
        monkeypatch.setenv(name, "")  # so that it is restored, whatever is set meanwhile
        monkeypatch.delenv(name)


def test_threads_wait_asleep(unset):
    threads.short_waits()
    assert os.environ["GOMP_SPINCOUNT"] == threads.SPIN_COUNT


def test_what_the_user_set_stays(unset, monkeypatch):
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    threads.short_waits()
    assert "GOMP_SPINCOUNT" not in os.environ
